"""The sans-IO layers in sockets and event loops: clients for programs, the broker as a process, its log on disk."""

from godwit.net.diagnostics import configure_logging

configure_logging()
