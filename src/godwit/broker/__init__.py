"""Decisions, sans-IO: topics and filters, routing, retained messages, sessions, access."""
