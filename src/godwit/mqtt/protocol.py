"""MQTT beside the native protocol of a server: all its connections, their input, output and timers. Sans-IO.

input     connect; MqttConnection.receive, handle_drained, handle_lost. Then the server's next turn: handle_input
output    MqttTransport.write and close, from `flush` at the end of a turn
timer     next_timer_us: when a keep alive ends
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from godwit.broker.broker import Broker
from godwit.limits import MAX_UNFINISHED_BYTES, MIB
from godwit.mqtt.connection import KEEP_ALIVE_FACTOR, MqttConnection, MqttSettings, MqttTransport
from godwit.mqtt.scram import SALT_BYTES
from godwit.wire.control_base import Code

INSTANCE_BYTES: Final = 16
MAX_UNADMITTED_BYTES: Final = 32 * MIB
"""Of incomplete packets of all connections without a login."""
FIGURES: Final = {
    "uptime_s": ("$SYS/broker/uptime", "{} seconds"),
    "clients/connected": ("$SYS/broker/clients/connected", "{}"),
    "clients/sessions": ("$SYS/broker/clients/total", "{}"),
    "messages/in": ("$SYS/broker/messages/received", "{}"),
    "messages/out": ("$SYS/broker/messages/sent", "{}"),
    "messages/dropped": ("$SYS/broker/publish/messages/dropped", "{}"),
    "bytes/in": ("$SYS/broker/bytes/received", "{}"),
    "subscriptions": ("$SYS/broker/subscriptions/count", "{}"),
    "retained": ("$SYS/broker/retained messages/count", "{}"),
    "log/next_offset": ("$SYS/broker/messages/stored", "{}"),
}
"""The broker's figures under the names that monitors of MQTT brokers know."""


class IncompletePackets:
    """The bytes that connections hold of packets whose end has not arrived, or that wait for the broker.

    Beyond the limit, connections are closed whose packet has been incomplete for longest: a client that sends its
    packets at once is not hurt by others that never end theirs.
    """

    __slots__ = ("_broker", "_holders", "_max_bytes", "held_bytes")

    def __init__(self, broker: Broker, max_bytes: int) -> None:
        self._broker = broker
        self._max_bytes = max_bytes
        self._holders: dict[MqttConnection, None] = {}
        """The one whose last packet came first is first."""
        self.held_bytes = 0

    def note(self, connection: MqttConnection, held_bytes: int) -> None:
        """The connection holds this many bytes now."""
        self.held_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        if not held_bytes:
            self._holders.pop(connection, None)
            return
        self._holders[connection] = None
        while self.held_bytes > self._max_bytes:
            oldest = next(iter(self._holders))
            self.note(oldest, 0)
            self._broker.close(oldest, Code.LIMIT, "the incomplete packets of all clients take all of their room")

    def renew(self, connection: MqttConnection) -> None:
        """A packet of the connection, which holds bytes, was complete."""
        self._holders.pop(connection, None)
        self._holders[connection] = None


