"""A stand-in for a broker: it accepts logins, opens channels and confirms, which is enough for the senders."""

from __future__ import annotations

import os
import select
import threading
import time
from types import TracebackType

from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Received
from godwit.wire.batch import decode_head
from godwit.wire.control import (
    Login,
    Opened,
    PublishOpen,
    PublishRefused,
    Welcome,
    decode_control,
    encode_control,
)
from godwit.wire.control_base import Code


class StandIn:
    """A broker in a thread; with `loses`, it drops each n-th train that it receives once the channels are open."""

    def __init__(self, *, loses: int = 0, refuses: bool = False) -> None:
        self.messages = 0
        self._refuses = refuses
        self._loses = loses
        self._trains = 0
        self._udp = UdpSocket("127.0.0.1")
        self.port: int = self._udp.local_address[1]
        config = EndpointConfig(accepts=True, receive_buffer_bytes=self._udp.receive_buffer_bytes)
        self._endpoint = Endpoint(config, entropy=os.urandom)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._udp.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            select.select([self._udp], [], [], 0.002)
            now = time.monotonic()
            for train in self._udp.receive_trains():
                self._trains += 1
                if not self._loses or not self.messages or self._trains % self._loses:
                    self._endpoint.receive(train, now)
            self._endpoint.handle_timers(now)
            for event in self._endpoint.events():
                if isinstance(event, Received):
                    self._on_record(event)
            for train in self._endpoint.trains(now):
                self._udp.send(train)

    def _on_record(self, event: Received) -> None:
        connection = event.connection
        connection.consume(event.channel, len(event.body))
        if event.channel and event.record:
            self.messages += decode_head(event.body).count
            connection.confirm(event.channel, event.record, 1)
            return
        self._on_control(event, connection)

    def _on_control(self, event: Received, connection: Connection) -> None:
        match decode_control(event.body):
            case Login(request=request, name=name):
                answer = Welcome(request=request, name=name or "unnamed", max_message_bytes=1 << 20)
                connection.send(0, encode_control(answer))
            case PublishOpen() if self._refuses:
                refused = PublishRefused(channel=event.channel, code=Code.NOT_ALLOWED, text="not here")
                connection.send(0, encode_control(refused))
            case PublishOpen():
                connection.send(0, encode_control(Opened(channel=event.channel)))
