"""What happens to jobs, as messages on `$jobs/<kind>`: in the log with the change itself, for whoever may subscribe."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from godwit.broker.append_queue import AppendQueue, OnFailure, Pending
from godwit.broker.catalogue import BROKER_NAME, JOBS, Catalogue, PublisherNumbers
from godwit.broker.jobs.model import Happening
from godwit.wire.batch import LONE, QOS_SHIFT
from godwit.wire.entry import Entry

MESSAGES_A_BATCH: Final = 1024
_QOS: Final = 1 << QOS_SHIFT
_encode: Final = msgspec.json.Encoder().encode


class Recording:
    """Feed: record. It goes into the line of commits."""

    def __init__(self, catalogue: Catalogue, names: PublisherNumbers, commits: AppendQueue) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._number = names.number(BROKER_NAME)

    def record(self, happened: Mapping[str, list[Happening]], now_us: int) -> None:
        """A turn's happenings, by kind: one batch of each."""
        for kind, happenings in happened.items():
            topic = self._catalogue.adopt(JOBS + kind)
            payloads = [_encode(happening) for happening in happenings]
            entries = [
                _entry(topic.name, payloads[at : at + MESSAGES_A_BATCH], now_us)
                for at in range(0, len(payloads), MESSAGES_A_BATCH)
            ]
            topic.messages += len(payloads)
            topic.payload_bytes += sum(map(len, payloads))
            topic.last_us = now_us
            # If they cannot be written the office brings them again, but for those of jobs that it discards.
            self._commits.fresh.append(Pending(None, topic, self._number, 0, entries, OnFailure.DROPPED))


def _entry(topic: str, payloads: list[bytes], now_us: int) -> Entry:
    count = len(payloads)
    if count == 1:
        return Entry(topic, BROKER_NAME, _QOS | LONE, now_us, now_us, None, 0, 1, payloads[0])
    rest = struct.pack(f">{count + 1}I", count, *map(len, payloads)) + b"".join(payloads)
    return Entry(topic, BROKER_NAME, _QOS, now_us, now_us, None, 0, count, rest)
