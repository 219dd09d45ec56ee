"""The MQTT world: the durable world with MQTT clients beside the native ones, on the same broker.

The MQTT clients keep their state as the standard demands: messages without an acknowledgement are sent again after a
reconnect, and identifiers of QoS 2 are remembered. Their connections break at any byte, when the server dies, and when
its disk fails. At the end each message that was acknowledged is in the log, with QoS 2 once, and each subscriber has
received all messages since its SUBACK, those of QoS 2 once, whatever kind of client has published them. The checkers of
the durable world check the native clients and the log meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from struct import pack
from typing import Any, Final

from godwit.mqtt.connection import MqttConnection, MqttSettings
from godwit.mqtt.encoding import encode_packet_properties, encode_text, encode_varint
from godwit.mqtt.packets import V3_1_1, V5, PacketType, Property
from godwit.mqtt.protocol import MqttProtocol
from godwit.server.log import Log
from godwit.server.server import Server
from godwit_sim.broker_connections import ReachChecker
from godwit_sim.broker_log_model import Publication
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Trace
from godwit_sim.worlds.broker import observe
from godwit_sim.worlds.broker_clients import MAX_TRANSIT_S
from godwit_sim.worlds.broker_harness import ListenerAdapter
from godwit_sim.worlds.durable import DurablePlan, DurableWorld, draw_durable_plan

NAME: Final = "mqtt"
DELAYS_S: Final = (0.0005, 0.005, 0.05)
RECONNECT_S: Final = 0.3
EXPIRY_S: Final = 24 * 3600
FILTERS: Final = ("#", "mqtt/#", "mqtt/+/a")
KEY: Final = b"a key of the broker, as its log has"


# -- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MqttClientPlan:
    """The actions of one MQTT client."""

    version: int
    delay_s: float
    filters: tuple[tuple[str, int], ...]
    """With their QoS."""
    publications: tuple[tuple[float, str, int, int], ...]
    """Time, topic, QoS and bytes, in their order."""
    breaks: tuple[tuple[float, bool], ...]
    """When its connection ends, and whether with a DISCONNECT."""
    window: int
    """Its messages in flight, at most."""


@dataclass(frozen=True, slots=True)
class MqttPlan:
    """The plan of one seed."""

    durable: DurablePlan
    clients: tuple[MqttClientPlan, ...]


def draw_mqtt_plan(seed: int) -> MqttPlan:
    """Draw the plan of this seed. Nothing deletes or damages messages: it would excuse missing ones."""
    durable = replace(draw_durable_plan(seed), rots=0.0, max_age_s=None, restores=())
    rng = Random(f"mqtt plan {seed}")
    end_s = durable.broker.faults_end_s
    return MqttPlan(durable, tuple(_draw_client(rng, number, end_s) for number in range(rng.randint(2, 4))))


def _draw_client(rng: Random, number: int, end_s: float) -> MqttClientPlan:
    publications = sorted(
        (rng.uniform(0.0, end_s), f"mqtt/{number}/{rng.choice('ab')}", rng.choice((0, 1, 1, 2, 2)), rng.randrange(400))
        for _ in range(rng.randrange(60))
    )
    return MqttClientPlan(
        version=rng.choice((V3_1_1, V5)),
        delay_s=rng.choice(DELAYS_S),
        filters=tuple((text, rng.choice((1, 2))) for text in rng.sample(FILTERS, rng.randint(1, 2))),
        publications=tuple(publications),
        breaks=tuple((rng.uniform(0.0, end_s), rng.random() < 0.3) for _ in range(rng.randrange(6))),
        window=rng.choice((1, 5, 20)),
    )


# -- clients ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outgoing:
    """A message that the broker has not acknowledged."""

    publication: Publication
    was_sent: bool = False
    is_released: bool = False
    """With QoS 2: PUBREC has arrived."""


class MqttLink:
    """One connection: bytes arrive after a delay, in their order, unless it breaks before."""

    def __init__(self, client: MqttClient) -> None:
        self.client = client
        self.is_open = True
        self.connection: MqttConnection | None = None

    # -- MqttTransport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._later(self.client.handle_bytes, data)

    def close(self) -> None:
        self._later(self.client.handle_closed)
        self.client.network.at(self.client.network.now, self.end_at_server)

    def set_reading(self, is_reading: bool) -> None:
        """Nothing to do: a client sends few bytes at once."""

    def unsent_bytes(self) -> int:
        return 0

    # -- the client's side --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.client.network.at(self.client.network.now + self.client.plan.delay_s, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.is_open and self.connection is not None:
            self.connection.receive(data)

    def _later(self, action: Any, *arguments: Any) -> None:
        def act() -> None:
            if self.client.link is self:
                action(*arguments)

        self.client.network.at(self.client.network.now + self.client.plan.delay_s, act)

    def end_at_server(self) -> None:
        """The broker's end of the connection is closed."""
        if self.is_open:
            self.is_open = False
            if self.connection is not None and self.client.world.is_up:
                self.connection.handle_lost("reset")


