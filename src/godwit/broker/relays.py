"""Bridges towards this broker: messages of other brokers' logs, appended once and in their order.

For each link and log the hub stores a *mark*: everything of that log below an offset is here. The mark is written in
the same append as the messages that raise it, so that both are stored or none. The edge has no state: it asks for the
mark and continues there. A record that does not begin at the mark is refused, and so nothing is appended twice or left
out, whatever happens to either side.

Messages that the edge could not send are reported on `$relay/<link>`, in the same append too.

Loops: every edge reports the logs whose messages flow into it. The hub refuses a bridge that would bring back its own
messages, and drops a message that has come from its own log all the same (while reports are on their way).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from godwit.broker.access import Access
from godwit.broker.append_queue import AppendQueue, OnFailure, Pending
from godwit.broker.catalogue import BROKER_NAME, Catalogue, PublisherNumbers, TooManyTopicsError, Topic
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.imports import require_topic
from godwit.broker.ports import Peer, RequestFailure
from godwit.broker.publications import LATEST_US, check_extension
from godwit.broker.session import Session, check_name, require_right
from godwit.broker.topics import check_filter, check_topic, shown
from godwit.errors import BadFilterError, BadTopicError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_RELAY_MARKS, MAX_RELAY_SOURCES
from godwit.wire.batch import (
    QOS_SHIFT,
    RETAIN,
    Entry,
    extension_of,
    is_rest_valid,
    longest_message,
    make_entry,
    payload_bytes,
    with_extension,
)
from godwit.wire.changes import RelayRow
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch
from godwit.wire.extension import add_origin, split_origin
from godwit.wire.filters import matches
from godwit.wire.relay import LAST_OFFSET, LOG_ID_BYTES, BridgeInfo, GapReason, RelayGap, RelayOpen, RelayRecord

RELAY_TOPICS: Final = "$relay/"
"""The topics of reports about bridges: this, and the name of the link."""
MAX_KNOWN_NAMES: Final = 50_000
"""Topics and publishers of a bridge that were checked; beyond that they are checked again."""
MAX_LISTED: Final = 200
"""Bridges in a list: it is one control message."""


class _Mark(msgspec.Struct):
    """How far this log has the messages of another one."""

    offset: int | None = None
    """With the records that are being appended. None: nothing of that log was appended or is being appended."""
    stored: int | None = None
    epochs: tuple[Epoch, ...] = ()
    """Of that log, with the stored offset. Without them nothing tells an older copy of that log from the original."""


class InboundRelay:
    """One bridge whose edge is connected. A protocol overrides `ended`."""

    def __init__(self, peer: Peer, session: Session) -> None:
        self.peer = peer
        self.session = session
        self.is_open = False
        """Whether records are accepted. Maintained by Relays."""
        self.log = b""
        self.epochs: tuple[Epoch, ...] = ()
        self.filters: tuple[str, ...] = ()
        self.sources: frozenset[bytes] = frozenset()
        """The logs whose messages it brings, including the edge's own."""
        self.mark = _Mark()
        self.access: Access | None = None
        """The rules under which its filters and `topics` were checked."""
        self.topics: set[str] = set()
        """Topics that it may send."""
        self.publishers: set[str] = set()
        """Valid names of publishers."""

    def ended(self, code: Code, text: str) -> None:
        """The bridge has ended at the hub: no further record is accepted."""
        raise NotImplementedError


class _Figures(msgspec.Struct):
    """Counters of a link since the broker started."""

    messages: int = 0
    missed: int = 0
    looped: int = 0


