"""A world whose broker can die and begin again with what its store kept, and a log that answers when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.broker.world import LOG_ID, World

from godwit.broker.effects import Append, Committed, Failed, Found, Locate, Losing, Read
from godwit.broker.settings import Settings
from godwit.errors import DiskError
from godwit.limits import RING_BYTES
from godwit.server.direct_log import DirectLog
from godwit.store.memory import MemoryStore
from godwit.store.port import Slice, Store
from godwit.wire import changes as ch
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, StoredState

FULL = "the disk is full: make room"
_OF_SESSIONS = ("session", "feed", "filter", "packet")


class KeepingStore(MemoryStore):
    """A store that outlives its brokers: folds every change into what is so now, as a table would."""

    __slots__ = ("appends", "damaged", "is_full", "kept", "marks", "thinned")

    def __init__(self) -> None:
        super().__init__(RING_BYTES, log_id=LOG_ID)
        self.kept: dict[tuple[Any, ...], Any] = {}
        """By the kind and key of what is kept."""
        self.marks: dict[str, int] = {}
        self.thinned: set[int] = set()
        """Offsets of entries that retention has removed from the middle."""
        self.damaged: list[tuple[int, int]] = []
        self.is_full = False
        self.appends: list[tuple[list[Entry], list[Change]]] = []

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        if self.is_full:
            raise DiskError(FULL)
        self.appends.append((list(entries), list(changes)))
        for change in changes:
            self._fold(change)
        return super().append(entries)

    def read(self, offset: int, max_bytes: int) -> Slice:
        found = super().read(offset, max_bytes)
        damaged = [(begin, end) for begin, end in self.damaged if end > offset and begin < found.next_offset]
        entries = [
            (first, entry)
            for first, entry in found.entries
            if first not in self.thinned and not any(begin <= first < end for begin, end in damaged)
        ]
        return Slice(entries, found.next_offset, damaged)

    def thin(self, topic: str, below: int) -> Losing:
        """A rule for this topic deletes what it has below an offset; gives what the broker is told."""
        gone = [
            (first, entry)
            for first, entry in super().read(0, 2**40).entries
            if entry.topic == topic and first < below and first not in self.thinned
        ]
        self.thinned.update(first for first, _ in gone)
        self.marks[topic] = below
        return Losing(gone, below, topic)

    def _fold(self, change: Change) -> None:
        kept = self.kept
        match change:
            case ch.TopicRow(name=name):
                kept["topic", name] = change
            case ch.TopicDeleted(name=name):
                kept.pop(("topic", name), None)
            case ch.RetainedRow(topic=topic, payload=payload):
                kept.pop(("retained", topic), None)
                if payload:
                    kept["retained", topic] = change
            case ch.SessionRow(name=name):
                kept["session", name] = change
            case ch.SessionDeleted(name=name):
                for key in [key for key in kept if key[0] in _OF_SESSIONS and key[1] == name]:
                    del kept[key]
            case ch.SubscriptionRow(session=session, filters=filters, cursor=cursor):
                assert ("session", session) in kept
                kept["feed", session, filters, cursor] = change
            case ch.SubscriptionDeleted(session=session, filters=filters, cursor=cursor):
                kept.pop(("feed", session, filters, cursor), None)
                for key in [key for key in kept if key[0] in ("filter", "packet") and key[1] == session]:
                    if not filters:
                        del kept[key]
            case _:
                self._fold_more(change)

    def _fold_more(self, change: Change) -> None:
        kept = self.kept
        match change:
            case ch.FilterRow(session=session, filter=text):
                assert ("feed", session, (), None) in kept
                kept["filter", session, text] = change
            case ch.FilterDeleted(session=session, filter=text):
                kept.pop(("filter", session, text), None)
            case ch.PacketRow(session=session, is_outgoing=is_outgoing, number=number):
                assert ("feed", session, (), None) in kept
                kept["packet", session, is_outgoing, number] = change
            case ch.PacketDeleted(session=session, is_outgoing=is_outgoing, number=number):
                kept.pop(("packet", session, is_outgoing, number), None)
            case ch.IdentityRow(owner=owner, publisher=publisher, topic=topic):
                kept["identity", owner, publisher, topic] = change
            case ch.IdentityDeleted(owner=owner, publisher=publisher, topic=topic):
                kept.pop(("identity", owner, publisher, topic), None)
            case ch.QueryRow(query=query):
                kept["query", query] = change
            case ch.QueryDeleted(query=query):
                kept.pop(("query", query), None)
            case ch.RelayRow(link=link, log=log):
                kept["relay", link, log] = change
            case _:
                self._fold_work(change)

    def _fold_work(self, change: Change) -> None:
        kept = self.kept
        match change:
            case ch.NextJobRow():
                kept["next_job",] = change
            case ch.JobRow(job=job):
                kept["job", job], payload, task = ch.job_parts(change)
                if payload is not None:
                    kept["payload", job] = payload
                if task is not None:
                    kept["task", job, 0] = task
            case ch.JobPayloadRow(job=job):
                kept["payload", job] = change
            case ch.TaskRow(job=job, number=number):
                assert ("job", job) in kept
                kept["task", job, number] = change
            case ch.JobDeleted(job=job):
                for key in [key for key in kept if key[0] in ("job", "payload", "task") and key[1] == job]:
                    del kept[key]
            case _:
                raise AssertionError(change)

    def of(self, kind: str) -> dict[Any, Any]:
        """What is kept of a kind, by the rest of its key."""
        return {key[1] if len(key) == 2 else key[1:]: value for key, value in self.kept.items() if key[0] == kind}

    def state(self) -> StoredState:
        return StoredState(
            topics=list(self.of("topic").values()),
            retained=list(self.of("retained").values()),
            sessions=list(self.of("session").values()),
            subscriptions=list(self.of("feed").values()),
            filters=list(self.of("filter").values()),
            packets=list(self.of("packet").values()),
            identities=sorted(self.of("identity").values(), key=lambda kept: kept.last_us),
            queries=sorted(self.of("query").values(), key=lambda kept: kept.last_us),
            next_job=self.kept[("next_job",)].job if ("next_job",) in self.kept else 1,
            jobs=sorted(self.of("job").values(), key=lambda kept: kept.job),
            payloads=sorted(self.of("payload").values(), key=lambda kept: kept.job),
            tasks=sorted(self.of("task").values(), key=lambda kept: (kept.job, kept.number)),
            retention_floors=dict(self.marks),
        )


class HeldLog(DirectLog):
    """Answers appends only when it is told to; what was given before a failure fails too. Questions wait as well."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.waiting: deque[Append] = deque()
        self.is_held = False
        self.has_slow_reader = False
        self.questions: deque[Read | Locate] = deque()
        """What waits while the reader is slow."""

    def read(self, effect: Read) -> None:
        if self.has_slow_reader:
            self.questions.append(effect)
        else:
            super().read(effect)

    def locate(self, effect: Locate, now_us: int) -> None:
        if self.has_slow_reader:
            self.questions.append(effect)
        else:
            super().locate(effect, now_us)

    def answer_one(self, now_us: int) -> Read | Locate:
        """The oldest question."""
        question = self.questions.popleft()
        if isinstance(question, Read):
            found = self.store.read(question.offset, question.max_bytes)
            self.broker.handle(Found(question, found.entries, found.next_offset, found.damaged), now_us)
        else:
            super().locate(question, now_us)
        return question

    def append(self, effect: Append, now_us: int) -> None:
        if self.is_held:
            self.waiting.append(effect)
        else:
            super().append(effect, now_us)

    def commit(self, now_us: int) -> None:
        """The oldest one."""
        effect = self.waiting.popleft()
        self.broker.handle(Committed(self.store.append(effect.entries, effect.changes)), now_us)

    def fail(self, now_us: int, text: str = FULL, *, is_lasting: bool = False) -> None:
        """All of them; the oldest for good if `is_lasting`."""
        for place in range(len(self.waiting)):
            self.waiting.popleft()
            self.broker.handle(Failed(text, is_lasting and not place), now_us)