class MqttClient:
    """One MQTT client with a session that is kept, and its checks."""

    def __init__(self, world: MqttWorld, number: int, plan: MqttClientPlan) -> None:
        self.world = world
        self.network = world.network
        self.plan = plan
        self.name = f"mqtt-{number}"
        self.link: MqttLink | None = None
        self.is_online = False
        self.is_leaving = False
        self.subscribed_at: int | None = None
        """The end of the log when the SUBACK arrived."""
        self.asked_at = 0
        self.todo: list[Publication] = []
        self.outgoing: dict[int, Outgoing] = {}
        self.received_ids: set[int] = set()
        """Of QoS 2, until PUBREL."""
        self.received: Counter[bytes] = Counter()
        self.exact: Counter[bytes] = Counter()
        """Payloads of messages that came with QoS 2, without those from the store of retained messages."""
        self.confirmed: list[Publication] = []
        self._next_id = 0
        self._buffer = b""

    def schedule(self) -> None:
        """Plan all actions."""
        network, checkers = self.network, self.world.checkers
        checkers.published.names(self.name, self.name)
        for at_s, topic, qos, size_bytes in self.plan.publications:
            payload = checkers.payload(size_bytes)
            network.at(at_s, self._publish, checkers.published.add_will(self.name, topic, payload, at_s, qos=qos))
        for at_s, is_polite in self.plan.breaks:
            network.at(at_s, self._break, is_polite)
        network.at(0.1, self.connect)

    # -- the connection -----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, or try again later if the server is down."""
        if self.link is not None or self.is_leaving:
            return
        if not self.world.is_up:
            self.network.at(self.network.now + RECONNECT_S, self.connect)
            return
        self._buffer = b""
        self.link = link = MqttLink(self)
        link.connection = self.world.mqtt.connect(link, f"10.1.0.1:{self.name}", "10.1.0.1")
        values: dict[int, Any] = {Property.SESSION_EXPIRY: EXPIRY_S} if self.plan.version == V5 else {}
        properties = encode_packet_properties(values) if self.plan.version == V5 else b""
        head = encode_text("MQTT") + bytes((self.plan.version, 0)) + pack(">H", 0)
        self._send(PacketType.CONNECT << 4, head, properties, encode_text(self.name))

    def _break(self, is_polite: bool) -> None:
        link = self.link
        if link is None:
            return
        if is_polite and self.is_online:
            self._send(PacketType.DISCONNECT << 4)
            self.network.at(self.network.now + 2 * self.plan.delay_s, link.end_at_server)
        else:
            link.end_at_server()
        self.handle_closed()

    def handle_closed(self) -> None:
        """The connection has ended. Bytes on their way are lost."""
        self.link = None
        self.is_online = False
        self.network.at(self.network.now + RECONNECT_S, self.connect)

    def leave(self) -> None:
        """Disconnect for good."""
        self.is_leaving = True
        self._break(True)

    def _send(self, first: int, *parts: bytes) -> None:
        body = b"".join(parts)
        if self.link is not None:
            self.link.send(bytes((first,)) + encode_varint(len(body)) + body)

    def _none(self) -> bytes:
        """Return empty properties."""
        return b"\0" if self.plan.version == V5 else b""

    # -- messages to the broker ---------------------------------------------------------------------------------------

    def _publish(self, publication: Publication) -> None:
        self.todo.append(publication)
        self.work()

    def work(self) -> None:
        """Send waiting messages, as far as the window allows."""
        while self.todo and self.is_online and len(self.outgoing) < self.plan.window:
            publication = self.todo.pop(0)
            if not publication.qos:
                self._send_publish(publication, 0, is_repeat=False)
                continue
            while True:
                self._next_id = self._next_id % 65_535 + 1
                if self._next_id not in self.outgoing:
                    break
            self.outgoing[self._next_id] = Outgoing(publication, was_sent=True)
            self._send_publish(publication, self._next_id, is_repeat=False)

    def _send_publish(self, publication: Publication, number: int, *, is_repeat: bool) -> None:
        first = PacketType.PUBLISH << 4 | publication.qos << 1 | 8 * is_repeat
        identifier = pack(">H", number) if publication.qos else b""
        self._send(first, encode_text(publication.topic), identifier, self._none(), publication.payload)

    def _send_ack(self, kind: PacketType, number: int) -> None:
        self._send(kind << 4 | 2 * (kind == PacketType.PUBREL), pack(">H", number))

    # -- packets of the broker ----------------------------------------------------------------------------------------

    def handle_bytes(self, data: bytes) -> None:
        """Handle the packets that are complete with these bytes."""
        self._buffer += data
        while len(self._buffer) >= 2:
            size, at, shift = 0, 1, 0
            while True:
                if at >= len(self._buffer):
                    return
                byte = self._buffer[at]
                size |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80:
                    break
            if len(self._buffer) < at + size:
                return
            first, body, self._buffer = self._buffer[0], self._buffer[at : at + size], self._buffer[at + size :]
            self._handle(first, body)
            if self.link is None:
                return

    def _handle(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == PacketType.CONNACK:
            self._handle_connack(body)
        elif kind == PacketType.SUBACK:
            self.subscribed_at = self.world.checkers.log.next_offset
        elif kind == PacketType.PUBLISH:
            self._handle_publish(first, body)
        elif kind == PacketType.PUBREL:
            number = int.from_bytes(body[:2], "big")
            self.received_ids.discard(number)
            self._send_ack(PacketType.PUBCOMP, number)
        elif kind in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP):
            self._handle_ack(kind, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0)

    def _handle_connack(self, body: bytes) -> None:
        if body[1]:
            return  # refused, and closed
        if self.subscribed_at is not None and not body[0]:
            raise ViolationError(NAME, f"the session of {self.name} is lost")
        self.is_online = True
        if not body[0]:
            self.received_ids.clear()
        if self.subscribed_at is None:
            self.asked_at = self.world.checkers.log.next_offset
            filters = b"".join(encode_text(text) + bytes((qos,)) for text, qos in self.plan.filters)
            self._send(PacketType.SUBSCRIBE << 4 | 2, pack(">H", 1), self._none(), filters)
        for number, one in self.outgoing.items():
            if one.is_released:
                self._send_ack(PacketType.PUBREL, number)
            else:
                self._send_publish(one.publication, number, is_repeat=True)
        self.work()

    def _handle_publish(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        at = 2 + int.from_bytes(body[:2], "big")
        number = int.from_bytes(body[at : at + 2], "big") if qos else 0
        at += 2 * bool(qos)
        if self.plan.version == V5:
            at += 1 + body[at]
        payload = body[at:]
        if qos == 1:
            self._send_ack(PacketType.PUBACK, number)
        elif qos == 2:
            self._send_ack(PacketType.PUBREC, number)
            if number in self.received_ids:
                return
            self.received_ids.add(number)
            if not first & 1:  # retained messages come again with each SUBSCRIBE, and without a SUBACK it is repeated
                self.exact[payload] += 1
        self.received[payload] += 1
        self._check_expiry(payload)

    def _check_expiry(self, payload: bytes) -> None:
        """Check that a message has not expired long ago."""
        checkers = self.world.checkers
        found = checkers.published.find(payload, 0) if payload else None
        if found is not None and found.lifetime_us is not None:
            age_s = checkers.network.now - found.sent_s
            if age_s > found.lifetime_us / 1e6 + MAX_TRANSIT_S:
                raise ViolationError("expiry", f"{self.name}: {found} came after {age_s:g} s")

    def _handle_ack(self, kind: int, number: int, code: int) -> None:
        one = self.outgoing.get(number)
        if one is None:
            return
        if code >= 0x80:
            raise ViolationError(NAME, f"{one.publication} was refused with {code:#x}")
        if kind == PacketType.PUBREC:
            one.is_released = True
            self._send_ack(PacketType.PUBREL, number)
            return
        del self.outgoing[number]
        self.confirmed.append(one.publication)
        if not one.publication.offsets:
            raise ViolationError(NAME, f"{one.publication} was acknowledged and is not in the log")
        self.work()

    # -- checks -------------------------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Describe something that is not yet as it must be."""
        if not self.is_online or self.subscribed_at is None:
            return f"{self.name} is not online"
        if self.todo or self.outgoing:
            return f"{self.name} has {len(self.todo)} messages to send and {len(self.outgoing)} without a reply"
        missing = self.missing()
        return f"{self.name} waits for {missing}" if missing is not None else ""

    def missing(self) -> Publication | None:
        """Return a message that has not arrived yet."""
        assert self.subscribed_at is not None
        log = self.world.checkers.log
        for offset in range(self.subscribed_at, log.next_offset):
            found = log.at(offset)
            if found is not None and found.may_expire:
                continue
            if found is not None and found.payload and self._wants(found.topic) and not self.received[found.payload]:
                return found
        return None

    def _wants(self, topic: str) -> bool:
        """Return whether one of the filters matches. Written without the code under test."""
        return not topic.startswith("$") and any(
            text == "#"
            or (text == "mqtt/#" and topic.split("/", maxsplit=1)[0] == "mqtt")
            or (text == "mqtt/+/a" and topic.split("/")[::2] == ["mqtt", "a"] and topic.count("/") == 2)
            for text, _ in self.plan.filters
        )

    def check(self) -> None:
        """Check that nothing came twice that must come once."""
        for publication in self.confirmed:
            if publication.qos == 2 and len(publication.offsets) != 1:
                raise ViolationError(NAME, f"{publication} is in the log at {publication.offsets}")
        for payload, count in self.exact.items():
            found = self.world.checkers.published.find(payload, 0)
            if payload and found is None:
                raise ViolationError(NAME, f"{self.name} got {len(payload)} bytes that were never published")
            if payload and found is not None and count > max(len(found.offsets), 1):
                raise ViolationError(NAME, f"{self.name} got {found} with QoS 2 {count} times")


# -- the world --------------------------------------------------------------------------------------------------------


class AnyReach(ReachChecker):
    """Does not check how many subscribers a message has reached: MQTT clients count, too."""

    def confirmed(self, publication: Publication, reached: int, now: float) -> None: ...


class MqttWorld(DurableWorld):
    """One seed, from its plan to its end."""

    mqtt: MqttProtocol

    def __init__(self, plan: MqttPlan, trace: Trace, server: type[Server] = Server) -> None:
        super().__init__(plan.durable, trace, server)
        self.checkers.reach = AnyReach(self.checkers.connections)
        topics = tuple(f"mqtt/{number}/{level}" for number in range(len(plan.clients)) for level in "ab")
        self.checkers.unseen_topics += topics
        self.clients = [MqttClient(self, number, one) for number, one in enumerate(plan.clients)]

    @property
    def is_up(self) -> bool:
        """Whether the server runs."""
        return self._watched is not None and self.hosts[0].alive

    def start(self) -> None:
        super().start()
        for client in self.clients:
            client.schedule()

    def _make_server(self, log: Log, label: str, epoch_us: int) -> Server:
        made = super()._make_server(log, label, epoch_us)
        entropy = Random(f"{self.plan.seed} mqtt {label}").randbytes
        self.mqtt = MqttProtocol(made.broker, MqttSettings(), key=KEY, entropy=entropy, wake=self._wake)
        made.add_protocol(self.mqtt)
        return made

    def _wake(self) -> None:
        self.network.at(self.network.now, self._run_turn, self.mqtt)

    def _run_turn(self, mqtt: MqttProtocol) -> None:
        host = self.hosts[0]
        if mqtt is self.mqtt and self.is_up and isinstance(host.node, ListenerAdapter):
            self.server.advance(host.clock(self.network.now))
            host.node.was_fed = True
            self.network.pump(host)

    def _end_run(self) -> None:
        super()._end_run()
        for client in self.clients:
            if client.link is not None:
                client.link.is_open = False
                client.handle_closed()

    def _unsettled(self) -> str:
        return super()._unsettled() or next(filter(None, (client.unsettled() for client in self.clients)), "")

    def _check_all(self) -> None:
        super()._check_all()
        for client in self.clients:
            client.check()

    def _finish(self) -> None:
        for client in self.clients:
            client.leave()
        self._until(
            lambda: "MQTT connections are left" if self.mqtt.connections else "", 60.0, "no MQTT client is left"
        )
        super()._finish()

    def summary(self) -> str:
        sent = sum(len(client.confirmed) for client in self.clients)
        received = sum(sum(client.received.values()) for client in self.clients)
        return f"{super().summary()}, {len(self.clients)} MQTT clients with {sent} confirmed and {received} received"


def run_mqtt(seed: int, trace: Trace, server: type[Server] = Server) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_mqtt_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    return observe(MqttWorld(plan, trace, server))
