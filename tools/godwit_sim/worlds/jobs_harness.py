"""What stands between the server and its disk in the world of jobs: a log that takes its time, as a thread's does.

The books of the world of jobs: its checkers, beside those of the broker world, which know the log.

What workers and controllers share: a process on a machine, with a client, that dies and comes back.

A life is one run of the library, with its own instance. It ends by death (nobody is told) or by a close. What is to be
done later is done in the same life or not at all, and not while the process gets no processor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from godwit.broker.admission import RESTART_GRACE_US
from godwit.broker.effects import Append, Committed, Failed
from godwit.broker.session import made_name
from godwit.client import events as told
from godwit.client.client import Client
from godwit.client.config import ClientConfig
from godwit.errors import StorageError
from godwit.transport.train import Address
from godwit.wire.batch import decode_batch, encode_head
from godwit.wire.codes import Code
from godwit.wire.entry import Entry
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import Chronicle, JobLedger
from godwit_sim.jobs_notifications import TellingChecker
from godwit_sim.jobs_workers import WorkRoster
from godwit_sim.network import Host
from godwit_sim.worlds.broker_harness import EPOCH_US, Books, Shell
from godwit_sim.worlds.durable import TrimmedLog, WatchedDurableStore
from godwit_sim.worlds.jobs_plan import ActorPlan, JobPlan, JobsPlan


class LateLog(TrimmedLog):
    """Answers appends a little later, while the broker goes on. When one fails, those behind it do too."""

    def __init__(self, store: WatchedDurableStore, rng: Random, commit_s: float) -> None:
        super().__init__(store)
        self._rng = rng
        self._commit_us = int(commit_s * 1e6)
        self._under_way: deque[tuple[int, Append]] = deque()

    def append(self, effect: Append, now_us: int) -> None:
        begins_us = max(now_us, self._under_way[-1][0] if self._under_way else 0)
        self._under_way.append((begins_us + self._rng.randint(0, self._commit_us), effect))

    def work(self, now_us: int) -> None:
        while self._under_way and self._under_way[0][0] <= now_us:
            _, effect = self._under_way.popleft()
            try:
                first_offset = self.store.append(effect.entries, effect.changes)
            except StorageError as error:
                failed = 1 + len(self._under_way)
                self._under_way.clear()
                for _ in range(failed):
                    self.broker.handle(Failed(str(error)), now_us)
            else:
                self.broker.handle(Committed(first_offset), now_us)
        super().work(now_us)

    @property
    def due_us(self) -> int | None:
        due_us = super().due_us
        if due_us is None and self._under_way:
            return self._under_way[0][0]
        return due_us

    @property
    def held_bytes(self) -> int:
        return sum(len(entry.rest) for _, effect in self._under_way for entry in effect.entries)


TOPIC: Final = "$jobs/"
TAIL: Final = 24
TAIL_WIDTH: Final = 220
"""So much is told of what went before a violation."""


class JobBooks:
    """The checkers of one world, and what each payload asks for."""

    def __init__(self, plan: JobsPlan, books: Books) -> None:
        self.seed = plan.seed
        self.network = books.network
        self.payload = books.payload
        self.ledger = JobLedger()
        self.roster = WorkRoster(plan.lease_s, RESTART_GRACE_US / 1e6)
        self.chronicle = Chronicle(self.ledger, self.roster, epoch_us=EPOCH_US, keep_s=plan.keep_s)
        self.tellings = TellingChecker(self.ledger, self.chronicle)
        self.plans: dict[bytes, JobPlan] = {}
        """By the payload of the job."""
        self.is_calm = False
        """Nothing befalls anybody any more, and tasks are quick."""
        self.is_over = False
        """Everybody goes home."""
        self._books = books
        self._tail: deque[tuple[float, str]] = deque(maxlen=TAIL)

    def note(self, what: str) -> None:
        """For the trace, and for whoever wants to know what went before a violation."""
        self._tail.append((self.network.now, what))
        self._books.note(what)

    def tail(self) -> str:
        """What happened last, a line each."""
        return "".join(f"\n  {now:12.6f}  {what[:TAIL_WIDTH]}" for now, what in self._tail)

    @property
    def is_storage_failing(self) -> bool:
        return self._books.is_storage_failing

    def learn(self, entries: Sequence[Entry]) -> None:
        """An append is safe."""
        messages = [
            (entry.topic.removeprefix(TOPIC), payload)
            for entry in entries
            if entry.topic.startswith(TOPIC)
            for payload in _payloads(entry)
        ]
        for kind, payload in messages:
            self._tail.append((self.network.now, f"log {kind} {payload.decode(errors='replace')}"))
        self.chronicle.learn(messages, self._books.restarts.rows, self.network.now)


def _payloads(entry: Entry) -> list[bytes]:
    batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
    return list(batch.payloads)


TAKEN: Final = (Code.TAKEN_OVER, Code.NAME_IN_USE)
"""Somebody else has the name."""
COMES_BACK_S: Final = 2.0
"""After somebody else took its name."""


class Actor:
    """One of them, through all its lives."""

    def __init__(
        self, books: JobBooks, whole: str, plan: ActorPlan, host: Host, server: Address, *, has_twin: bool
    ) -> None:
        self.books = books
        self.host = host
        self.actor = plan
        self.is_online = False
        self.is_closing = False
        self.is_retired = False
        """It does not come back."""
        self._whole = whole
        self._server = server
        self._has_twin = has_twin
        self._lives = 0
        self._client: Client | None = None
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What there was no room for in the library's buffer."""

    @property
    def label(self) -> str:
        """Of the present life."""
        return f"{self._whole}.{self._lives}"

    @property
    def client(self) -> Client:
        assert self._client is not None, "only the living act"
        return self._client

    @property
    def name(self) -> str:
        """What the broker calls it."""
        return self.actor.name if self.actor.name is not None else made_name(self.client.instance)

    # -- lives --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the process, unless it runs."""
        if self.host.alive or self.is_retired:
            return
        books, network = self.books, self.books.network
        self._lives += 1
        self.is_closing = self.is_online = False
        self._waiting.clear()
        entropy = Random(f"{books.seed} entropy {self.label}").randbytes
        config = ClientConfig(name=self.actor.name, endpoint=self.actor.endpoint)
        self._client = Client(config, entropy=entropy, random=Random(f"{books.seed} random {self.label}"))
        books.note(f"life {self.label} as {self.name}")
        self._client.connect([self._server], self.host.clock(network.now))
        network.start(self.host, Shell(self._client), self._on_events)
        self.on_begun()
        network.pump(self.host)

    def die(self) -> None:
        """Without a word."""
        if self.host.alive:
            self.books.network.kill(self.host)
            self.is_online = False

    def close(self) -> None:
        """With a goodbye; the process stays until somebody ends it."""
        if self.host.alive and not self.is_closing:
            self.is_closing = True
            self.client.close(self.host.clock(self.books.network.now))
            self.books.network.pump(self.host)

    def retire(self) -> None:
        """For good."""
        self.is_retired = True
        self.close()

    def come_back(self) -> None:
        """After a close, or when somebody else has taken its name."""
        if self.is_closing and not self.books.is_over:
            self.die()
            self.begin()

    def later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Does it then, if this life goes on until then."""
        network = self.books.network
        network.at(network.now + delay_s, self._do, self._lives, action, arguments)

    def _do(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        network = self.books.network
        if life != self._lives or not self.host.alive or self.is_closing:
            return
        if network.now < self.host.paused_until:
            network.at(self.host.paused_until, self._do, life, action, arguments)
            return
        action(*arguments)
        network.pump(self.host)

    def when_there_is_room(self, action: Callable[..., None], *arguments: Any) -> None:
        """The library's buffer is full: it is tried again when it is not."""
        self._waiting.append((action, arguments))

    # -- what the library tells ---------------------------------------------------------------------------------------

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            self.books.note(f"{self.label} {describe(event)}")
            match event:
                case told.Online():
                    self.is_online = True
                    if event.name != self.actor.name and self.actor.name is not None:
                        raise ViolationError("life", f"{self.label}: welcomed as {event.name!r}")
                case told.Offline():
                    self.is_online = False
                case told.Ended():
                    self._on_ended(event)
                case told.WorkRoom():
                    waiting, self._waiting = self._waiting, []
                    for action, arguments in waiting:
                        self.later(0.0, action, *arguments)
                case _:
                    self.on_event(event)

    def _on_ended(self, event: told.Ended) -> None:
        self.is_online = False
        if self.is_closing:
            return
        if not self._has_twin or event.code not in TAKEN:
            raise ViolationError("life", f"{self.label}: ended with code {event.code}, {event.reason!r}")
        self.is_closing = True
        self.books.network.at(self.books.network.now + COMES_BACK_S, self.come_back)

    # -- what they do differently -------------------------------------------------------------------------------------

    def on_begun(self) -> None:
        """A new life begins."""

    def on_event(self, event: Any) -> None:
        """What only workers, or only controllers, are told."""

    def calm_down(self) -> None:
        """Nothing befalls anybody any more: it does what it should, and nothing else."""
        self.come_back()
        self.begin()

    def unsettled(self) -> str:
        """What is not yet as it should be, in words."""
        return "" if self.is_online or self.is_retired else f"{self.label} is not online"


def describe(event: Any) -> str:
    """An event of the library in one line, the same in every run."""
    words = [type(event).__name__]
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name == "view":
            tasks = {number: (task.state, task.worker, task.fence) for number, task in value.tasks.items()}
            words.append(f"{value.key!r} number={value.number} {value.state} agreed={value.agreed} {tasks}")
        elif name == "lease":
            words.append(f"{value.ref} {value.kind} of {value.controller} {value.state}")
        elif name == "changes":
            words.append(" ".join(f"{change.what}:{change.task}" for change in value))
        else:
            words.append(f"{name}={value}")
    return " ".join(words)