class MqttProtocol:
    """See the module's first lines, and godwit.server.server.ServerProtocol."""

    def __init__(
        self,
        broker: Broker,
        settings: MqttSettings,
        *,
        key: bytes,
        entropy: Callable[[int], bytes],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`key`: secret, and the same after a restart. `wake` is called when a turn is needed."""
        self.broker = broker
        self.settings = settings
        self.entropy = entropy
        self.wake = wake
        self.connections: dict[MqttConnection, None] = {}
        self.turn = 0
        """The number of turns so far."""
        self.note_admitted: Callable[[MqttTransport], None] = lambda transport: None
        """Called when a login has succeeded."""
        self.topics: dict[bytes, str] = {}
        """Topics that clients have used, as they encode them, see PacketReader."""
        self.encoded_topics: dict[str, bytes] = {}
        """Topics that were sent to clients, with their lengths."""
        self.incomplete = (
            IncompletePackets(broker, MAX_UNADMITTED_BYTES),
            IncompletePackets(broker, MAX_UNFINISHED_BYTES),
        )
        """Of connections without a login, and of the others."""
        self._key = key
        self.scram_salt = hmac.digest(key, b"scram salt", "sha256")[:SALT_BYTES]
        self.scram_decoy = hmac.digest(key, b"scram decoy", "sha256")
        """Logins of unknown users are compared with it, so that they take as long as others."""
        self._input: dict[MqttConnection, None] = {}
        self._output: dict[MqttConnection, None] = {}
        self._timers: list[tuple[int, int, MqttConnection]] = []
        """A heap of times when a client must have sent something. Each connection has one entry, which is renewed when
        it is due, not for each packet."""
        self._serial = 0
        self.stalled: dict[MqttConnection, None] = {}
        """Connections whose next message waits for its packet identifier: tried again at the end of each turn."""
        broker.publish_figures_as(FIGURES)

    def connect(
        self, transport: MqttTransport, address: str, host: str, certified_user: str | None = None
    ) -> MqttConnection:
        """Add a connection.

        Args:
            transport: The stream.
            address: The client's address, for event lines.
            host: The key of quotas, see godwit.broker.session.network_of.
            certified_user: The user name that a certificate has proved; empty if it has none. None: without a
                certificate, or if certificates do not name users.
        """
        connection = MqttConnection(self, transport, address, host, certified_user)
        self.connections[connection] = None
        self.mark_input(connection)
        return connection

    # -- the turn -----------------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """Whether a turn is needed."""
        return bool(self._input or self._output)

    def handle_input(self, now_us: int) -> None:
        """Hand everything that has arrived since the last turn to the core."""
        self.turn += 1
        ready, self._input = self._input, {}
        for connection in ready:
            connection.run(now_us)
        while self._timers and self._timers[0][0] <= now_us:
            _, _, connection = heappop(self._timers)
            if connection in self.connections and not connection.is_closing:
                self._check_alive(connection, now_us)

    def flush(self) -> None:
        """The turn has ended: send what the core has given out."""
        stalled, self.stalled = self.stalled, {}
        for connection in stalled:
            if connection in self.connections:
                connection.outbound.send_queued()
        output, self._output = self._output, {}
        for connection in output:
            connection.flush()

    def close(self, now: float) -> None:
        """Notify all clients that the broker is being stopped."""
        for connection in list(self.connections):
            connection.stop(self.broker.now_us)

    def next_timer_us(self) -> int | None:
        """Return when a turn is needed, if nothing else happens before."""
        return self._timers[0][0] if self._timers else None

    # -- called by connections ----------------------------------------------------------------------------------------

    def mark_input(self, connection: MqttConnection) -> None:
        """The connection has something to handle."""
        if not self._input:
            self.wake()
        self._input[connection] = None

    def mark_output(self, connection: MqttConnection) -> None:
        """The connection has something to send, or is to be closed."""
        self._output[connection] = None

    def forget(self, connection: MqttConnection) -> None:
        """The connection has ended."""
        self.connections.pop(connection, None)
        self._input.pop(connection, None)

    def watch(self, connection: MqttConnection) -> None:
        """Close the connection when its client is silent for one and a half times its keep alive."""
        if connection.keep_alive_s:
            self._serial += 1
            due_us = connection.last_us + int(connection.keep_alive_s * KEEP_ALIVE_FACTOR * 1e6)
            heappush(self._timers, (due_us, self._serial, connection))
            if len(self._timers) > 2 * len(self.connections) + 64:  # most of them of connections that have ended
                self._timers = [timer for timer in self._timers if timer[2] in self.connections]
                heapify(self._timers)

    def _check_alive(self, connection: MqttConnection, now_us: int) -> None:
        if connection.waits_for_broker:
            connection.last_us = now_us
        if now_us - connection.last_us >= connection.keep_alive_s * KEEP_ALIVE_FACTOR * 1e6:
            text = f"nothing was received for {connection.keep_alive_s * KEEP_ALIVE_FACTOR:g} s"
            self.broker.close(connection, Code.TIMEOUT, text)
        else:
            self.watch(connection)

    def instance_of(self, client_id: str) -> bytes:
        """Return the instance of all connections under one client identifier: they are the same run of a client."""
        return hmac.digest(self._key, f"mqtt {client_id}".encode(), "sha256")[:INSTANCE_BYTES]

    def end_offset(self) -> int:
        """Return the end of the log."""
        return self.broker.end_offset