class DurableWorld(World):
    """A World whose log outlives its broker."""

    keeping: KeepingStore

    def __init__(self, settings: Settings | None = None) -> None:
        self.log = HeldLog(self.open())
        super().__init__(settings, log=self.log)

    def open(self) -> Store:
        """The store, of which a broker that died had the use before."""
        if not hasattr(self, "keeping"):
            self.keeping = KeepingStore()
        return self.keeping

    def hold(self) -> None:
        """From now on appends wait for commit or fail."""
        self.log.is_held = True

    def commit(self) -> None:
        """All that wait, and what follows; then they wait no more."""
        self.log.is_held = False
        while self.log.waiting:
            self.log.commit(self.now_us)
        self.run()

    def fail(self, *, is_lasting: bool = False) -> None:
        """All that wait; then appends are answered at once again."""
        self.log.is_held = False
        self.log.fail(self.now_us, is_lasting=is_lasting)
        self.run()

    def answer_one(self) -> Read | Locate:
        """The oldest question that waits for the slow reader, and what follows."""
        question = self.log.answer_one(self.now_us)
        self.run()
        return question

    def restart(self, *, after_s: float = 0.0) -> None:
        """The broker is killed. Its peers know nothing of it; what it had not written is gone."""
        for peer in self.peers:
            peer.closed = peer.closed or (7, "the broker died")
        self._fed.clear()
        self._later.clear()
        self.now += after_s
        self.log = HeldLog(self.open())
        self.start(self.log)
        self.run()
