"""Metrics of a process for Prometheus: distributions, their text form, and the endpoint that serves it."""
