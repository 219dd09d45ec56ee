"""A second protocol on the ports of the core: lines of text. It shares everything with native clients of the server.

LOGIN name secret | SUB filter | PUB topic text | RETAIN topic text | ACK offset | PONG | QUIT
WELCOME new|resumed | SUBSCRIBED | OK reached | MSG offset topic text | GAP count | PING | ERR code | BYE code
"""

from __future__ import annotations

from hmac import compare_digest

from tests.broker.durable import DurableWorld
from tests.broker.world import Peer as NativeClient

from godwit.broker.access import Access, Rule
from godwit.broker.broker import Broker
from godwit.broker.ports import Credentials, Outbound, OutboundBatch, Peer, SubscribeRequest, SubscribeResult
from godwit.broker.session import Session
from godwit.broker.settings import Settings
from godwit.wire.batch import decode_entry, make_entry
from godwit.wire.control_base import Code

WINDOW = 3
"""Messages under way to a client that it has not acknowledged."""


class Password(Credentials, kw_only=True):
    password: str

    def proves(self, secret: bytes) -> bool:
        return compare_digest(self.password.encode(), secret)


class LineConnection(Peer):
    """One client: what it writes goes into `lines`, what it is to read comes into `out`."""

    def __init__(self, broker: Broker, number: int) -> None:
        super().__init__(f"line-{number}", f"host-{number}")
        self.broker = broker
        self.lines: list[str] = []
        self.out: list[str] = []
        self.outbound = LineOutbound(self)
        self.instance = number.to_bytes(16, "big")

    # -- ports --------------------------------------------------------------------------------------------------------

    def close(self, code: Code, text: str) -> None:
        self.out.append(f"BYE {code}")

    def ping(self) -> None:
        self.out.append("PING")

    def accepted(self, reached: int) -> None:
        self.out.append(f"OK {reached}")

    def refused(self, code: Code, text: str) -> None:
        self.out.append(f"ERR {code}")

    def subscribed(self, result: SubscribeResult) -> None:
        self.out.append("SUBSCRIBED")

    def welcome(self, session: Session, resumed: bool) -> None:
        self.out.append(f"WELCOME {'resumed' if resumed else 'new'}")

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, line: str, now_us: int) -> None:
        command, *words = line.split(" ", 2)
        broker, session = self.broker, self.session
        if command == "LOGIN":
            login = Password(name=words[0], password=words[1], instance=self.instance, session_expiry_s=3600)
            broker.login(self, login, self.welcome, now_us)
        elif command == "QUIT":
            broker.disconnect(self, now_us, was_expected=True)
        elif session is None:
            broker.close(self, Code.NOT_LOGGED_IN, "log in first")
        elif command == "SUB":
            broker.subscribe(self, SubscribeRequest(filters=(words[0],)), self.outbound, self)
        elif command in ("PUB", "RETAIN"):
            topic, text = words
            is_retained = command == "RETAIN"
            entry = make_entry(topic, session.name, [text.encode()], qos=1, retain=is_retained, now_us=now_us)
            broker.publish_once(session, [entry], self, now_us)
        elif command == "ACK" and self.outbound.subscription is not None:
            self.outbound.acknowledge(int(words[0]) + 1)
            broker.acknowledge(self.outbound.subscription, int(words[0]) + 1)
            broker.resume(self)
        elif command == "PONG":
            broker.handle_alive(self)


class LineOutbound(Outbound):
    def __init__(self, connection: LineConnection) -> None:
        super().__init__()
        self.connection = connection
        self.unacknowledged: list[int] = []

    def acknowledge(self, below: int) -> None:
        self.unacknowledged = [offset for offset in self.unacknowledged if offset >= below]

    def room(self) -> int:
        return 1000 * (WINDOW - len(self.unacknowledged))

    def put(self, batch: OutboundBatch) -> bool:
        payloads = decode_entry(batch.entry).payloads
        if len(self.unacknowledged) + len(payloads) > WINDOW:
            return False
        for offset, payload in enumerate(payloads, batch.offset):
            self.unacknowledged.append(offset)
            self.connection.out.append(f"MSG {offset} {batch.topic.name} {payload.decode()}")
        return True

    def gap(self, count: int, next_offset: int, below: int) -> None:
        self.connection.out.append(f"GAP {count}")


