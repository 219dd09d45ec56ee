"""The client for programs without asyncio: the methods of `AsyncClient`, blocking.

import godwit

with godwit.sync.connect("localhost") as client:
    client.publish("home/room1", {"temperature": 21.5})
    with client.subscribe("home/#", timeout_s=5) as messages:
        for message in messages:
            print(message.topic, message.json())
"""

from __future__ import annotations

from godwit.net.blocking import BlockingClient, connect
from godwit.net.blocking_publisher import BlockingPublisher
from godwit.net.files import BlockingFiles
from godwit.net.jobs import BlockingJob
from godwit.net.replies import BlockingResponder
from godwit.net.subscription import BlockingSubscription

__all__ = [
    "BlockingClient",
    "BlockingFiles",
    "BlockingJob",
    "BlockingPublisher",
    "BlockingResponder",
    "BlockingSubscription",
    "connect",
]


def __dir__() -> list[str]:
    return sorted(__all__)
