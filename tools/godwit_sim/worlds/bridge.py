"""The bridge world: the log of an edge is relayed to a hub, and both die, lose their disks' writes and are restored.

The edge is a log on a simulated disk with the shipped sender, to which messages are appended directly; the hub is the
shipped server on another disk. Both are killed or lose power, at any write in the case of the hub; the hub's disk is
full for a while; either log may be replaced by an older copy of itself; retention deletes messages of the edge before
they were sent; the network loses packets and is cut.

At the end, the hub has every message of the edge's log once and in order, with its origin, except the ranges that it
has reported as gaps on `$relay/edge`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from godwit.broker.settings import Settings
from godwit.client.config import ClientConfig
from godwit.client.protocol import ClientProtocol
from godwit.client.relay import LogPiece, RelaySender
from godwit.errors import DiskError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.limits import KIB
from godwit.server.direct_log import DirectLog
from godwit.server.server import Server, endpoint_config
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.transport.events import Train
from godwit.wire.batch import Entry, extension_of, make_entry, payloads_of
from godwit.wire.extension import decode_properties
from godwit.wire.retention_floors import lost_below
from godwit_sim.checkers import ViolationError
from godwit_sim.disk import DiedError, Disk
from godwit_sim.network import Host, LivelockError, Network, Trace
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker_harness import EPOCH_US, NodeAdapter
from godwit_sim.worlds.durable import DIED, PATH, CrashableAdapter

LINK: Final = "edge"
FILTERS: Final = ("plant/#",)
PREFIX: Final = "site/"
TOPICS: Final = ("plant/a", "plant/b", "noise")
"""The last one is not relayed."""
FAULTS_S: Final = 40.0
PATIENCE_S: Final = 120.0
STEP_S: Final = 0.25
MAX_MESSAGE_BYTES: Final = 8 * KIB
"""Small, so that batches of the edge are cut for the hub."""


class EdgeNode(NodeAdapter):
    """The client of the edge: it reads the log whenever the sender wants that."""

    def __init__(self, world: BridgeWorld, client: ClientProtocol, sender: RelaySender, store: SqliteStore) -> None:
        super().__init__(client)
        self._world = world
        self._sender = sender
        self._store = store
        self._next_train = client.next_train

    def trains(self, now: float) -> Sequence[Train]:
        self.read(now)
        return list(iter(lambda: self._next_train(now), None))

    def read(self, now: float) -> None:
        """Hand the log to the sender, as far as it accepts it."""
        sender, store = self._sender, self._store
        sender.end = max(sender.end, store.next_offset)
        while (wanted := sender.wanted_read()) is not None and wanted[0] < store.next_offset:
            offset, max_bytes = wanted
            found = store.read(offset, max_bytes // 8)
            floors = store.state().retention_floors
            gone_below = lost_below(floors, FILTERS) if floors else store.first_offset
            piece = LogPiece(offset, found.entries, found.next_offset, found.damaged, gone_below, store.next_offset)
            sender.handle_read(piece, now, self._world.now_us)


class BridgeWorld:
    """One seed, from its start to its end."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.rng = Random(f"bridge {seed}")
        self.network = network = Network(trace)
        self.edge = network.add_host(Host("edge", ("192.0.2.1", 40_000)))
        self.hub = network.add_host(Host("hub", ("192.0.2.2", 50_000)))
        loss = self.rng.choice((0.0, 0.01, 0.1))
        for source, destination in ((self.edge, self.hub), (self.hub, self.edge)):
            settings = LinkSettings(delay_s=self.rng.choice((0.001, 0.02, 0.15)), loss=loss)
            network.join(source, destination, ImpairedLink(settings, Random(f"{seed} {source.name}")))
        self.edge_disk = Disk(Random(f"{seed} edge disk"))
        self.hub_disk = Disk(Random(f"{seed} hub disk"))
        self._edge_store: SqliteStore | None = None
        self._hub_store: SqliteStore | None = None
        self._sender: RelaySender | None = None
        self._node: EdgeNode | None = None
        self._openings = 0
        self._number = 0
        self.messages: dict[int, tuple[str, bytes]] = {}
        """The edge's log: topic and payload by offset. Deleted ones are in it until they need not be reported."""
        self._gone: frozenset[int] = frozenset()
        """The offsets of deleted ones."""
        self._copies: dict[str, tuple[Disk, dict[int, tuple[str, bytes]], frozenset[int]]] = {}
        self.deaths = self.restores = self.deleted = 0
        self.is_healed = False

    @property
    def now_us(self) -> int:
        """The wall clock of both machines."""
        return EPOCH_US + int(self.network.now * 1e6)

    def run(self) -> None:
        """Run the seed. Raises ViolationError, or any exception from the code under test."""
        self._start_hub()
        self._start_edge()
        network, rng = self.network, self.rng
        at = 0.0
        while at < FAULTS_S:
            network.at(at, self._append)
            at += rng.choice((0.01, 0.05, 0.3, 2.0))
        for _ in range(rng.randrange(4, 14)):
            network.at(rng.uniform(0.5, FAULTS_S), self._fault)
        network.run(FAULTS_S)
        self._heal()
        deadline = network.now + PATIENCE_S
        while problem := self._unsettled():
            if network.now >= deadline:
                raise ViolationError("liveness", f"{problem}, {PATIENCE_S:g} s after the last fault")
            network.run(network.now + STEP_S)
        self._check()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _open(self, disk: Disk) -> SqliteStore:
        self._openings += 1
        new_id = Random(f"{self.seed} opening {self._openings}").randbytes(16)
        return SqliteStore.open(PATH, new_log_id=new_id, now_us=self.now_us, vfs=disk.vfs_name)

    def _start_edge(self) -> None:
        if self._edge_store is not None:
            return
        store = self._edge_store = self._open(self.edge_disk)
        label = f"{self.seed} edge {self._openings}"
        sender = self._sender = RelaySender(FILTERS, PREFIX, store.log_id, store.epochs)
        sender.end = store.next_offset
        entropy = Random(f"{label} entropy").randbytes
        client = ClientProtocol(
            ClientConfig(name=LINK, session_expiry_s=0),
            entropy=entropy,
            random=Random(f"{label} random"),
            relay=sender,
            sealer=sealer_of_world(entropy),
        )
        client.connect([self.hub.address], self.edge.clock(self.network.now))
        self._node = EdgeNode(self, client, sender, store)
        self.network.start(self.edge, self._node, lambda events, now: None)
        self.network.pump(self.edge)

    def _end_edge(self) -> None:
        store, self._edge_store = self._edge_store, None
        if self.edge.alive:
            self.network.kill(self.edge)
        self.edge_disk.die()
        if store is not None:
            store.close()
        if self.rng.random() < 0.5:
            self.edge_disk.cut_power()
        else:
            self.edge_disk.kill()
        self.deaths += 1

    def _start_hub(self) -> None:
        if self._hub_store is not None:
            return
        try:
            store = self._hub_store = self._open(self.hub_disk)
        except (DiedError, Exception) as error:
            if self.hub_disk.is_dead:
                self._end_hub()
            elif not isinstance(error, DiskError):
                raise
            self.network.at(self.network.now + 0.3, self._start_hub)
            return
        settings = Settings(max_message_bytes=MAX_MESSAGE_BYTES)
        entropy = Random(f"{self.seed} hub {self._openings}").randbytes
        now = self.hub.clock(self.network.now)
        sealer = sealer_of_world(entropy)
        server = Server(settings, DirectLog(store), entropy=entropy, now=now, epoch_us=self.now_us, sealer=sealer)
        config = endpoint_config(settings, receive_buffer_bytes=212_992)
        listener = server.listen(replace(config, reset_key=b"reset key of the hub in this world"))
        self.server = server
        self._forget_unpromised()
        self.network.start(self.hub, CrashableAdapter(listener, self.hub_disk), self._on_hub_events)

    def _on_hub_events(self, events: Any, now: float) -> None:
        if events == [DIED]:
            self._end_hub()
            self.network.at(self.network.now + self.rng.uniform(0.01, 3.0), self._start_hub)

    def _end_hub(self) -> None:
        store, self._hub_store = self._hub_store, None
        if self.hub.alive:
            self.network.kill(self.hub)
        self.hub_disk.die()
        if store is not None:
            store.close()
        if self.rng.random() < 0.5 and not self.hub_disk.has_lost_writes:
            self.hub_disk.cut_power()
        else:
            self.hub_disk.kill()
        self.deaths += 1

    # -- the plant, and faults ----------------------------------------------------------------------------------------

    def _append(self) -> None:
        """Append batches to the edge's log, as its broker does."""
        store, rng = self._edge_store, self.rng
        if store is None:
            return
        entries: list[Entry] = []
        offset = store.next_offset
        for _ in range(rng.choice((1, 1, 2, 5))):
            topic = rng.choice(TOPICS)
            payloads = []
            for _ in range(rng.choice((1, 1, 3, 40))):
                payload = b"%d %s" % (self._number, b"." * rng.choice((0, 20, 1000)))
                if rng.random() < 0.005:
                    payload += b"-" * MAX_MESSAGE_BYTES  # longer than the hub accepts
                self._number += 1
                payloads.append(payload)
                self.messages[offset] = topic, payload
                offset += 1
            qos, retain = rng.choice((1, 2)), rng.random() < 0.2
            entries.append(make_entry(topic, "sensor", payloads, qos=qos, retain=retain, now_us=self.now_us))
        store.append(entries)
        if self.edge.alive:
            self.network.pump(self.edge)

    def _fault(self) -> None:
        network, rng = self.network, self.rng
        kind = rng.choice(
            ("edge", "edge", "hub", "hub", "hub call", "hub call", "full", "cut", "delete", "copy", "old")
        )
        network.trace.comment(network.now, f"fault {kind}")
        down_s = rng.uniform(0.01, 4.0)
        if kind == "edge":
            self._end_edge()
            network.at(network.now + down_s, self._start_edge)
        elif kind == "hub" and self._hub_store is not None:
            self._end_hub()
            network.at(network.now + down_s, self._start_hub)
        elif kind == "hub call":
            self.hub_disk.die_in(rng.randrange(30))
        elif kind == "full":
            self.hub_disk.trouble = "full"
            network.at(network.now + down_s, self._end_trouble)
        elif kind == "cut":
            network.partition(self.edge, self.hub)
            network.at(network.now + down_s, network.heal, self.edge, self.hub)
        elif kind == "delete":
            self._delete()
        elif kind == "copy":
            self._copies["edge"] = self.edge_disk.copy(Random(f"{self.seed} copy")), dict(self.messages), self._gone
            if self._hub_store is not None and not self.hub_disk.has_lost_writes:
                self._copies["hub"] = self.hub_disk.copy(Random(f"{self.seed} copy")), {}, frozenset()
        elif kind == "old":
            self._restore(rng.choice(("edge", "hub")))

    def _end_trouble(self) -> None:
        self.hub_disk.trouble = None

    def _delete(self) -> None:
        """Let retention delete the older half of the edge's log."""
        store = self._edge_store
        if store is None or not store.next_offset:
            return
        size_bytes = max(1, sum(len(payload) for _, payload in self.messages.values()) // 2)
        retention = Retention(store, [RetentionRule("plant/#", max_bytes=size_bytes)])
        while retention.step(self.now_us) is not None:
            pass
        there: set[int] = set()
        for offset, entry in store.read(0, 1 << 40).entries:
            there.update(range(offset, offset + entry.count))
        gone = frozenset(self.messages.keys() - there)
        self.deleted += len(gone - self._gone)
        self._gone = gone
        self._forget_unpromised()

    def _forget_unpromised(self) -> None:
        """Messages that were deleted before the hub had anything of the log are not missed."""
        if not any(mark.stored for mark in self.server.broker.relays._marks.values()):
            self.messages = {offset: one for offset, one in self.messages.items() if offset not in self._gone}
            self._gone = frozenset()

    def _restore(self, side: str) -> None:
        """Replace a log by the copy of it that was made before."""
        if side not in self._copies:
            return
        disk, messages, gone = self._copies.pop(side)
        self.restores += 1
        if side == "edge":
            self._end_edge()
            self.edge_disk.restore(disk)
            self.messages, self._gone = messages, gone
            self._start_edge()
        else:
            if self._hub_store is not None:
                self._end_hub()
            self.hub_disk.trouble = None
            self.hub_disk.restore(disk)
            self._start_hub()

    def _heal(self) -> None:
        self.is_healed = True
        self.hub_disk.trouble = None
        self.hub_disk.die_in(None)
        self.network.heal(self.edge, self.hub)
        for host, other in ((self.edge, self.hub), (self.hub, self.edge)):
            link = self.network.links[host.name, other.name]
            link.change(LinkSettings(delay_s=0.01))
        self._start_edge()
        self._append()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _unsettled(self) -> str:
        store, sender = self._edge_store, self._sender
        if self._hub_store is None or store is None or sender is None:
            return "a process is not running"
        if sender.state != "running":
            return f"the bridge is {sender.state}: {sender.problem}"
        if sender.confirmed != store.next_offset:
            return f"the hub has {sender.confirmed} of {store.next_offset}"
        return ""

    def _check(self) -> None:
        """Compare the hub's log with that of the edge."""
        assert self._hub_store is not None
        assert self._edge_store is not None
        log_id = self._edge_store.log_id
        found: dict[int, tuple[str, bytes]] = {}
        gaps: list[tuple[int, int]] = []
        last = -1
        for _, entry in self._hub_store.read(0, 1 << 40).entries:
            payloads = payloads_of(entry)
            if entry.topic == f"$relay/{LINK}":
                reports = map(json.loads, payloads)
                gaps += [(one["first"], one["end"]) for one in reports if one["event"] == "gap"]
                continue
            origin = decode_properties(extension_of(entry)).origin
            if origin is None or origin[0] != log_id:
                raise ViolationError("bridge", f"a message on {entry.topic} has the origin {origin}")
            for place, payload in enumerate(payloads):
                number = int(payload.split()[0])
                if number <= last:
                    raise ViolationError("bridge", f"message {number} after {last}: repeated or out of order")
                last = number
                found[origin[1] + place] = entry.topic, payload
        for offset, (topic, payload) in self.messages.items():
            if topic == TOPICS[-1]:
                continue
            if found.get(offset) == (PREFIX + topic, payload):
                continue
            if not any(first <= offset < end for first, end in gaps):
                raise ViolationError("bridge", f"offset {offset} ({payload[:20]!r}) is neither at the hub nor in a gap")
        if any(topic == PREFIX + TOPICS[-1] for topic, _ in found.values()):
            raise ViolationError("bridge", "a topic was relayed that no filter matches")
        self.relayed, self.gaps = len(found), len(gaps)

    def summary(self) -> str:
        """Return a summary in a few words."""
        return (
            f"{self._number} messages, {getattr(self, 'relayed', 0)} relayed, {self.deaths} deaths, {self.restores} "
            f"restores, {self.deleted} deleted, {getattr(self, 'gaps', 0)} gaps, {self.network.now:.0f} s, "
            f"{self.network.trace.notes} notes"
        )


def run_bridge(seed: int, trace: Trace) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    world = BridgeWorld(seed, trace)
    violation: str | None = None
    try:
        world.run()
    except ViolationError as error:
        violation = f"at {world.network.now:.6f} s: {error}"
    except LivelockError as error:
        violation = f"at {world.network.now:.6f} s: unrest: {error}"
    except Exception:  # any exception from the code under test is a violation
        violation = f"at {world.network.now:.6f} s: an exception escaped:\n{traceback.format_exc()}"
    if violation is not None:
        world.network.trace.note(world.network.now, f"VIOLATION {violation}")
    return violation, world.summary()
