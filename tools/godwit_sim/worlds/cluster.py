"""The cluster world: three brokers with one replicated log, on simulated disks, behind a model of its engine.

Each machine runs the shipped replica, and the shipped server while its node is active. Publishers of QoS 1 and QoS 2
and a subscriber know the addresses of all of them. Brokers are killed, lose power, are paused, hand over, or are
started with an older copy of their folder; their disks fail at any write, or are full for a while; they are cut off
from the engine, from the clients, or from both; the engine loses its majority, changes its leader, and loses, delays
and doubles requests and reports. In some seeds wrongly configured nodes send heartbeats, which stop no other node.

Checkers that share no code with the product: a fold of their own over the stored records, to which every file must be
equal at the position it has reached, and which must contain a message before its publisher gets the confirm. At the end
one node is active, everything published is confirmed and was delivered, QoS 2 once and all in order, and the files of
all nodes are equal. In some seeds retention deletes messages; then the remaining ones were delivered, and if it deletes
for all topics alike, the reader was notified of at least as many lost ones as it has not received.

In some seeds the engine breaks a promise. Then at least one node must be stopped, or nothing is lost; and nodes that
are not stopped have no different files.
"""

from __future__ import annotations

import struct
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Committed, Failed, Found, Locate, Located, Losing, Read
from godwit.broker.settings import Settings
from godwit.client import events as client_events
from godwit.client.config import ClientConfig
from godwit.client.protocol import ClientProtocol
from godwit.client.publisher import Publisher
from godwit.client.subscription import Subscription
from godwit.cluster.engine import EngineReport
from godwit.cluster.replica import AppliedCut, FailedAppend, Replica, ReplicaAnswer
from godwit.cluster.values import NodeConfig, State
from godwit.errors import DiskError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.server.server import Server, endpoint_config
from godwit.store.block import decode_block
from godwit.store.port import Store
from godwit.store.replica import ReplicaStore
from godwit.store.retention import Retention, RetentionRule
from godwit.wire.batch import Entry, payloads_of
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch
from godwit_sim.checkers import ViolationError
from godwit_sim.cluster_engine import VIOLATIONS, EngineLink, EngineModel
from godwit_sim.disk import DiedError, Disk
from godwit_sim.network import Host, LivelockError, Network, Trace
from godwit_sim.worlds.broker_harness import EPOCH_US, NodeAdapter
from godwit_sim.worlds.durable import DIED, PATH, CrashableAdapter

NODES: Final = 3
FAULTS_S: Final = 40.0
PATIENCE_S: Final = 60.0
ACTIVE_S: Final = 30.0
"""After the last fault a node is active within this time."""
STEP_S: Final = 0.25
RESET_KEY: Final = b"reset key of the cluster of this world"
FAULTS: Final = (
    "kill", "kill", "kill active", "kill active", "write", "full", "pause", "pause active", "engine", "engine active",
    "clients", "both", "majority", "leader", "leader", "copy", "old", "handover",
)  # fmt: skip
RULES: Final = (
    (RetentionRule(max_age_s=4.0),),
    (RetentionRule("data/client0", max_bytes=20_000), RetentionRule(max_age_s=12.0)),
    (RetentionRule(max_bytes=400_000),),
)
_HEAD: Final = struct.Struct(">BBQQI")


