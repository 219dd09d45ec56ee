"""The harness of the jobs world: a log with delayed commits, the checkers, and the common part of its clients.

Workers and controllers are actors: a process on a machine, with a client, that dies and restarts. A run of an actor is
one instance of the library's client. Scheduled actions take place in the same run or not at all, and not while the
process is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from godwit.broker.admission import RESTART_GRACE_US
from godwit.broker.effects import Append, Committed, Failed
from godwit.broker.session import made_name
from godwit.client import events as client_events
from godwit.client.config import ClientConfig
from godwit.client.protocol import ClientProtocol
from godwit.errors import StorageError
from godwit.transport.events import Address
from godwit.wire.batch import Entry, decode_batch, encode_head
from godwit.wire.control_base import Code
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import JobLogModel, JobRecords
from godwit_sim.jobs_notifications import NotificationChecker
from godwit_sim.jobs_workers import WorkerModel
from godwit_sim.network import Host
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker_harness import EPOCH_US, Checkers, NodeAdapter
from godwit_sim.worlds.durable import TrimmedLog, WatchedDurableStore
from godwit_sim.worlds.jobs_plan import ActorPlan, JobPlan, JobsPlan

# -- the log ----------------------------------------------------------------------------------------------------------


class DelayedLog(TrimmedLog):
    """A log that commits a little later, while the broker runs on. When an append fails, those after it fail too."""

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


# -- checkers ---------------------------------------------------------------------------------------------------------

TOPIC: Final = "$jobs/"
TAIL: Final = 24
TAIL_WIDTH: Final = 220
"""The most characters of an event in the report of a violation."""


class JobCheckers:
    """The checkers of one world, and the plan of each job."""

    def __init__(self, plan: JobsPlan, checkers: Checkers) -> None:
        self.seed = plan.seed
        self.network = checkers.network
        self.payload = checkers.payload
        self.records = JobRecords()
        self.workers = WorkerModel(plan.lease_s, RESTART_GRACE_US / 1e6)
        self.log_model = JobLogModel(self.records, self.workers, epoch_us=EPOCH_US, keep_s=plan.keep_s)
        self.notifications = NotificationChecker(self.records, self.log_model)
        self.plans: dict[bytes, JobPlan] = {}
        """By the payload of the job."""
        self.is_healed = False
        """The faults have ended, and tasks are short."""
        self.is_over = False
        """All clients are closing."""
        self._checkers = checkers
        self._tail: deque[tuple[float, str]] = deque(maxlen=TAIL)

    def note(self, what: str) -> None:
        """Record an event in the trace and in the report of a violation."""
        self._tail.append((self.network.now, what))
        self._checkers.note(what)

    def tail(self) -> str:
        """Return the last events, a line each."""
        return "".join(f"\n  {now:12.6f}  {what[:TAIL_WIDTH]}" for now, what in self._tail)

    @property
    def is_storage_failing(self) -> bool:
        return self._checkers.is_storage_failing

    def learn(self, entries: Sequence[Entry]) -> None:
        """Pass a durable append to the checkers."""
        messages = [
            (entry.topic.removeprefix(TOPIC), payload)
            for entry in entries
            if entry.topic.startswith(TOPIC)
            for payload in _payloads(entry)
        ]
        for kind, payload in messages:
            self._tail.append((self.network.now, f"log {kind} {payload.decode(errors='replace')}"))
        self.log_model.learn(messages, self._checkers.restarts.rows, self.network.now)


def _payloads(entry: Entry) -> list[bytes]:
    batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
    return list(batch.payloads)


# -- actors -----------------------------------------------------------------------------------------------------------

TAKEN: Final = (Code.TAKEN_OVER, Code.NAME_IN_USE)
"""Codes that mean that another client has the name."""
RESTART_S: Final = 2.0
"""The delay after another client took its name."""


class Actor:
    """A worker or a controller through all its runs."""

    def __init__(
        self, checkers: JobCheckers, base_label: str, plan: ActorPlan, host: Host, server: Address, *, has_twin: bool
    ) -> None:
        self.checkers = checkers
        self.host = host
        self.actor = plan
        self.is_online = False
        self.is_closing = False
        self.is_retired = False
        """It does not restart."""
        self._base_label = base_label
        self._server = server
        self._has_twin = has_twin
        self._runs = 0
        self._client: ClientProtocol | None = None
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """Actions that wait for room in the library's buffer."""

    @property
    def label(self) -> str:
        """Return the label of the present run."""
        return f"{self._base_label}.{self._runs}"

    @property
    def client(self) -> ClientProtocol:
        assert self._client is not None, "only the living act"
        return self._client

    @property
    def name(self) -> str:
        """Return its name at the broker."""
        return self.actor.name if self.actor.name is not None else made_name(self.client.instance)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the process, unless it runs."""
        if self.host.alive or self.is_retired:
            return
        checkers, network = self.checkers, self.checkers.network
        self._runs += 1
        self.is_closing = self.is_online = False
        self._waiting.clear()
        entropy = Random(f"{checkers.seed} entropy {self.label}").randbytes
        config = ClientConfig(name=self.actor.name, endpoint=self.actor.endpoint)
        self._client = ClientProtocol(
            config,
            entropy=entropy,
            random=Random(f"{checkers.seed} random {self.label}"),
            sealer=sealer_of_world(entropy),
        )
        checkers.note(f"life {self.label} as {self.name}")
        self._client.connect([self._server], self.host.clock(network.now))
        network.start(self.host, NodeAdapter(self._client), self._on_events)
        self.on_begun()
        network.pump(self.host)

    def die(self) -> None:
        """End the process without a close."""
        if self.host.alive:
            self.checkers.network.kill(self.host)
            self.is_online = False

    def close(self) -> None:
        """Close the client; the process remains until it is ended."""
        if self.host.alive and not self.is_closing:
            self.is_closing = True
            self.client.close(self.host.clock(self.checkers.network.now))
            self.checkers.network.pump(self.host)

    def retire(self) -> None:
        """Close for good."""
        self.is_retired = True
        self.close()

    def restart(self) -> None:
        """Restart after a close, or after another client took its name."""
        if self.is_closing and not self.checkers.is_over:
            self.die()
            self.begin()

    def later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action after a delay, if this run still exists then."""
        network = self.checkers.network
        network.at(network.now + delay_s, self._do, self._runs, action, arguments)

    def _do(self, run: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        network = self.checkers.network
        if run != self._runs or not self.host.alive or self.is_closing:
            return
        if network.now < self.host.paused_until:
            network.at(self.host.paused_until, self._do, run, action, arguments)
            return
        action(*arguments)
        network.pump(self.host)

    def retry_when_writable(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action again when the library's buffer has room."""
        self._waiting.append((action, arguments))

    # -- events of the library ----------------------------------------------------------------------------------------

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            self.checkers.note(f"{self.label} {describe(event)}")
            match event:
                case client_events.Online():
                    self.is_online = True
                    if event.name != self.actor.name and self.actor.name is not None:
                        raise ViolationError("lifecycle", f"{self.label}: welcomed as {event.name!r}")
                case client_events.Offline():
                    self.is_online = False
                case client_events.Unanswered():
                    pass  # no network of this world reports closed ports
                case client_events.Ended():
                    self._on_ended(event)
                case client_events.WorkBufferAvailable():
                    waiting, self._waiting = self._waiting, []
                    for action, arguments in waiting:
                        self.later(0.0, action, *arguments)
                case _:
                    self.on_event(event)

    def _on_ended(self, event: client_events.Ended) -> None:
        self.is_online = False
        if self.is_closing:
            return
        if not self._has_twin or event.code not in TAKEN:
            raise ViolationError("lifecycle", f"{self.label}: ended with code {event.code}, {event.reason!r}")
        self.is_closing = True
        self.checkers.network.at(self.checkers.network.now + RESTART_S, self.restart)

    # -- differences between workers and controllers ------------------------------------------------------------------

    def on_begun(self) -> None:
        """Start the work of a new run."""

    def on_event(self, event: Any) -> None:
        """Handle an event that only workers, or only controllers, receive."""

    def end_faults(self) -> None:
        """End all faults: from now on it behaves correctly."""
        self.restart()
        self.begin()

    def unsettled(self) -> str:
        """Describe something that is not yet as it must be; return an empty string if all is settled."""
        return "" if self.is_online or self.is_retired else f"{self.label} is not online"


def describe(event: Any) -> str:
    """Describe an event of the library in one line, the same in every run."""
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
