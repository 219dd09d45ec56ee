"""Endpoints, broker and log as one machine, sans-IO. A listener is one socket's part of it.

    feed     Listener.receive, Listener.handle_timers (see godwit.net.driver); change_settings, import_staged, close
    drain    Listener.events (notices for the people who run it), Listener.next_train, Listener.next_timer, imported
    look     buffered_bytes, broker, log

All listeners share one broker: what is fed to one may give another something to send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from godwit import limits
from godwit.broker.broker import Broker
from godwit.broker.effects import (
    Admit,
    Append,
    Close,
    Confirm,
    Consume,
    Import,
    Imported,
    Locate,
    Notice,
    Open,
    Read,
    Send,
    Tick,
)
from godwit.broker.settings import Settings
from godwit.errors import ChannelError, ConnectionClosedError, SendBufferFullError, UsageError
from godwit.server.log import Log
from godwit.transport.admission import ReceiveBudget
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Connected, Event, Train
from godwit.wire.control_base import Code

STOPPING: Final = "the broker is being stopped"


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
    ) -> None:
        self._entropy = entropy
        self._budget = ReceiveBudget(entropy)
        self._is_stopping = False
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
        self.listeners: list[Listener] = []
        self._notices: list[Notice] = []
        self.imported: list[Imported] = []
        """Whoever takes one removes it."""
        self._apply: dict[type[Any], Callable[[Any], None]] = {
            Send: self._send,
            Confirm: self._confirm,
            Consume: self._consume,
            Append: self._append,
            Open: self._open,
            Admit: self._admit,
            Close: self._close,
            Read: log.read,
            Locate: self._locate,
            Imported: self.imported.append,
            Notice: self._notices.append,
        }

    def listen(self, config: EndpointConfig) -> Listener:
        """One more socket; `config` says what its kernel can do, the limits come from the settings."""
        listener = Listener(self, Endpoint(config, entropy=self._entropy, budget=self._budget))
        self.listeners.append(listener)
        return listener

    def set_wall_clock(self, now: float, epoch_us: int) -> None:
        """Tells what time it is at `now`. It never goes backwards: an earlier time than before is not taken."""
        self._wall_us = max(self._wall_us, epoch_us - int(now * 1e6))

    def change_settings(self, settings: Settings) -> None:
        """New topics, policies and access rules. Limits of connections hold for new listeners."""
        self.broker.change_settings(settings)

    def import_staged(self, event: Import) -> None:
        """Messages that were staged with the archive. The answer will be in `imported`."""
        self.broker.handle(event, self._now_us)

    def close(self, now: float) -> None:
        """Tells all clients that the broker is being stopped."""
        self._now = now
        self._is_stopping = True
        for listener in self.listeners:
            for connection in list(listener.endpoint.connections.values()):
                connection.close(now, Code.SHUTDOWN, STOPPING)

    @property
    def buffered_bytes(self) -> int:
        """What is held beside the log: in the transport, and of appends that wait."""
        return sum(listener.endpoint.buffered_bytes for listener in self.listeners) + self.log.held_bytes

    # -- the turn -----------------------------------------------------------------------------------------------------

    @property
    def _now_us(self) -> int:
        return int(self._now * 1e6) + self._wall_us

    def next_timer(self) -> float:
        """When a turn is wanted, if nothing else happens before."""
        due_us = self.broker.next_timer_us()
        log_due_us = self.log.due_us
        if log_due_us == 0:
            return self._now
        if log_due_us is not None:
            due_us = min(due_us, log_due_us)
        return (due_us + 1 - self._wall_us) / 1e6  # rounded down it would come too early, again and again

    def turn(self) -> list[Notice]:
        """Everything that was fed since the last turn goes through broker and store. Gives the notices."""
        broker = self.broker
        for listener in self.listeners:
            self._now = max(self._now, listener.endpoint.now)
        now_us = self._now_us
        for listener in self.listeners:
            events = listener.endpoint.events()
            if self._is_stopping:
                events = [event for event in events if not self._turn_away(event)]
            if events:
                broker.handle_all(events, now_us)
        if broker.next_timer_us() <= now_us:
            broker.handle(Tick(), now_us)
        self._carry_out()
        self.log.work(now_us)
        self._carry_out()
        notices = self._notices[:]
        self._notices.clear()
        return notices

    def _turn_away(self, event: Event) -> bool:
        """Whether it was somebody who came back while the broker is being stopped."""
        is_early = type(event) is Connected
        if is_early:
            event.connection.close(self._now, Code.SHUTDOWN, STOPPING)
        return is_early

    def _carry_out(self) -> None:
        apply = self._apply
        while effects := self.broker.effects():
            for effect in effects:
                apply[type(effect)](effect)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        try:
            effect.connection.send(effect.channel, effect.body, reliable=effect.reliable, last=effect.last)
        except ConnectionClosedError:
            pass  # its Closed event is on the way to the broker
        except (SendBufferFullError, UsageError) as error:
            # Too many replies wait that it does not take, or it takes only shorter records than it asked for.
            effect.connection.close(self._now, Code.LIMIT, f"nothing more can be sent to it: {error}"[:200])

    def _confirm(self, effect: Confirm) -> None:
        connection = effect.connection
        try:  # noqa: SIM105  # for every record of every small sender: suppress would cost a microsecond
            connection.confirm(effect.channel, effect.record, effect.reached)
        except ConnectionClosedError:
            pass
        if effect.body_bytes >= 0:
            connection.consume(effect.channel, effect.body_bytes)

    def _consume(self, effect: Consume) -> None:
        effect.connection.consume(effect.channel, effect.body_bytes)

    def _open(self, effect: Open) -> None:
        try:
            channel = effect.connection.open_channel()
        except ConnectionClosedError:
            return
        except ChannelError as error:
            effect.connection.close(self._now, Code.LIMIT, f"it takes too few channels: {error}")
            return
        assert channel == effect.channel, f"the broker counted {effect.channel}, the transport {channel}"

    def _admit(self, effect: Admit) -> None:
        effect.connection.admit()

    def _close(self, effect: Close) -> None:
        effect.connection.close(self._now, effect.code, effect.reason)

    def _append(self, effect: Append) -> None:
        self.log.append(effect, self._now_us)

    def _locate(self, effect: Locate) -> None:
        self.log.locate(effect, self._now_us)


class Listener:
    """One socket's endpoint, in the shape that the driver knows."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._server = server
        # The endpoint's own, not wrapped: they are called for every train.
        self.receive: Callable[[Train, float], None] = endpoint.receive
        self.handle_timers: Callable[[float], None] = endpoint.handle_timers
        self.next_train: Callable[[float], Train | None] = endpoint.next_train

    def events(self) -> list[Notice]:
        """Does the server's work for everything that was fed, and gives what is worth telling."""
        return self._server.turn()

    def next_timer(self) -> float | None:
        timer = self.endpoint.next_timer()
        due = self._server.next_timer()
        return due if timer is None else min(timer, due)


def endpoint_config(settings: Settings, *, receive_buffer_bytes: int) -> EndpointConfig:
    """What a listener offers: the kernel's buffer, and the limits of the settings."""
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
        # The broker bounds what is under way by its windows; one record may be longer than what is left of each.
        send_buffer_bytes=settings.client_window_bytes
        + max_record_bytes
        + limits.WORK_WINDOW_BYTES
        + limits.MAX_WORK_RECORD_BYTES,
    )
