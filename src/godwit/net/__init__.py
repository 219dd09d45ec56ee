"""Where the sans-IO layers meet the system: sockets and event loops."""
