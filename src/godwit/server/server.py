"""Protocols, broker core and log as one machine, sans-IO. A listener is one UDP socket's part of it.

    input     Listener.receive, Listener.handle_timers (see godwit.net.driver); change_settings, import_staged, close
    turn      run_turn: everything since the last turn goes through protocols, core and log
    output    the notices that run_turn returns, Listener.next_train, imported
    getters   next_timer, buffered_bytes, broker, log

All listeners and protocols share one core: input of one may give another something to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from godwit import limits
from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Import, Imported, Locate, Notice, Read, Tick
from godwit.broker.settings import Settings
from godwit.native.protocol import NativeProtocol
from godwit.server.log import Log
from godwit.transport.admission import ReceiveBudget
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Train
from godwit.transport.sealing import Sealer


class ServerProtocol(Protocol):
    """A protocol beside the native one, see godwit.broker.ports. Added with Server.add_protocol."""

    def handle_input(self, now_us: int) -> None:
        """Hand everything that has arrived since the last turn to the core."""

    def flush(self) -> None:
        """The turn has ended: send what the core has given out."""

    def close(self, now: float) -> None:
        """Notify all clients that the broker is being stopped."""

    def next_timer_us(self) -> int | None:
        """Return when a turn is needed, if nothing else happens before."""

    @property
    def has_input(self) -> bool:
        """Whether a turn would do something."""


class Server:
    """One broker with its log, for any number of listeners."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        *,
        entropy: Callable[[int], bytes],
        now: float,
        epoch_us: int,
        sealer: Sealer | None = None,
    ) -> None:
        """`now`: monotonic seconds; `epoch_us`: the wall clock at that time. `entropy` returns random bytes.

        `sealer`: how connections are sealed; None: all are plain.
        """
        self._entropy = entropy
        self._sealer = sealer
        self._budget = ReceiveBudget(entropy)
        self._now = now
        self._wall_us = 0
        self.set_wall_clock(now, epoch_us)
        self.log = log
        self.broker = Broker(
            settings,
            entropy=entropy,
            now_us=epoch_us,
            log_id=log.log_id,
            first_offset=log.first_offset,
            next_offset=log.next_offset,
            epochs=log.epochs,
            state=log.state(),
            keeps_state=log.keeps_state,
        )
        log.begin(self.broker)
        self.native = NativeProtocol(self.broker)
        self.listeners: list[Listener] = []
        self._protocols: list[ServerProtocol] = []
        self._notices: list[Notice] = []
        self._inputs = -1
        """The inputs of the core when its last turn ended."""
        self.imported: list[Imported] = []
        """Answers to import_staged. The caller that takes one removes it."""
        self._apply: dict[type[Any], Callable[[Any], None]] = {
            **self.native.handlers,
            Append: self._append,
            Read: log.read,
            Locate: self._locate,
            Imported: self.imported.append,
            Notice: self._notices.append,
        }

    def listen(self, config: EndpointConfig, kind: type[Endpoint] = Endpoint) -> Listener:
        """Add a socket; `config` describes its kernel buffers and the limits, see endpoint_config."""
        endpoint = kind(config, entropy=self._entropy, budget=self._budget, sealer=self._sealer)
        self.native.endpoints.append(endpoint)
        listener = Listener(self, endpoint)
        self.listeners.append(listener)
        return listener

    def add_protocol(self, protocol: ServerProtocol) -> None:
        """Serve clients of another protocol too, from the next turn on."""
        self._protocols.append(protocol)

    def set_wall_clock(self, now: float, epoch_us: int) -> None:
        """Set the wall clock at `now`. An earlier time than before is ignored: it never goes backwards."""
        self._wall_us = max(self._wall_us, epoch_us - int(now * 1e6))

    def advance(self, now: float) -> None:
        """Input of a protocol beside the native one has arrived at this time."""
        self._now = max(self._now, now)

    def change_settings(self, settings: Settings) -> None:
        """Apply new topics, policies and access rules. Limits of connections apply to new listeners."""
        self._inputs = -1
        self.broker.change_settings(settings)

    def import_staged(self, event: Import) -> None:
        """Append messages that were staged with the archive. The answer will be in `imported`."""
        self.broker.handle(event, self.now_us)

    def close(self, now: float) -> None:
        """Notify all clients that the broker is being stopped."""
        self._now = now
        self.native.close(now)
        for protocol in self._protocols:
            protocol.close(now)

    @property
    def buffered_bytes(self) -> int:
        """The bytes held beside the log: in the transport, and of appends that wait."""
        return self.native.buffered_bytes + self.log.held_bytes

    @property
    def now_us(self) -> int:
        """The wall clock at the last input, microseconds since the epoch."""
        return int(self._now * 1e6) + self._wall_us

    def next_timer(self) -> float:
        """Return when a turn is needed, if nothing else happens before."""
        due_us = self.broker.next_timer_us()
        log_due_us = self.log.due_us
        if log_due_us is not None:
            if log_due_us == 0:
                return self._now
            due_us = min(due_us, log_due_us)
        for protocol in self._protocols:
            if protocol.has_input:
                return self._now
            protocol_us = protocol.next_timer_us()
            if protocol_us is not None and protocol_us < due_us:
                due_us = protocol_us
        return (due_us + 1 - self._wall_us) / 1e6  # rounded down it would come too early, again and again

    # -- the turn -----------------------------------------------------------------------------------------------------

    def run_turn(self) -> list[Notice]:
        """Take all input since the last turn through protocols, core and log. Return the notices for the operator."""
        broker = self.broker
        native = self.native
        now = self._now
        for endpoint in native.endpoints:
            if endpoint.now > now:
                now = endpoint.now
        self._now = native.now = now
        broker.now_us = now_us = max(int(now * 1e6) + self._wall_us, broker.now_us)
        if self._is_idle(now_us):
            return []
        native.handle_input(now_us)
        for protocol in self._protocols:
            protocol.handle_input(now_us)
        if broker.next_timer_us() <= now_us:
            broker.handle(Tick(), now_us)
        self._carry_out()
        inputs = broker.inputs
        self.log.work(now_us)
        if broker.inputs != inputs:
            self._carry_out()
        for protocol in self._protocols:
            protocol.flush()
        self._inputs = broker.inputs
        notices = self._notices[:]
        self._notices.clear()
        return notices

    def _is_idle(self, now_us: int) -> bool:
        """Return whether a turn would do nothing: most packets only acknowledge others."""
        broker = self.broker
        if broker.inputs != self._inputs or broker.effects or not self.log.is_idle:
            return False
        for protocol in self._protocols:
            due_us = protocol.next_timer_us()
            if protocol.has_input or (due_us is not None and due_us <= now_us):
                return False
        for endpoint in self.native.endpoints:
            if endpoint.pending_events:
                return False
        return broker.next_timer_us() > now_us

    def _carry_out(self) -> None:
        """End the core's turn and execute its effects, until the log has no more answers at once."""
        apply = self._apply
        broker = self.broker
        inputs = -1
        while broker.inputs != inputs:
            inputs = broker.inputs
            for effect in broker.end_turn():
                apply[type(effect)](effect)

    def _append(self, effect: Append) -> None:
        self.log.append(effect, self.now_us)

    def _locate(self, effect: Locate) -> None:
        self.log.locate(effect, self.now_us)


