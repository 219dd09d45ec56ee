"""The group world: the MQTT world with a consumer group, whose members are native and MQTT clients.

Members are killed, stall, leave and return, their connections break, and the broker is killed or loses power meanwhile.
At the end each message that was logged after the first member had joined has been processed by a member, the group has
acknowledged all of them, and while nothing fails each message is processed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from godwit.broker.settings import Settings
from godwit.client import events as client_events
from godwit.client.config import ClientConfig
from godwit.client.protocol import ClientProtocol
from godwit.client.subscription import Membership, Subscription
from godwit.impairment import LinkSettings
from godwit.mqtt.packets import V3_1_1, V5
from godwit.server.server import Server
from godwit.wire.control_base import Code
from godwit_sim.broker_log_model import Publication
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Trace
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker import observe
from godwit_sim.worlds.broker_harness import NodeAdapter
from godwit_sim.worlds.mqtt import DELAYS_S, MqttClient, MqttClientPlan, MqttPlan, MqttWorld, draw_mqtt_plan

NAME: Final = "group"
GROUP: Final = "crew"
FILTER: Final = "#"
ACK_S: Final = 3.0
"""A member that acknowledges nothing for this time is slow."""
SHARED: Final = ((f"$share/{GROUP}/{FILTER}", 1),)


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The actions of one native member."""

    begin_s: float
    pause_s: float
    """Between two reads."""
    max_in_flight: int | None
    deaths: tuple[tuple[float, float], ...]
    """When it is killed, and how long it is away."""
    stalls: tuple[tuple[float, float], ...]
    """When it stops reading, and for how long."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan of one seed."""

    mqtt: MqttPlan
    members: tuple[MemberPlan, ...]
    mqtt_members: tuple[MqttClientPlan, ...]


def draw_group_plan(seed: int) -> GroupPlan:
    """Draw the plan of this seed."""
    mqtt = draw_mqtt_plan(seed)
    rng = Random(f"group plan {seed}")
    end_s = mqtt.durable.broker.faults_end_s
    members = tuple(_draw_member(rng, end_s) for _ in range(rng.randint(1, 4)))
    return GroupPlan(
        # The other MQTT clients, and disks that refuse writes, are in the MQTT world: while the disk fails a broker
        # confirms subscriptions that it stores later, and a group that it has forgotten would look like a loss.
        replace(mqtt, clients=mqtt.clients[:1], durable=replace(mqtt.durable, disk_faults=())),
        members,
        tuple(
            MqttClientPlan(
                version=rng.choice((V3_1_1, V5)),
                delay_s=rng.choice(DELAYS_S),
                filters=SHARED,
                publications=(),
                breaks=tuple((rng.uniform(0.0, end_s), rng.random() < 0.3) for _ in range(rng.randrange(4))),
                window=1,
            )
            for _ in range(rng.randrange(3))
        ),
    )


def _draw_member(rng: Random, end_s: float) -> MemberPlan:
    def periods(most: int, longest_s: float) -> tuple[tuple[float, float], ...]:
        return tuple((rng.uniform(0.0, end_s), rng.uniform(0.0, longest_s)) for _ in range(rng.randrange(most)))

    return MemberPlan(
        begin_s=rng.uniform(0.0, end_s / 4),
        pause_s=rng.choice((0.0, 0.0, 0.01, 0.2)),
        max_in_flight=rng.choice((None, None, 1, 5)),
        deaths=periods(4, 2.0),
        stalls=periods(3, 3 * ACK_S),
    )


class NativeMember:
    """One native member through all its runs."""

    def __init__(self, world: GroupWorld, number: int, plan: MemberPlan, host: Host) -> None:
        self.world = world
        self.plan = plan
        self.host = host
        self.name = f"member-{number}"
        self.client: ClientProtocol | None = None
        self.is_online = False
        self.is_joined = False
        self.is_closing = False
        self._subscription: Subscription | None = None
        self._runs = 0
        self._stalled_until = 0.0
        self._has_read_scheduled = False

    def schedule(self) -> None:
        """Plan all actions."""
        network = self.world.network
        network.at(self.plan.begin_s, self.begin)
        for at_s, away_s in self.plan.deaths:
            network.at(at_s, self.die)
            network.at(at_s + away_s, self.begin)
        for at_s, lasts_s in self.plan.stalls:
            network.at(at_s, self._stall, at_s + lasts_s)

    def _stall(self, until_s: float) -> None:
        self._stalled_until = max(self._stalled_until, until_s)

    def begin(self) -> None:
        """Start the process, unless it runs."""
        if self.host.alive or self.is_closing:
            return
        world = self.world
        self._runs += 1
        label = f"{world.plan.seed} {self.name}.{self._runs}"
        entropy = Random(f"{label} entropy").randbytes
        self.client = client = ClientProtocol(
            ClientConfig(name=self.name),
            entropy=entropy,
            random=Random(f"{label} random"),
            sealer=sealer_of_world(entropy),
        )
        world.checkers.connections.honest.add(client.instance)
        now = self.host.clock(world.network.now)
        client.connect([world.hosts[0].address], now)
        self._subscribe()
        world.network.start(self.host, NodeAdapter(client), self._on_events)
        world.network.pump(self.host)

    def _subscribe(self) -> None:
        if self.client is not None and not self.is_closing:
            membership = Membership(GROUP, max_in_flight=self.plan.max_in_flight)
            self._subscription = self.client.subscribe([FILTER], membership=membership)

    def die(self) -> None:
        """End the process without a close."""
        if self.host.alive and not self.world.is_healed:
            self.world.network.kill(self.host)
            self.client = self._subscription = None
            self.is_online = self.is_joined = False

    def close(self) -> None:
        """Leave the broker."""
        if self.client is not None:
            self.is_closing = True
            self.client.close(self.host.clock(self.world.network.now))
            self.world.network.pump(self.host)

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            match event:
                case client_events.Online():
                    self.is_online = True
                case client_events.Offline():
                    self.is_online = self.is_joined = False
                case client_events.SubscriptionStarted():
                    self.is_joined = True
                    self.world.note_joined()
                case client_events.SubscriptionEnded():
                    if event.code != Code.STORAGE:
                        raise ViolationError(NAME, f"{self.name} was refused: {event.text}")
                    self.world.network.at(now + 0.5, self._subscribe)
                case client_events.Missed(live=False):  # those of QoS 0 may be lost
                    raise ViolationError(NAME, f"{self.name} has missed {event.count} messages")
                case client_events.Ended():
                    self.is_online = self.is_joined = False
                    if not self.is_closing:
                        raise ViolationError(NAME, f"{self.name} ended: {event.reason}")
                case client_events.Available():
                    self._read_later()
                case _:
                    pass

    def _read_later(self) -> None:
        if not self._has_read_scheduled:
            self._has_read_scheduled = True
            network = self.world.network
            pause_s = 0.0 if self.world.is_healed else self.plan.pause_s
            network.at(max(network.now + pause_s, self._stalled_until), self._read)

    def _read(self) -> None:
        """Process one record, and ask for the next."""
        self._has_read_scheduled = False
        subscription = self._subscription
        if subscription is None or self.is_closing:
            return
        if self._stalled_until > self.world.network.now:
            self._read_later()
            return
        messages = subscription.take()
        for message in messages or ():
            self.world.note_processed(message.payload)
        if messages is not None:
            self._read_later()
        self.world.network.pump(self.host)

    def wake(self) -> None:
        """End a stall."""
        self._stalled_until = 0.0
        self._has_read_scheduled = False
        self._read_later()

    def unsettled(self) -> str:
        """Describe something that is not yet as it must be."""
        return "" if self.is_online else f"{self.name} is not online"