class FoldChecker:
    """The records that count, decided once more."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, ...]] = []
        """The rows of the table `blocks`."""
        self.payloads: Counter[bytes] = Counter()
        self.history: list[tuple[int, list[tuple[Any, ...]], list[Any]]] = []
        """Position, blocks and cuts of each record that counts."""
        self.claims: list[tuple[int, str]] = []
        self.cuts = 0
        self._epoch = self._number = self._check = 0
        self._is_resigned = False
        self._parts = b""

    def add(self, position: int, data: bytes) -> None:
        """Take the next stored record."""
        kind, flags, epoch, number, link = _HEAD.unpack_from(data)
        body, check = data[_HEAD.size : -4], int.from_bytes(data[-4:], "little")
        if (number, link) != (self._number + 1, self._check):
            return
        if epoch <= self._epoch if kind == 1 else (epoch != self._epoch or self._is_resigned):
            return
        self._epoch, self._number, self._check = epoch, number, check
        if kind in (1, 3):
            self._parts = b""
            self._is_resigned = kind == 3
            if kind == 1:
                self.claims.append((position, msgspec.msgpack.decode(body)[1]))
            return
        self._parts += body
        if flags:
            return
        blocks, _ = msgspec.msgpack.decode(self._parts)
        self._parts = b""
        if kind == 4:
            self.history.append((position, [], blocks))
            self.cuts += 1
            return
        self.history.append((position, [tuple(block) for block in blocks], []))
        for block in blocks:
            self.blocks.append(tuple(block))
            for _, entry in decode_block(block[6]):
                self.payloads.update(payloads_of(entry))

    def rows_at(self, position: int) -> dict[int, tuple[tuple[Any, ...] | None, list[tuple[int, Entry]]]]:
        """Return the blocks by offset after the record at a position: as a row, unless it was rewritten; entries."""
        found: dict[int, tuple[tuple[Any, ...] | None, list[tuple[int, Entry]]]] = {}
        for at, blocks, cuts in self.history:
            if at > position:
                break
            for block in blocks:
                found[block[0]] = (block, list(decode_block(block[6])))
            for first_offset, topics in cuts:
                _, entries = found.pop(first_offset)
                if left := [] if topics is None else [one for one in entries if one[1].topic not in topics]:
                    found[left[0][0]] = (None, left)
        return found

    def left(self) -> set[bytes]:
        """Return the payloads that are not deleted."""
        rows = self.rows_at(2**63)
        return {payload for _, entries in rows.values() for _, entry in entries for payload in payloads_of(entry)}


class ClusterLog:
    """The log of the active server, see godwit.server.log: a replica that works in the same thread."""

    broker: Broker
    keeps_state = True
    held_bytes = 0

    def __init__(self, machine: Machine, replica: Replica) -> None:
        self._machine = machine
        self._replica = replica
        self._store: Store = replica.store
        self._reads: deque[Read] = deque()
        self.answers: deque[ReplicaAnswer] = deque()

    @property
    def log_id(self) -> bytes:
        return self._store.log_id

    @property
    def first_offset(self) -> int:
        return self._store.first_offset

    @property
    def next_offset(self) -> int:
        return self._store.next_offset

    @property
    def epochs(self) -> Sequence[Epoch]:
        return self._store.epochs

    def state(self) -> StoredState:
        return self._store.state()

    def begin(self, broker: Broker) -> None:
        self.broker = broker

    def append(self, effect: Append, now_us: int) -> None:
        self._replica.append(None, effect.entries, effect.changes, sum(len(entry.rest) for entry in effect.entries))
        self._machine.run_soon()

    def read(self, effect: Read) -> None:
        self._reads.append(effect)

    def locate(self, effect: Locate, now_us: int) -> None:
        self.broker.handle(Located(effect, self._store.offset_at(effect.time_us)), now_us)

    def work(self, now_us: int) -> None:
        while self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, FailedAppend):
                self.broker.handle(Failed(answer.text), now_us)
            elif isinstance(answer, AppliedCut):
                for deletion in answer.deletions:
                    self.broker.handle(Losing(deletion.entries, deletion.floor, deletion.pattern), now_us)
            else:
                self.broker.handle(Committed(answer.first_offset), now_us)
        while self._reads:
            read = self._reads.popleft()
            found = self._store.read(read.offset, read.max_bytes)
            self.broker.handle(Found(read, found.entries, found.next_offset, found.damaged), now_us)

    @property
    def is_idle(self) -> bool:
        return not self.answers and not self._reads

    @property
    def due_us(self) -> int | None:
        return None if self.is_idle else 0


class Machine:
    """One machine of the cluster through all its runs."""

    def __init__(self, world: ClusterWorld, number: int) -> None:
        self.world = world
        self.name = f"node{number}"
        self.host = world.network.add_host(Host(self.name, (f"192.0.2.{number + 1}", 50_000)))
        self.disk = Disk(Random(f"{world.seed} disk {number}"))
        self.skew_us = world.rng.choice((0, 0, -8_000_000, 8_000_000))
        self.replica: Replica | None = None
        self.link: EngineLink | None = None
        self.log: ClusterLog | None = None
        self.server: Server | None = None
        self.is_cut = False
        self.paused_until = 0.0
        self.copy: Disk | None = None
        self.texts: list[str] = []
        """Why it was stopped."""
        self._reports: list[EngineReport] = []
        self._runs = 0
        self._is_scheduled = False
        self._timer_at: float | None = None

    @property
    def state(self) -> State | None:
        """The state of its node; None if it does not run."""
        return None if self.replica is None else self.replica.node.state

    @property
    def now_us(self) -> int:
        return EPOCH_US + self.skew_us + int(self.world.network.now * 1e6)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.replica is not None:
            return
        world = self.world
        self._runs += 1
        rng = Random(f"{world.seed} {self.name} run {self._runs}")
        try:
            store = ReplicaStore.open(PATH, new_log_id=rng.randbytes(16), now_us=self.now_us, vfs=self.disk.vfs_name)
        except (DiedError, Exception) as error:
            if self.disk.is_dead:
                self.disk.kill()
            elif not isinstance(error, DiskError):
                raise
            world.network.at(world.network.now + 0.3, self.start)
            return
        world.check_file(self.name, store)
        self.replica = Replica(world.config(self.name), store, entropy=rng.randbytes, now=world.network.now)
        self._reports.clear()
        self.link = EngineLink(world.engine, self._on_report)
        self.link.cut(self.is_cut)
        self._timer_at = None
        self.run_soon()

    def end(self, *, loses_power: bool) -> None:
        """Kill the process, or cut the power of its machine."""
        replica, self.replica = self.replica, None
        if replica is None:
            return
        self.world.deaths += 1
        self._close_server()
        assert self.link is not None
        self.link.close()
        self.disk.die()
        replica.store.close()
        if loses_power and not self.disk.has_lost_writes:
            self.disk.cut_power()
        else:
            self.disk.kill()

    def pause(self, until: float) -> None:
        """Stop the process until then, without its knowledge."""
        self.paused_until = max(self.paused_until, until)
        self.world.network.pause(self.host, until)

    # -- turns --------------------------------------------------------------------------------------------------------

    def _on_report(self, report: EngineReport) -> None:
        self._reports.append(report)
        self.run_soon()

    def run_soon(self) -> None:
        """Run a turn of the node at this time, after the present event."""
        if not self._is_scheduled:
            self._is_scheduled = True
            network = self.world.network
            network.at(max(network.now, self.paused_until), self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        network = self.world.network
        if self.replica is None:
            return
        if network.now < self.paused_until:
            self.run_soon()
            return
        try:
            self._turn(self.replica, network.now)
        except (DiedError, Exception):
            if not self.disk.is_dead:
                raise
        if self.disk.is_dead:
            self._die()
            return
        due = self.replica.next_timer()
        if due != self._timer_at:
            self._timer_at = due
            network.at(due, self._ring, due, self._runs)

    def _ring(self, due: float, run: int) -> None:
        if self._timer_at == due and self._runs == run:
            self._timer_at = None
            self.run_soon()

    def _turn(self, replica: Replica, now: float) -> None:
        node = replica.node
        reports, self._reports = self._reports, []
        for report in reports:
            node.handle(report, now)
        answers = replica.work(now)
        for event in node.poll_events():
            self.world.network.trace.note(now, f"{self.name} {event.state}: {event.text}")
            if event.state == "stopped":
                self.texts.append(event.text)
        if node.state != "active":
            self._close_server()
            if node.is_closing:
                node.handle_closed()
                self.run_soon()
        elif self.server is None and node.may_propose:
            self._open_server(replica)
        assert self.link is not None
        for request in node.poll_requests():
            self.link.send(request)
        if self.log is not None and answers:
            self.log.answers.extend(answers)
            self.world.network.pump(self.host)

    def _die(self) -> None:
        network = self.world.network
        self.end(loses_power=self.world.rng.random() < 0.5)
        network.at(network.now + self.world.rng.uniform(0.01, 3.0), self.start)

    # -- the broker ---------------------------------------------------------------------------------------------------

    def _open_server(self, replica: Replica) -> None:
        world = self.world
        world.takeovers += 1
        self.log = ClusterLog(self, replica)
        if world.rules:
            retention = Retention(replica.store, world.rules)
            replica.change_retention(retention, lambda: max(self.now_us, replica.store.last_received_us))
        settings = Settings()
        self.server = Server(
            settings,
            self.log,
            entropy=Random(f"{world.seed} {self.name} server {world.takeovers}").randbytes,
            now=self.host.clock(world.network.now),
            epoch_us=max(self.now_us, replica.store.last_received_us),
        )
        config = replace(endpoint_config(settings, receive_buffer_bytes=212_992), reset_key=RESET_KEY)
        listener = self.server.listen(config)
        world.network.start(self.host, CrashableAdapter(listener, self.disk), self._on_server_events)

    def _on_server_events(self, events: Any, now: float) -> None:
        if events == [DIED]:
            self._die()

    def _close_server(self) -> None:
        server, self.server, self.log = self.server, None, None
        if server is None or not self.host.alive:
            return
        network = self.world.network
        if self.replica is not None and network.now >= self.paused_until:
            clock = self.host.clock(network.now)
            server.close(clock)
            node = self.host.node
            for train in node.trains(clock) if node is not None else ():
                for datagram in train.datagrams():
                    network.inject(self.host, self.host.address, train.address, datagram)
        network.kill(self.host)

    def hand_over(self) -> None:
        """Close the broker and resign."""
        replica = self.replica
        if replica is not None and replica.node.may_propose and replica.is_idle:
            self._close_server()
            replica.node.resign(
                self.world.rng.choice(("", *(one.name for one in self.world.machines))), replica.node._now
            )
            self.run_soon()


class ClusterClient:
    """A client that publishes numbered messages, or reads them."""

    def __init__(self, world: ClusterWorld, number: int, qos: int) -> None:
        self.world = world
        self.name = f"client{number}"
        self.qos = qos
        self.host = world.network.add_host(Host(self.name, (f"198.51.100.{number + 1}", 40_000)))
        label = f"{world.seed} {self.name}"
        self.client = ClientProtocol(
            ClientConfig(name=self.name), entropy=Random(f"{label} e").randbytes, random=Random(f"{label} r")
        )
        self.publisher: Publisher | None = None
        self.subscription: Subscription | None = None
        self.sent: list[bytes] = []
        self.confirmed = 0
        self.received: list[tuple[int, bytes]] = []
        self.missed = 0

    def start(self) -> None:
        """Connect, and subscribe if it is a reader."""
        network = self.world.network
        self.client.connect([one.host.address for one in self.world.machines], self.host.clock(network.now))
        if self.qos:
            self.publisher = self.client.publisher(f"data/{self.name}", qos=self.qos)
        else:
            self.subscription = self.client.subscribe(["#"], start="earliest", cursor="reader")
        network.start(self.host, NodeAdapter(self.client), self._on_events)

    def publish(self) -> None:
        """Publish a few messages."""
        if self.publisher is None or len(self.sent) - self.confirmed > 400:
            return
        rng = self.world.rng
        for _ in range(rng.choice((1, 1, 3, 20))):
            payload = b"%s %d %s" % (self.name.encode(), len(self.sent), b"." * rng.choice((0, 30, 3000)))
            self.sent.append(payload)
            retain = rng.random() < 0.02
            self.publisher.send(payload, published_us=EPOCH_US + int(self.world.network.now * 1e6), retain=retain)
        self.world.network.pump(self.host)

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            match event:
                case client_events.Confirmed():
                    self._on_confirmed(event.sequence)
                case client_events.Available():
                    self._take()
                case client_events.SubscriptionStarted() if self.world.due is None:
                    self.world.due = self.world.fold.left()
                case client_events.Missed() if self.world.rules and event.count is not None:
                    self.missed += event.count
                case client_events.Refused() | client_events.Missed() | client_events.SubscriptionEnded():
                    self.world.report("client", f"{self.name}: {type(event).__name__} {event}")
                case client_events.Ended():
                    self.world.report("client", f"{self.name} ended: {event.reason}")
                case _:
                    pass

    def _on_confirmed(self, sequence: int) -> None:
        """Every confirmed message must be in the replicated log by now."""
        for payload in self.sent[self.confirmed : sequence]:
            if not self.world.fold.payloads[payload]:
                self.world.report("confirm", f"{payload[:30]!r} is confirmed and does not count")
        self.confirmed = max(self.confirmed, sequence)

    def _take(self) -> None:
        assert self.subscription is not None
        while (messages := self.subscription.take()) is not None:
            for message in messages:
                self.received.append((message.offset or 0, bytes(message.payload)))


class ClusterWorld:
    """One seed, from its start to its end."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.rng = rng = Random(f"cluster {seed}")
        self.network = Network(trace)
        self.engine = EngineModel(self.network, Random(f"{seed} engine"), is_conditional=rng.random() < 0.8)
        self.engine.strangers = Random(f"{seed} strangers") if seed % 3 == 1 else None
        self.fold = FoldChecker()
        self.engine.on_stored = self._on_stored
        self.violation = rng.choice(VIOLATIONS) if rng.random() < 0.2 else None
        """The promise that the engine breaks."""
        self.is_violated = False
        self.keep_bytes = rng.choice((10**9, 10**9, 100_000))
        """Few make nodes that were away stop, and be seeded."""
        has_rules = self.violation is None and seed % 5 < 2
        self.rules = Random(f"{seed} retention").choice(RULES) if has_rules else ()
        self.deaths = self.takeovers = self.seeds = 0
        self.is_healed = False
        self.due: set[bytes] | None = None
        """The messages that the reader has to receive, or to miss: those since its start, and the ones there then."""
        self.last_at = 0.0
        """When the last messages are published, with retention."""
        self.machines = [Machine(self, number) for number in range(NODES)]
        qos = [1, 2, rng.choice((1, 2)), 0]
        self.clients = [ClusterClient(self, number, one) for number, one in enumerate(qos)]
        loss = rng.choice((0.0, 0.0, 0.02))
        for client in self.clients:
            for machine in self.machines:
                for source, destination in ((client.host, machine.host), (machine.host, client.host)):
                    link = ImpairedLink(
                        LinkSettings(delay_s=0.002, loss=loss), Random(f"{seed} {source.name} {destination.name}")
                    )
                    self.network.join(source, destination, link)

    def config(self, name: str) -> NodeConfig:
        """Return the configuration of a node."""
        return NodeConfig(name=name, address=f"udp://{name}", keep_bytes=self.keep_bytes)

    def report(self, kind: str, text: str) -> None:
        """Report a violation, unless the engine has broken a promise."""
        if not self.is_violated:
            raise ViolationError(kind, text)

    def _on_stored(self, position: int, data: bytes) -> None:
        if not self.is_violated:
            known = len(self.fold.blocks)
            self.fold.add(position, data)
            if self.due is not None:
                for block in self.fold.blocks[known:]:
                    self.due.update(payload for _, entry in decode_block(block[6]) for payload in payloads_of(entry))
        self.network.trace.note(self.network.now, f"stored {position} of {len(data)} bytes")

    def check_file(self, name: str, store: ReplicaStore) -> None:
        """A file must have the blocks that the records up to its position have made."""
        if self.is_violated:
            return
        expected = self.fold.rows_at(store.place.position)
        rows: list[tuple[Any, ...]] = dump(store)["blocks"]
        for row in rows:
            block, entries = expected.pop(row[0], (None, []))
            if list(decode_block(row[6])) != entries if block is None else row != block:
                raise ViolationError("file", f"the block at offset {row[0]} of {name} differs from the records")
        if expected:
            raise ViolationError("file", f"the file of {name} lacks {len(expected)} blocks that count")

    def run(self) -> None:
        """Run the seed. Raises ViolationError, or any exception from the code under test."""
        network, rng = self.network, self.rng
        for machine in self.machines:
            network.at(rng.uniform(0.0, 1.0), machine.start)
        for client in self.clients:
            network.at(rng.uniform(0.0, 2.0), client.start)
        at = 2.0
        while at < FAULTS_S:
            network.at(at, rng.choice(self.clients).publish)
            at += rng.choice((0.001, 0.01, 0.05, 0.3))
        for _ in range(rng.randrange(3, 24)):
            network.at(rng.uniform(1.0, FAULTS_S), self._fault, rng.choice(FAULTS))
        if self.violation is not None:
            network.at(rng.uniform(8.0, FAULTS_S), self._violate)
        network.run(FAULTS_S)
        self._heal()
        self._settle()
        self._check()

    # -- faults -------------------------------------------------------------------------------------------------------

    def _fault(self, kind: str) -> None:
        network, rng = self.network, self.rng
        machine = rng.choice(self.machines)
        if kind.endswith(" active"):
            machine = next((one for one in self.machines if one.state == "active"), machine)
            kind = kind.removesuffix(" active")
        network.trace.note(network.now, f"fault {kind} {machine.name}")
        lasts_s = rng.choice((0.05, 1.0, 4.0, 9.0))
        until = network.now + lasts_s
        if kind == "kill":
            machine.end(loses_power=rng.random() < 0.5)
            network.at(until, machine.start)
        elif kind == "write":
            machine.disk.die_in(rng.randrange(40))
        elif kind == "full":
            machine.disk.trouble = "full"
            network.at(until, self._end_trouble, machine)
        elif kind == "pause":
            machine.pause(until)
        elif kind in ("engine", "clients", "both"):
            self._cut(machine, kind, True)
            network.at(until, self._cut, machine, kind, False)
        elif kind == "majority":
            self.engine.set_majority(False)
            network.at(until, self.engine.set_majority, True)
        elif kind == "leader":
            self.engine.change_leader()
        elif kind == "copy":
            if machine.replica is not None and not machine.disk.has_lost_writes:
                machine.copy = machine.disk.copy(Random(f"{self.seed} copy {machine.name}"))
        elif kind == "old" and machine.copy is not None and self._have_all(machine):
            self._put_back(machine, machine.copy)
            machine.copy = None
        elif kind == "handover":
            for one in self.machines:
                one.hand_over()

    def _have_all(self, apart_from: Machine) -> bool:
        """Whether the engine, together with another node that runs, has all records."""
        others = [one.replica for one in self.machines if one is not apart_from and one.replica is not None]
        return self.engine.first == 1 or any(
            one.store.place.position >= self.engine.first for one in others if one.node.state != "stopped"
        )

    def _end_trouble(self, machine: Machine) -> None:
        machine.disk.trouble = None

    def _cut(self, machine: Machine, kind: str, is_cut: bool) -> None:
        if kind in ("engine", "both"):
            machine.is_cut = is_cut
            if machine.link is not None:
                machine.link.cut(is_cut)
        if kind in ("clients", "both"):
            for client in self.clients:
                (self.network.partition if is_cut else self.network.heal)(client.host, machine.host)

    def _put_back(self, machine: Machine, disk: Disk) -> None:
        """Replace the folder of a machine by a copy."""
        machine.end(loses_power=False)
        machine.disk.trouble = None
        machine.disk.restore(disk)
        machine.start()

    def _violate(self) -> None:
        assert self.violation is not None
        if self.engine.violate(self.violation):
            self.is_violated = True
            self.network.trace.note(self.network.now, f"violation {self.violation}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.is_healed = True
        self.engine.faults.heal()
        self.engine.set_majority(True)
        for machine in self.machines:
            machine.disk.trouble = None
            machine.disk.die_in(None)
            machine.paused_until = 0.0
            machine.host.paused_until = 0.0
            self._cut(machine, "both", False)
            machine.start()
        for pair in self.network.links.values():
            pair.change(LinkSettings(delay_s=0.002))
        self.last_at = self.network.now + ACTIVE_S / 2
        if self.rules:  # a gap is reported before the next message, so there must be one
            for client in self.clients:
                self.network.at(self.last_at, client.publish)
        self.network.trace.note(self.network.now, "healed")

    def _settle(self) -> None:
        network = self.network
        begin = network.now
        while True:
            self._seed_trimmed()
            problem = self._unsettled()
            if not problem or (self.is_violated and network.now >= begin + ACTIVE_S):
                return
            if network.now >= begin + ACTIVE_S and not any(one.state == "active" for one in self.machines):
                raise ViolationError("liveness", f"no node is active {ACTIVE_S:g} s after the last fault")
            if network.now >= begin + PATIENCE_S:
                raise ViolationError("liveness", f"{problem}, {PATIENCE_S:g} s after the last fault")
            network.run(network.now + STEP_S)

    def _seed_trimmed(self) -> None:
        """Seed nodes that were away for too long, as an operator does."""
        for machine in self.machines:
            if machine.state == "stopped" and "seed it" in machine.texts[-1].lower() and not self.is_violated:
                source = next((one for one in self.machines if one.state == "active"), None)
                if source is not None and not source.disk.has_lost_writes:
                    self.seeds += 1
                    self._put_back(machine, source.disk.copy(Random(f"{self.seed} seed {self.seeds}")))

    def _unsettled(self) -> str:
        active = [one for one in self.machines if one.state == "active" and one.server is not None]
        if len(active) != 1:
            return f"the nodes are {[one.state for one in self.machines]}"
        positions = [one.replica.store.place.position for one in self.machines if one.replica is not None]
        if len(positions) != NODES or len(set(positions)) != 1:
            return f"the nodes are at {positions}"
        for client in self.clients:
            if client.publisher is not None and client.confirmed < len(client.sent):
                return f"{client.name} has {client.confirmed} of {len(client.sent)} confirms"
        reader = self.clients[-1]
        received = {payload for _, payload in reader.received}
        if self.rules and self.network.now < self.last_at:
            return "the last messages are not published"
        if self.due is None:
            return "the subscription of the reader has not started"
        due = self.due
        if len(due & received) + reader.missed < len(due):
            return f"the reader has {len(due & received)} of {len(due)} messages, {reader.missed} missed"
        if self.rules and not self.fold.left() <= received:
            return "the reader has not received all messages that are left"
        return ""

    def _check(self) -> None:
        stores = [one.replica.store for one in self.machines if one.replica is not None and one.state != "stopped"]
        if self.is_violated:
            if len(stores) == NODES and self._unsettled():
                raise ViolationError("engine", f"after {self.violation} no node is stopped: {self._unsettled()}")
            self._check_no_difference(stores)
            return
        for machine in self.machines:
            if machine.state == "stopped":
                raise ViolationError("stopped", f"{machine.name} is stopped: {machine.texts[-1]}")
        contents = [dump(store) for store in stores]
        for machine, content in zip(self.machines[1:], contents[1:], strict=True):
            for table, rows in content.items():
                if rows != contents[0][table]:
                    raise ViolationError("file", f"the table {table} of {machine.name} is not that of node0")
        for machine, store in zip(self.machines, stores, strict=True):
            self.check_file(machine.name, store)
        self._check_messages()

    def _check_messages(self) -> None:
        order = [
            payload
            for block in self.fold.blocks
            for _, entry in decode_block(block[6])
            for payload in payloads_of(entry)
        ]
        for client in self.clients[:-1]:
            mine = [payload for payload in order if payload.startswith(client.name.encode() + b" ")]
            if client.qos == 2 and mine != client.sent:
                raise ViolationError(
                    "qos 2", f"{client.name} has sent {len(client.sent)} messages, {len(mine)} are in the log"
                )
            if list(dict.fromkeys(mine)) != client.sent:
                raise ViolationError("order", f"the messages of {client.name} are missing or out of order")
        received = list(dict.fromkeys(self.clients[-1].received))
        if sorted(received) != received:
            raise ViolationError("order", "the reader has received messages out of order")

    def _check_no_difference(self, stores: Sequence[ReplicaStore]) -> None:
        """Files of nodes that are not stopped must be prefixes of each other."""
        tables = sorted((dump(store)["blocks"] for store in stores), key=len)
        for shorter, longer in pairwise(tables):
            if shorter != longer[: len(shorter)]:
                raise ViolationError(
                    "engine", f"after {self.violation} two nodes have different files and are not stopped"
                )

    def summary(self) -> str:
        """Return a summary in a few words."""
        sent = sum(len(one.sent) for one in self.clients)
        confirmed = sum(one.confirmed for one in self.clients)
        void = len(self.engine.records) - self.fold._number
        return (
            f"{sent} messages, {confirmed} confirmed, {len(self.fold.claims)} claims, {void} void records, "
            f"{self.takeovers} takeovers, {self.deaths} deaths, {self.seeds} seeds, {self.fold.cuts} cuts, "
            f"{self.clients[-1].missed} missed, violation {self.violation}, "
            f"{self.network.now:.0f} s, {self.network.trace.notes} notes"
        )


def dump(store: ReplicaStore) -> dict[str, list[tuple[Any, ...]]]:
    """Return all tables of a file."""
    tables = ("blocks", "state", "marks", "epochs", "meta")
    return {name: store.connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in tables}


def run_cluster(seed: int, trace: Trace) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    world = ClusterWorld(seed, trace)
    violation: str | None = None
    try:
        world.run()
    except ViolationError as error:
        violation = f"at {world.network.now:.6f} s: {error}"
    except LivelockError as error:
        violation = f"at {world.network.now:.6f} s: unrest: {error}"
    except Exception:  # any exception from the code under test is a violation
        violation = f"at {world.network.now:.6f} s: an exception escaped:\n{traceback.format_exc()}"
    finally:
        for machine in world.machines:
            if machine.replica is not None:
                machine.disk.die()  # closing then writes nothing
                machine.replica.store.close()
    if violation is not None:
        world.network.trace.note(world.network.now, f"VIOLATION {violation}")
    return violation, world.summary()
