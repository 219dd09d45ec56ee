"""A hostile client: correct in the transport's protocol, wrong in the broker's, and it never reads.

Whatever it does, the promises to all other clients hold, and the memory that it costs stays bounded. Its well-formed
messages are recorded as published, because other subscribers may receive them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from godwit.errors import ChannelError, ConnectionClosedError, RecordTooLargeError, SendBufferFullError, UsageError
from godwit.limits import MAX_UNRELIABLE_BYTES
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected
from godwit.wire import control
from godwit.wire.batch import Batch, Route, encode_batch
from godwit.wire.control import encode_in_band
from godwit_sim.network import Host
from godwit_sim.sealing import sealer_of_world
from godwit_sim.worlds.broker_harness import Checkers
from godwit_sim.worlds.broker_plan import BrokerPlan, HostileKind

ENOUGH = (ChannelError, ConnectionClosedError, RecordTooLargeError, SendBufferFullError, UsageError)
"""Errors of its own transport, which it ignores."""
RETURN_S = 0.2
TOPIC = "hostile/noise"
BURST = 20


class Hostile:
    """Send invalid input at random times; reconnect after each disconnection."""

    def __init__(self, checkers: Checkers, host: Host, plan: BrokerPlan, server: Address) -> None:
        assert plan.hostile is not None
        self._checkers = checkers
        self._host = host
        self._plan = plan.hostile
        self._names = [client.name for client in plan.clients if client.name and client.secret]
        self._server = server
        self._rng = Random(f"{plan.seed} hostile")
        self._connection: Connection | None = None
        self._channels: dict[tuple[str, int], int] = {}
        self._sequence = 0
        self._gone = False
        self.disconnections = 0
        self._strikes: dict[HostileKind, Callable[[Connection], None]] = {
            "junk": self._junk,
            "flood": self._flood,
            "no_login": self._no_login,
            "never_reads": self._never_reads,
            "liar": self._lie,
            "requests": self._ask,
            "opens": self._open_many,
        }

    def schedule(self) -> None:
        network = self._checkers.network
        self._checkers.published.allow_any_name("hostile")
        network.at(0.0, self._start)
        for _ in range(self._plan.strikes):
            network.at(self._rng.uniform(0.1, self._plan.until_s), self._strike)

    def leave(self) -> None:
        """End the process without a close."""
        self._gone = True
        if self._host.alive:
            self._checkers.network.kill(self._host)

    # -- connections --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._gone:
            return
        entropy = Random(f"{self._checkers.seed} hostile {self.disconnections}").randbytes
        endpoint = Endpoint(
            EndpointConfig(max_channels=64, connection_window_bytes=2**16, channel_window_bytes=2**16),
            entropy=entropy,
            sealer=sealer_of_world(entropy),
        )
        if self._host.alive:
            self._checkers.network.kill(self._host)
        self._checkers.network.start(self._host, endpoint, self._on_events)
        endpoint.connect(self._server, self._host.clock(self._checkers.network.now))
        self._checkers.network.pump(self._host)

    def _on_events(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            if isinstance(event, Connected):
                self._connection = event.connection
                self._channels.clear()
                if "no_login" not in self._plan.kinds or self._rng.random() < 0.5:
                    self._login(event.connection)
            elif isinstance(event, Closed):
                self._connection = None
                self.disconnections += 1
                self._checkers.network.at(now + RETURN_S, self._start)

    def _login(self, connection: Connection) -> None:
        """Log in under its own name, or under the name of another client without its secret."""
        name = self._rng.choice(["hostile", None, *self._names])
        login = control.Login(
            request=1, name=name, instance=self._rng.randbytes(16), session_expiry_s=self._rng.choice((0, 1, 3600))
        )
        connection.send(0, control.encode_control(login))

    def _strike(self) -> None:
        connection = self._connection
        if connection is None or self._gone:
            return
        kind = self._rng.choice(self._plan.kinds)
        self._checkers.network.trace.note(self._checkers.network.now, f"hostile {kind}")
        with contextlib.suppress(*ENOUGH):
            self._strikes[kind](connection)
        self._checkers.network.pump(self._host)

    # -- kinds of invalid input ---------------------------------------------------------------------------------------

    def _channel(self, connection: Connection, topic: str = TOPIC, qos: Any = 1) -> int:
        channel = self._channels.get((topic, qos))
        if channel is None:
            channel = self._channels[topic, qos] = connection.open_channel()
            connection.send(channel, control.encode_control(control.PublishOpen(topic=topic, qos=qos)))
        return channel

    def _batch(self, qos: int, size_bytes: int, **other: Any) -> bytes:
        """Return a batch that may be delivered, and record it as published."""
        payload = self._checkers.payload(size_bytes)
        published_us = self._checkers.date_us(payload)
        source = f"hostile {self._rng.random()}"  # it may lose some, so the order is not checked
        made = self._checkers.published.make(
            "hostile", TOPIC, payload, published_us, self._checkers.network.now, qos=qos, source=source
        )
        self._checkers.published.add(made)
        return encode_batch(Batch([payload], published_us, qos, **other))

    def _flood(self, connection: Connection) -> None:
        qos = self._rng.choice((0, 1, 1, 2))
        for _ in range(BURST):
            sequence = self._sequence if qos == 2 else None
            body = self._batch(qos, self._rng.choice((16, 500, 3000 if qos else 500)), sequence=sequence)
            self._sequence += 1
            reliable = qos > 0 or len(body) > MAX_UNRELIABLE_BYTES
            connection.send(self._channel(connection, qos=qos), body, reliable=reliable)

    def _junk(self, connection: Connection) -> None:
        rng = self._rng
        junk = rng.randbytes(rng.choice((0, 1, 9, 40, 1500)))
        where = rng.choice(("control", "open", "data", "unreliable", "in_band"))
        if where == "control":
            connection.send(0, junk)
        elif where == "open":
            connection.send(connection.open_channel(), junk)
        elif where == "in_band":
            gap = encode_in_band(control.Gap(count=rng.choice((0, 1, 2**62)), next_offset=rng.choice((0, 2**62))))
            connection.send(self._channel(connection), gap)
        else:
            connection.send(self._channel(connection), junk, reliable=where == "data")

    def _no_login(self, connection: Connection) -> None:
        """Send requests without a login; after a login they are only unusual."""
        rng = self._rng
        message = rng.choice(
            (
                control.Subscribe(request=1, subscription=1, filters=["#"]),
                control.Topics(request=2),
                control.Kick(request=3, client=rng.choice(["no-one", ""])),
                control.Unsubscribe(request=4, subscription=9),
            )
        )
        connection.send(0, control.encode_control(message))

    def _never_reads(self, connection: Connection) -> None:
        """Subscribe to everything, and neither consume nor confirm messages."""
        number = self._rng.randrange(1000)
        start: Any = self._rng.choice((None, "latest", "earliest", 0))
        filters = self._rng.choice((["#"], ["*"], ["home/#", "+/+"], [f"{number}/#"]))
        message = control.Subscribe(request=number, subscription=number, filters=filters, start=start)
        connection.send(0, control.encode_control(message))

    def _lie(self, connection: Connection) -> None:
        rng = self._rng
        lie = rng.randrange(8)
        channel = self._channel(connection, qos=rng.choice((1, 2)))
        if lie == 0:
            connection.confirm(rng.choice((1, 2, 3, 4, 10**6)), rng.choice((0, 5, 2**31)), rng.choice((0, 10**6)))
        elif lie == 1:
            connection.send(channel, self._batch(1, 20, sequence=rng.choice((0, 5, 2**63 - 1))))
        elif lie == 2:
            connection.send(channel, encode_batch(Batch([b"routed"], 1, 1, route=Route(1, 1, 1, 1))))
        elif lie == 3:
            connection.send(channel, encode_batch(Batch([b"wrong QoS"], 1, 0)))
        elif lie == 4:
            connection.send(channel, encode_batch(Batch([b"x"] * 3, 2**63, 1)))
        elif lie == 5:
            connection.send(channel, b"", last=True)
            self._channels.clear()
        elif lie == 6:
            login = control.Login(request=2, name="hostile again", instance=rng.randbytes(16))
            connection.send(0, control.encode_control(login))
        else:
            connection.consume(rng.choice((1, 2, 3)), 0)

    def _ask(self, connection: Connection) -> None:
        rng = self._rng
        for number in range(BURST):
            message = rng.choice(
                (
                    control.encode_control(control.Ping(request=number)),
                    control.encode_control(control.Clients(request=number)),
                    control.encode_control(control.Topics(request=number, filter=rng.choice((None, "#", "a/#/b")))),
                    control.encode_control(control.CursorCommit(request=number, subscription=number, offset=2**40)),
                    control.encode_control(control.ProgressQuery(request=number, topic="#")),
                    control.encode_control(control.Subscribe(request=number, subscription=number, filters=["a/#/b"])),
                    control.encode_control(control.Pong(request=0xFFFFFFFF)),
                    control.encode_control(control.Welcome(request=number, name="you", max_message_bytes=0)),
                    b"\xa1dkindcnew",
                )
            )
            connection.send(0, message)

    def _open_many(self, connection: Connection) -> None:
        rng = self._rng
        for _ in range(BURST):
            topic = rng.choice(("#", "", "a/+", "$sys/x", "x" * 1024, f"hostile/{rng.randrange(10**6)}", "\0"))
            message = control.PublishOpen(topic=topic, qos=rng.choice((0, 1, 2)), epoch=rng.choice((0, 2**40)))
            connection.send(connection.open_channel(), control.encode_control(message))