class LineProtocol:
    """Joins the connections and the server's turns."""

    def __init__(self, world: DurableWorld) -> None:
        self.world = world
        self.connections: list[LineConnection] = []
        world.server.add_protocol(self)

    def handle_input(self, now_us: int) -> None:
        for connection in self.connections:
            lines, connection.lines = connection.lines, []
            for line in lines:
                connection.handle(line, now_us)

    @property
    def has_input(self) -> bool:
        return any(connection.lines for connection in self.connections)

    def flush(self) -> None: ...
    def close(self, now: float) -> None: ...
    def next_timer_us(self) -> int | None: ...

    def connect(self) -> LineConnection:
        connection = LineConnection(self.world.server.broker, len(self.connections) + 1)
        self.connections.append(connection)
        connection.broker.connect(connection, self.world.now_us)
        return connection

    def say(self, connection: LineConnection, *lines: str) -> list[str]:
        """Send these lines; return what the client reads then."""
        connection.lines += lines
        self.world.run()
        read, connection.out = connection.out, []
        return read


def publish(client: NativeClient, topic: str, *texts: str, retain: bool = False) -> None:
    channel = client.open(topic)
    for text in texts:
        client.publish(channel, text.encode(), retain=retain)


def test_a_second_protocol_shares_the_broker_with_native_clients() -> None:
    allowed = Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=("home/#",))
    world = DurableWorld(Settings(access=Access(secrets={"pi": b"raspberry"}, rules=(allowed,))))
    lines, native = LineProtocol(world), world.client("native", session_expiry_s=3600)
    native.subscribe("home/#", number=1)
    publish(native, "home/lamp", "on", retain=True)

    assert lines.say(lines.connect(), "LOGIN pi strawberry") == [f"BYE {Code.NOT_ALLOWED}"]
    assert lines.say(lines.connect(), "SUB home/#") == [f"BYE {Code.NOT_LOGGED_IN}"]
    pi = lines.connect()
    assert lines.say(pi, "LOGIN pi raspberry", "SUB home/#") == ["WELCOME new", "MSG 0 home/lamp on", "SUBSCRIBED"]
    assert lines.say(pi, "PUB garage/door open") == [f"ERR {Code.NOT_ALLOWED}"]
    assert lines.say(pi, "ACK 0", "RETAIN home/door shut") == ["MSG 1 home/door shut", "OK 2"]
    assert [(got.topic, got.payload, got.publisher) for got in native.got[1:]] == [("home/door", b"shut", "pi")]
    assert [filters for filters, _ in world.server.broker.sessions["pi"].subscriptions] == [("home/#",)]

    publish(native, "home/count", "1", "2", "3", "4")
    assert lines.say(pi) == ["MSG 2 home/count 1", "MSG 3 home/count 2"]  # its window is full
    assert lines.say(pi, "ACK 2") == ["MSG 4 home/count 3", "MSG 5 home/count 4"]
    assert lines.say(pi, "QUIT") == []
    publish(native, "home/count", "5")
    world.restart()
    lines = LineProtocol(world)
    again = lines.connect()
    assert lines.say(again, "LOGIN pi raspberry") == ["WELCOME resumed"]
    resumed = ["SUBSCRIBED", "MSG 3 home/count 2", "MSG 4 home/count 3", "MSG 5 home/count 4"]
    assert lines.say(again, "SUB home/#") == resumed
    assert lines.say(again, "ACK 5") == ["MSG 6 home/count 5"]

    native = world.client("native", session_expiry_s=3600)
    native.subscribe("home/+", number=2)
    assert [(got.topic, got.payload, got.retain) for got in native.got] == [
        ("home/door", b"shut", True),
        ("home/lamp", b"on", True),
    ]
    stranger = lines.connect()
    assert lines.say(stranger, "LOGIN native -") == [f"BYE {Code.NAME_IN_USE}"]
    world.client("pi", secret=b"raspberry")
    assert lines.say(again) == [f"BYE {Code.TAKEN_OVER}"]