class MqttMember(MqttClient):
    """One MQTT client that is only a member of the group."""

    world: GroupWorld

    def __init__(self, world: GroupWorld, number: int, plan: MqttClientPlan) -> None:
        super().__init__(world, number, plan)
        self.name = f"shared-{number}"

    def _handle(self, first: int, body: bytes) -> None:
        is_new = self.subscribed_at is None
        before = self.received.copy()
        super()._handle(first, body)
        if is_new and self.subscribed_at is not None:
            self.world.note_joined()
        for payload in self.received - before:
            self.world.note_processed(payload)

    def missing(self) -> Publication | None:
        return None  # other members have the rest


class GroupWorld(MqttWorld):
    """One seed, from its plan to its end."""

    def __init__(self, plan: GroupPlan, trace: Trace, server: type[Server] = Server) -> None:
        super().__init__(plan.mqtt, trace, server)
        self.is_healed = False
        self.joined_at: int | None = None
        """The end of the log when the first member had joined."""
        self.processed: Counter[bytes] = Counter()
        self.members: list[NativeMember] = []
        for number, one in enumerate(plan.members):
            host = self.network.add_host(Host(f"member{number}", (f"10.2.0.{number + 1}", 40_000)))
            self._join(host, self.hosts[0], LinkSettings(delay_s=0.003))
            self._join(self.hosts[0], host, LinkSettings(delay_s=0.003))
            self.members.append(NativeMember(self, number, one, host))
        self.clients += [MqttMember(self, number, one) for number, one in enumerate(plan.mqtt_members)]

    def _settings(self) -> Settings:
        return replace(super()._settings(), group_ack_s=ACK_S)

    def start(self) -> None:
        super().start()
        for member in self.members:
            member.schedule()

    def note_joined(self) -> None:
        """A member has been accepted: the group exists. While the disk fails, it may not be stored yet."""
        if self.joined_at is None and not self.checkers.connections.is_uncertain(self.network.now):
            self.joined_at = self.checkers.log.next_offset

    def note_processed(self, payload: bytes) -> None:
        """A member has processed a message."""
        self.processed[payload] += 1

    @property
    def _clients(self) -> int:
        return super()._clients + len(self.members)

    def _has_work(self, host: Host) -> bool:
        return any(one.host is host and one.is_online for one in self.members) or super()._has_work(host)

    def _heal(self) -> None:
        self.is_healed = True
        super()._heal()
        for member in self.members:
            member.begin()
            member.wake()

    def _unsettled(self) -> str:
        problem = super()._unsettled() or next(filter(None, (one.unsettled() for one in self.members)), "")
        if problem:
            return problem
        missing = self._missing()
        if missing is not None:
            return f"the group waits for {missing}"
        for group in self.server.broker.groups.after(None):
            status = self.server.broker.groups.status(group, 0)
            if status.lag or status.in_flight:
                return f"the group has not acknowledged all: {status}"
        return ""

    def _missing(self) -> Publication | None:
        """Return a message that no member has processed yet, and that cannot have expired."""
        log = self.checkers.log
        for offset in range(log.next_offset if self.joined_at is None else self.joined_at, log.next_offset):
            found = log.at(offset)
            if found is None or not found.payload or found.topic.startswith("$") or found.may_expire:
                continue
            if not self.processed[found.payload]:
                return found
        return None

    def _finish(self) -> None:
        for member in self.members:
            member.close()
        super()._finish()

    def summary(self) -> str:
        members = len(self.members) + sum(isinstance(one, MqttMember) for one in self.clients)
        repeats = sum(self.processed.values()) - len(self.processed)
        return f"{super().summary()}, a group of {members} with {len(self.processed)} processed, {repeats} again"


def run_groups(seed: int, trace: Trace, server: type[Server] = Server) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_group_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(GroupWorld(plan, trace, server))
