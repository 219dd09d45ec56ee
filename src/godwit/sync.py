"""The client for programs without asyncio: the same methods, blocking. See godwit.net.blocking."""

from __future__ import annotations

from godwit.net.blocking import BlockingClient, connect
from godwit.net.blocking_jobs import BlockingJob
from godwit.net.blocking_publisher import BlockingPublisher
from godwit.net.blocking_subscription import BlockingFiles, BlockingSubscription

__all__ = ["BlockingClient", "BlockingFiles", "BlockingJob", "BlockingPublisher", "BlockingSubscription", "connect"]
