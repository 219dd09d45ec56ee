"""Values of a node: its configuration, heartbeats, events and planned steps, and the evidence that stops it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from godwit.cluster.engine import StreamInfo
from godwit.cluster.records import Count, Name
from godwit.limits import MIB
from godwit.store.replica import Place, Step

State: TypeAlias = Literal["standby", "active", "withdrawn", "deposed", "stopped"]

EVIDENCE_S: Final = 4.0
"""A server that is behind shows less than there is. Only a difference that lasts for this time is believed."""
EVIDENCE_SAMPLES: Final = 5
EVIDENCE_PAUSE_S: Final = 0.4
MAX_BEAT_BYTES: Final = 2048
MAX_KNOWN: Final = 1024
MAX_KNOWN_BYTES: Final = 256 * MIB
"""Records that arrived before the ones in front of them. Further ones are dropped and read later."""
MAX_STEPS: Final = 4096
MAX_STEPS_BYTES: Final = 64 * MIB
"""A standby reads no further while this much waits to be applied."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Names and times of a node."""

    name: str
    address: str = ""
    """Where its clients connect."""
    heartbeat_s: float = 0.5
    suspect_s: float = 2.0
    """A standby claims after this time without a sign of the active broker."""
    withdraw_s: float = 6.0
    """The active broker closes its connections after this time without an answer of the engine."""
    keep_bytes: int = 2048 * MIB
    """The size of the replicated log above which it is trimmed. It serves nodes that were away."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """What a node sends to all members."""

    name: Name
    run: bytes
    state: Name
    epoch: Count
    position: Count
    """Of the last record that it has read, whether that counts or not."""
    number: Count
    link: Count
    applied: Count
    """The position of its file, which is synced."""
    next_offset: Count
    address: Name
    reason: Name = ""
    log_id: bytes = b""
    """Of its file; empty before the first record."""
    is_verified: bool = True
    """Whether it has found the last record of its file in the replicated log."""
    age_s: float = 0.0
    """How long it runs."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """Its pause between heartbeats."""
    problem: Name = ""
    """Why it could not do its part at present; empty if it could, and from nodes of older versions."""


class Member(msgspec.Struct):
    """A member of the cluster, as this node last received it."""

    beat: Heartbeat
    at: float


def decode_beat(data: bytes) -> Heartbeat | None:
    """Return a heartbeat, or None if the bytes are not one."""
    if len(data) > MAX_BEAT_BYTES:
        return None
    try:
        return msgspec.msgpack.decode(data, type=Heartbeat)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def trim_position(info: StreamInfo, own: int, others: Sequence[int], keep_bytes: int) -> int:
    """Return the position below which records are deleted, so that nodes that are away find the last `keep_bytes`.

    A record that only the active node has is never deleted: its disk would have the only copy. All nodes that run get
    time to catch up, until there are twice as many bytes.

    Args:
        info: The first and last position of the records, and their size.
        own: The position of the file of the active node.
        others: Those of the other nodes that run.
        keep_bytes: The limit.
    """
    if info.size_bytes <= keep_bytes or not others:
        return 0
    average_bytes = max(1, info.size_bytes // max(1, info.last - info.first + 1))
    needed = min(others) if info.size_bytes <= 2 * keep_bytes else max(others)
    # The last record of a file is kept: it is compared.
    return min(own, needed, info.last - keep_bytes * 3 // 4 // average_bytes)


class NodeEvent(msgspec.Struct, frozen=True):
    """A change of the state, or a remark, with a sentence for the operator."""

    state: State
    text: str


class PlannedStep(msgspec.Struct, frozen=True):
    """A record that counts and is not in the file yet."""

    step: Step | None
    place: Place
    """Of the file after it."""
    token: Any
    """What the caller of `propose` gave; None for records of other nodes."""
    size_bytes: int


class LogIdentity(msgspec.Struct, frozen=True):
    """What a claim must know of the file."""

    log_id: bytes
    created_us: int
    secret: bytes
    next_offset: int


class Evidence:
    """Counts answers that contradict what a node knows, at most one in EVIDENCE_PAUSE_S."""

    def __init__(self) -> None:
        self._since = self._last = 0.0
        self._samples = 0

    def clear(self) -> None:
        self._samples = 0

    def add(self, now: float) -> bool:
        """Return whether the evidence suffices."""
        if not self._samples or now - self._last > EVIDENCE_S:
            self._since = now
            self._samples = 0
        elif now - self._last < EVIDENCE_PAUSE_S:
            return False
        self._last = now
        self._samples += 1
        return self._samples >= EVIDENCE_SAMPLES and now - self._since >= EVIDENCE_S