@dataclass(eq=False)
class Relays:
    """Input: open, append, close. Getters: sources, bridges."""

    _catalogue: Catalogue
    _numbers: PublisherNumbers
    _queue: AppendQueue
    _dirty: DirtyState
    _effects: list[Effect]
    _log_id: bytes

    def __post_init__(self) -> None:
        self._marks: dict[tuple[str, bytes], _Mark] = {}
        """By link and log."""
        self._order: list[tuple[str, bytes]] = []
        """The keys of all marks in order, so that no request has to sort or search them."""
        self._open: dict[str, InboundRelay] = {}
        """By link."""
        self._figures: dict[str, _Figures] = {}
        self._broker_number = self._numbers.number(BROKER_NAME)
        self.outgoing: list[Callable[[], BridgeInfo]] = []
        """The bridges of which this broker is the edge. Their runtime adds itself here."""
        self.on_sources: list[Callable[[], None]] = []
        """Called when `sources` has changed."""

    def restore(self, rows: Iterable[RelayRow]) -> None:
        """Add the marks that were stored before the broker was restarted."""
        for row in rows:
            self._marks[row.link, row.log] = _Mark(row.offset, row.offset, row.epochs)
        self._order = sorted(self._marks)

    def sources(self) -> list[bytes]:
        """Return the ids of the logs whose messages flow into this one by bridges that are open, at most 64."""
        found = frozenset[bytes]().union(*(relay.sources for relay in self._open.values()))
        return sorted(found)[:MAX_RELAY_SOURCES]

    # -- open and close -----------------------------------------------------------------------------------------------

    def open(
        self,
        relay: InboundRelay,
        request: RelayOpen,
        opened: Callable[[int | None, Sequence[Epoch]], None],
        now_us: int,
    ) -> None:
        """Open a bridge. `opened` is called with its mark, once the outcome of all earlier records is known.

        Raises RequestFailure if the bridge is refused.
        """
        link = relay.session.name
        relay.log, relay.epochs = request.log, tuple(request.epochs)
        relay.filters = tuple(request.filters)
        relay.sources = frozenset((request.log, *request.sources))
        self._check_link(relay)
        self._check_filters(relay)
        mark = self._marks.get((link, request.log))
        if mark is None:
            if len(self._marks) >= MAX_RELAY_MARKS:
                raise RequestFailure(
                    Code.TOO_MANY, f"this broker remembers {MAX_RELAY_MARKS} bridges: no room for more"
                )
            at = bisect_left(self._order, (link, b""))
            if at < len(self._order) and self._order[at][0] == link:
                self._report(link, now_us, event="other log", log=request.log.hex())
            mark = _Mark()
            insort(self._order, (link, request.log))
        relay.mark = mark
        former = self._open.get(link)
        self._marks[link, request.log] = mark
        self._open[link] = relay
        relay.is_open = True
        if former is not None:
            former.is_open = False
            self._drop_unused(former)
            former.ended(Code.TAKEN_OVER, "the bridge was opened again")

        def answer(_: object) -> None:
            if relay.is_open:
                opened(mark.stored, mark.epochs)

        self._queue.wait(answer, answer)
        if former is None or former.sources != relay.sources:
            text = f"bridge {link} opened, from offset {mark.stored or 0} of the log {request.log.hex()}"
            self._effects.append(Notice("bridge", text, relay.session.fields(log=request.log.hex())))
            self._notify()

    def close(self, relay: InboundRelay) -> None:
        """The bridge has ended. May be repeated."""
        if relay.is_open:
            relay.is_open = False
            if self._open.get(relay.session.name) is relay:
                del self._open[relay.session.name]
                self._drop_unused(relay)
                self._notify()

    def _drop_unused(self, relay: InboundRelay) -> None:
        """Forget the mark of a bridge if nothing was appended: the place is for others."""
        key = relay.session.name, relay.log
        mark = self._marks.get(key)
        present = self._open.get(relay.session.name)
        if mark is not None and mark.offset is None and (present is None or present.mark is not mark):
            del self._marks[key]
            del self._order[bisect_left(self._order, key)]

    def _notify(self) -> None:
        for callback in self.on_sources:
            callback()

    def _check_link(self, relay: InboundRelay) -> None:
        link = relay.session.name
        try:
            check_topic(RELAY_TOPICS + link)
        except BadTopicError:
            raise RequestFailure(Code.NOT_ALLOWED, f"the name {shown(link)} is not usable for a bridge") from None
        if not relay.session.is_remembered or "/" in link:
            text = "a bridge needs a client with a name, which has no slash: give the bridge one"
            raise RequestFailure(Code.NOT_ALLOWED, text)
        if self._log_id in relay.sources:
            text = f"the bridge {link} would bring messages of this broker back to it: remove a bridge of the loop"
            raise RequestFailure(Code.NOT_ALLOWED, text)

    def _check_filters(self, relay: InboundRelay) -> None:
        """Check the rights of the bridge, at first and after each change of the rules."""
        access = self._catalogue.settings.access
        session = relay.session
        for text in relay.filters:
            try:
                check_filter(text)
            except BadFilterError as error:
                raise RequestFailure(Code.BAD_FILTER, str(error)) from None
            require_right(access, session, "relay", text, f"relay {shown(text)}")
        relay.access = access
        relay.topics.clear()

    # -- messages -----------------------------------------------------------------------------------------------------

    def append(self, relay: InboundRelay, record: RelayRecord, stored: Callable[[], None], now_us: int) -> None:
        """Append the messages of a record, and raise the mark to its end. `stored` is called when that is done.

        Raises RequestFailure if the record is refused, and calls InboundRelay.ended if storing it fails. The bridge
        has ended then: the edge asks for the mark again.
        """
        mark = relay.mark
        link = relay.session.name
        expected = mark.offset or 0
        if record.begin != expected and not (record.is_rewind and record.begin < expected):
            text = f"a record of the bridge {link} begins at {record.begin}: {expected} is next"
            raise RequestFailure(Code.MALFORMED, text)
        held: list[Topic] = []
        try:
            entries, looped = self._checked(relay, record, held, now_us)
            self._add(entries)
        finally:
            for topic in held:
                topic.publishers -= 1
        for gap in record.gaps:
            self._report_gap(link, relay.log, gap, now_us)
        count = sum([entry.count for entry in entries])
        figures = self._figures.setdefault(link, _Figures())
        before = mark.offset
        mark.offset = record.end
        self._dirty.relay(RelayRow(link, relay.log, record.end, relay.epochs, now_us))

        def on_stored(_: int) -> None:
            mark.stored, mark.epochs = record.end, relay.epochs
            figures.messages += count
            figures.looped += looped
            missed = sum([gap.count for gap in record.gaps if gap.reason != GapReason.REPLACED])
            figures.missed = min(figures.missed + missed, LAST_OFFSET)  # reported by the edge, whatever it is
            relay.session.messages_in += count
            stored()

        def on_failed(text: str) -> None:
            mark.offset = mark.stored
            if relay.is_open:
                self.close(relay)
                relay.ended(Code.STORAGE, text)
            self._drop_unused(relay)

        self._queue.wait(on_stored, on_failed)
        if record.is_rewind:
            text = f"bridge {link}: its log was replaced by an older copy, and resumes at {record.begin}, not {before}"
            self._effects.append(Notice("warning", text, relay.session.fields(log=relay.log.hex())))

    def _checked(
        self, relay: InboundRelay, record: RelayRecord, held: list[Topic], now_us: int
    ) -> tuple[list[Entry], int]:
        """Return the messages as they are appended, and the number of messages that came from this log itself.

        `held` gets the topics, so that none of them is deleted to make room for another.
        """
        settings = self._catalogue.settings
        if relay.access is not settings.access:
            self._check_filters(relay)
        max_bytes = settings.max_message_bytes
        entries: list[Entry] = []
        looped = 0
        seen: set[str] = set()
        for offset, entry in record.entries:
            if (
                entry.published_us > LATEST_US
                or entry.flags >> QOS_SHIFT == 3
                or entry.count > MAX_BATCH_MESSAGES
                or not is_rest_valid(entry)
            ):
                raise RequestFailure(Code.MALFORMED, f"the batch at offset {offset} of a bridge is malformed")
            if len(entry.rest) > max_bytes and longest_message(entry.flags, entry.count, entry.rest) > max_bytes:
                text = f"a message at offset {offset} is longer than the {max_bytes} bytes that this broker takes"
                raise RequestFailure(Code.TOO_LARGE, text)
            self._check_names(relay, entry)
            plain, origin = split_origin(extension_of(entry) or b"")
            if origin is not None and origin[0] == self._log_id:
                looped += entry.count
                continue
            if origin is not None and origin[1] + entry.count > LAST_OFFSET:
                raise RequestFailure(Code.MALFORMED, f"the origin of the batch at offset {offset} is out of range")
            if plain:
                check_extension(with_extension(entry, plain) if origin is not None else entry)
            if entry.topic not in seen:
                seen.add(entry.topic)
                held.append(self._topic(entry.topic))
            if origin is None:
                extension = add_origin(plain, relay.log, offset) if len(relay.log) == LOG_ID_BYTES else None
                entry = entry if extension is None else with_extension(entry, extension)
            entries.append(msgspec.structs.replace(entry, received_us=now_us))
        return entries, looped

    def _check_names(self, relay: InboundRelay, entry: Entry) -> None:
        name = entry.topic
        if name not in relay.topics:
            session = relay.session
            try:
                check_topic(name)
            except BadTopicError as error:
                raise RequestFailure(Code.BAD_TOPIC, str(error)) from None
            if name.startswith("$") or not any(matches(text, name) for text in relay.filters):
                raise RequestFailure(Code.NOT_ALLOWED, f"the topic {shown(name)} is not among those of the bridge")
            require_right(self._catalogue.settings.access, session, "relay", name, f"relay {shown(name)}")
            if len(relay.topics) >= MAX_KNOWN_NAMES:
                relay.topics.clear()
            relay.topics.add(name)
        if entry.publisher not in relay.publishers:
            try:
                check_name(entry.publisher)
            except UsageError as error:
                raise RequestFailure(Code.MALFORMED, f"the publisher of a message: {error}") from None
            if len(relay.publishers) >= MAX_KNOWN_NAMES:
                relay.publishers.clear()
            relay.publishers.add(entry.publisher)

    def _topic(self, name: str) -> Topic:
        try:
            topic = require_topic(self._catalogue, name)
        except BadTopicError as error:
            is_missing = self._catalogue.settings.policy_of(name) == "explicit"
            raise RequestFailure(Code.NO_SUCH_TOPIC if is_missing else Code.BAD_TOPIC, str(error)) from None
        except TooManyTopicsError as error:
            raise RequestFailure(Code.TOO_MANY, str(error)) from None
        topic.publishers += 1
        return topic

    def _add(self, entries: list[Entry]) -> None:
        for (name, publisher), group in groupby(entries, key=lambda entry: (entry.topic, entry.publisher)):
            self._append(self._catalogue.adopt(name), self._numbers.number(publisher), list(group))

    def _append(self, topic: Topic, publisher: int, entries: list[Entry]) -> None:
        topic.messages += sum([entry.count for entry in entries])
        topic.payload_bytes += sum([payload_bytes(entry) for entry in entries])
        topic.last_us = entries[-1].received_us
        self._queue.fresh.append(Pending(None, topic, publisher, 0, entries, OnFailure.DROPPED))
        self._queue.is_retaining |= any(entry.flags & RETAIN for entry in entries)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report_gap(self, link: str, log: bytes, gap: RelayGap, now_us: int) -> None:
        reason = GapReason(gap.reason).name.lower().replace("_", " ")
        self._report(
            link, now_us, event="gap", reason=reason, log=log.hex(), first=gap.first, end=gap.end, messages=gap.count
        )
        messages = "1 message" if gap.count == 1 else f"{gap.count} messages"
        text = f"bridge {link} lacks up to {messages} of offsets {gap.first} to {gap.end - 1}: {reason}"
        self._effects.append(Notice("bridge_gap", text, {"client": link, "log": log.hex()}))

    def _report(self, link: str, now_us: int, **fields: str | int) -> None:
        """Publish a report, in the append of this turn."""
        topic = self._catalogue.adopt(RELAY_TOPICS + link)
        payload = msgspec.json.encode({"link": link, **fields})
        self._append(topic, self._broker_number, [make_entry(topic.name, BROKER_NAME, [payload], qos=1, now_us=now_us)])

    @property
    def incoming(self) -> int:
        """The number of open bridges of which this broker is the hub."""
        return len(self._open)

    def bridges(self, session: Session) -> list[BridgeInfo]:
        """Return all bridges from and to this broker, for a client that may kick. Raises RequestFailure otherwise."""
        what = "see the bridges: this needs the right to kick"
        require_right(self._catalogue.settings.access, session, "kick", "", what)
        found = [status() for status in self.outgoing]
        for link, log in self._order[: max(0, MAX_LISTED - len(found))]:
            mark = self._marks[link, log]
            relay = self._open.get(link)
            is_open = relay is not None and relay.log == log
            figures = self._figures.get(link) if is_open else None
            info = BridgeInfo(
                name=link,
                direction="in",
                peer=relay.peer.address if relay is not None and is_open else "",
                state="running" if is_open else "absent",
                log_id=log.hex(),
                position=mark.stored,
                **({} if figures is None else msgspec.structs.asdict(figures)),
            )
            found.append(info)
        return found
