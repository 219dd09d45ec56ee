"""Endpoint, broker and store as one machine, sans-IO, and the file that configures it."""