class Listener:
    """One socket's endpoint, in the shape that the driver expects."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._server = server
        # The endpoint's own methods, not wrapped: they are called for every train.
        self.receive: Callable[[Train, float], None] = endpoint.receive
        self.handle_timers: Callable[[float], None] = endpoint.handle_timers
        self.next_train: Callable[[float], Train | None] = endpoint.next_train
        self.events: Callable[[], list[Notice]] = server.run_turn
        """The driver's name for a turn: it hands the result to the application."""
        self.pending_events: Sequence[object] = endpoint.pending_events
        """Input for the next turn. The log and timers ask for a turn in other ways."""

    def next_timer(self) -> float | None:
        """Return when a turn is needed, if nothing else happens before."""
        timer = self.endpoint.next_timer()
        due = self._server.next_timer()
        return due if timer is None else min(timer, due)


def endpoint_config(settings: Settings, *, receive_buffer_bytes: int) -> EndpointConfig:
    """Return the configuration of a listener: the kernel's buffer, and the limits of the settings."""
    max_record_bytes = settings.max_message_bytes + (limits.MAX_RECORD_BYTES - limits.MAX_MESSAGE_BYTES)
    return EndpointConfig(
        accepts=True,
        needs_admission=True,
        receive_buffer_bytes=receive_buffer_bytes,
        max_datagram_bytes=settings.max_datagram_bytes,
        max_connections=settings.max_clients,
        max_connections_per_host=settings.max_clients_per_host,
        max_record_bytes=max_record_bytes,
        connection_window_bytes=settings.client_window_bytes,
        channel_window_bytes=min(limits.CHANNEL_WINDOW_BYTES, settings.client_window_bytes),
        # The native protocol has windows of its own; one record may be longer than the rest of each.
        send_buffer_bytes=settings.client_window_bytes
        + max_record_bytes
        + limits.WORK_WINDOW_BYTES
        + limits.MAX_WORK_RECORD_BYTES,
    )
