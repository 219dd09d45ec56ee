"""The native protocol: events of the transport in, records out. It joins the transport and the broker core.

    input     handle_input(now_us) takes the events of all endpoints; handle(event, now_us) takes one
    output    handlers: how the server executes the protocol's effects (godwit.native.effects)

Channel 0 carries control messages. A channel that the client opens is for publishing, for work on jobs or for a bridge;
a channel that the broker opens carries the messages of one subscription, or work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from godwit.broker.broker import Broker
from godwit.errors import ChannelError, ConnectionClosedError, DecodeError, SendBufferFullError, UsageError
from godwit.limits import MAX_FIRST_ITEMS, MAX_OPEN_RECORD_BYTES
from godwit.native.control_router import ControlRouter
from godwit.native.effects import (
    AdmitConnection,
    CloseConnection,
    ConfirmRecord,
    OpenChannel,
    ReturnCredit,
    SendRecord,
)
from godwit.native.job_service import NativeJobs
from godwit.native.peer import FloodError, NativePeer, address_of
from godwit.native.publish_channel import PublishChannel
from godwit.native.relay_channel import RelayChannel
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import (
    ChannelConfirmed,
    Closed,
    Connected,
    Event,
    PathChanged,
    Received,
    Writable,
)
from godwit.wire import control
from godwit.wire.control import MalformedError, decode_control
from godwit.wire.control_base import Code
from godwit.wire.relay import RelayOpen

STOPPING: Final = "the broker is being stopped"


class NativeProtocol:
    """See the module's first lines."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._effects = broker.effects
        self._peers: dict[Connection, NativePeer] = {}
        self._jobs = NativeJobs(broker.jobs, self._peers, broker.effects)
        self._router = ControlRouter(broker, self._jobs.requests)
        self._is_stopping = False
        self.endpoints: list[Endpoint] = []
        self.now = 0.0
        """The time of the present turn, monotonic seconds."""
        self.handlers: dict[type[Any], Callable[[Any], None]] = {
            SendRecord: self._send,
            ConfirmRecord: self._confirm,
            ReturnCredit: self._return_credit,
            OpenChannel: self._open_channel,
            AdmitConnection: self._admit,
            CloseConnection: self._close,
        }
        self._event_handlers: dict[type[Any], Callable[[Any, int], None]] = {
            Received: self._on_received,
            ChannelConfirmed: self._on_confirmed,
            Connected: self._on_connected,
            Closed: self._on_closed,
            Writable: self._ignore,
            PathChanged: self._on_path_changed,
        }

    def handle_input(self, now_us: int) -> None:
        """Take the events of all endpoints."""
        handlers = self._event_handlers
        for endpoint in self.endpoints:
            if endpoint.pending_events:
                for event in endpoint.events():
                    handlers[type(event)](event, now_us)

    def handle(self, event: Event, now_us: int) -> None:
        """Take one event."""
        self._broker.inputs += 1
        self._broker.now_us = now_us = max(now_us, self._broker.now_us)
        self._event_handlers[type(event)](event, now_us)

    def close(self, now: float) -> None:
        """Notify all clients that the broker is being stopped; clients that connect from now on are refused."""
        self.now = now
        self._is_stopping = True
        for endpoint in self.endpoints:
            for connection in list(endpoint.connections.values()):
                connection.close(now, Code.SHUTDOWN, STOPPING)

    @property
    def buffered_bytes(self) -> int:
        """The bytes that the transport holds."""
        return sum([endpoint.buffered_bytes for endpoint in self.endpoints])

    # -- events of the transport --------------------------------------------------------------------------------------

    def _on_connected(self, event: Connected, now_us: int) -> None:
        connection = event.connection
        if self._is_stopping:
            connection.close(self.now, Code.SHUTDOWN, STOPPING)
            return
        peer = NativePeer(connection, self._broker.settings.client_window_bytes, self._effects)
        self._peers[connection] = peer
        self._broker.connect(peer, now_us)

    def _on_closed(self, event: Closed, now_us: int) -> None:
        peer = self._peers.pop(event.connection, None)
        if peer is None:
            return
        is_stopping = event.origin == "local" and event.code == Code.SHUTDOWN
        said_goodbye = event.origin == "peer" and event.code in (Code.NORMAL, Code.SHUTDOWN)
        reason = "" if said_goodbye else event.reason or f"code {event.code}"
        self._broker.disconnect(peer, now_us, was_expected=said_goodbye, reason=reason, is_stopping=is_stopping)
        peer.forget()

    def _on_received(self, event: Received, now_us: int) -> None:
        peer = self._peers.get(event.connection)
        if peer is None or not peer.is_open:
            return
        number = event.channel
        try:
            channel = peer.publish_channels.get(number)
            if channel is not None:
                channel.handle(event, now_us)
            elif number == 0:
                self._router.handle(peer, event.body, now_us)
            elif peer.job_peer is not None and peer.job_peer.channel == number:
                self._jobs.handle_record(peer.job_peer, event, now_us)
            elif event.reliable:
                self._on_first_record(peer, event, now_us)
            # An unreliable record that has overtaken record 0 of its channel is lost, as it may be.
        except FloodError as flood:
            self._broker.close(peer, Code.LIMIT, str(flood))
        except DecodeError as error:
            self._broker.close(peer, Code.PROTOCOL, f"on channel {number}: {error}")

    def _on_first_record(self, peer: NativePeer, event: Received, now_us: int) -> None:
        session = peer.session
        number = event.channel
        if session is None:
            self._broker.close(peer, Code.NOT_LOGGED_IN, "a channel was opened before the login")
            return
        if event.record:
            raise DecodeError("control", "a record behind the end of a channel")
        peer.require_open_rate(now_us)
        self._effects.append(ReturnCredit(peer.connection, number, len(event.body)))
        if event.last:
            return
        try:
            request = decode_control(event.body, max_bytes=MAX_OPEN_RECORD_BYTES, max_items=MAX_FIRST_ITEMS)
        except MalformedError as error:
            PublishChannel(self._broker, peer, session, number, self._effects, 0).refuse(Code.MALFORMED, error.detail)
            return
        if isinstance(request, control.PublishOpen):
            PublishChannel(self._broker, peer, session, number, self._effects, request.qos).open(request)
        elif isinstance(request, control.Work):
            self._jobs.handle_open(peer, session, number)
        elif isinstance(request, RelayOpen):
            RelayChannel(self._broker, peer, session, number, self._effects).open(request, now_us)
        else:
            raise DecodeError("control", "record 0 of a channel is neither open, work nor relay")

    def _on_confirmed(self, event: ChannelConfirmed, now_us: int) -> None:
        peer = self._peers.get(event.connection)
        if peer is None:
            return
        outbound = peer.channels.get(event.channel)
        if outbound is not None:
            outbound.handle_confirm(self._broker, event.channel, event.sequence)
            return
        job_peer = peer.job_peer
        if job_peer is not None and job_peer.work_channel.channel == event.channel:
            self._jobs.handle_confirm(job_peer, event.sequence)

    def _on_path_changed(self, event: PathChanged, now_us: int) -> None:
        peer = self._peers.get(event.connection)
        if peer is not None:
            peer.address = address_of(event.connection)

    def _ignore(self, event: Writable, now_us: int) -> None:
        """Ignore it: the protocol has a window of its own, see NativePeer.window_bytes."""

    # -- effects ------------------------------------------------------------------------------------------------------

    def _send(self, effect: SendRecord) -> None:
        try:
            effect.connection.send(effect.channel, effect.body, reliable=effect.reliable, last=effect.last)
        except ConnectionClosedError:
            pass  # its Closed event follows
        except (SendBufferFullError, UsageError) as error:
            # The client does not take its replies, or accepts only shorter records than it asked for.
            effect.connection.close(self.now, Code.LIMIT, f"nothing more can be sent to it: {error}"[:200])

    def _confirm(self, effect: ConfirmRecord) -> None:
        connection = effect.connection
        try:  # noqa: SIM105  # for every record of every small sender: suppress would cost a microsecond
            connection.confirm(effect.channel, effect.record, effect.reached)
        except ConnectionClosedError:
            pass
        if effect.body_bytes >= 0:
            connection.consume(effect.channel, effect.body_bytes)

    def _return_credit(self, effect: ReturnCredit) -> None:
        effect.connection.consume(effect.channel, effect.body_bytes)

    def _open_channel(self, effect: OpenChannel) -> None:
        try:
            channel = effect.connection.open_channel()
        except ConnectionClosedError:
            return
        except ChannelError as error:
            effect.connection.close(self.now, Code.LIMIT, f"it takes too few channels: {error}")
            return
        assert channel == effect.channel, f"the broker counted {effect.channel}, the transport {channel}"

    def _admit(self, effect: AdmitConnection) -> None:
        effect.connection.admit()

    def _close(self, effect: CloseConnection) -> None:
        effect.connection.close(self.now, effect.code, effect.reason)
