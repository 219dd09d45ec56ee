"""A relay that ends TLS on both sides records a login: the login is refused on every other connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import Notices, run
from tests.transport.sealed import RealSealer

from godwit.errors import GodwitError
from godwit.net.connecting import connect
from godwit.net.driver import EndpointDriver
from godwit.net.security import Security
from godwit.net.service import Service
from godwit.net.tls import new_identity
from godwit.net.udp import UdpSocket
from godwit.server.configuration import load_configuration
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received
from godwit.wire.control import Login, Welcome, decode_control, encode_control, make_proof
from godwit.wire.control_base import Code

SECRET = "a long and random secret"
CONFIG = f"""
[access]
anonymous = false
[[access.client]]
name = "one"
secret = "{SECRET}"
[security]
plain = "refuse"
"""
WRONG = "the proof of the name 'one' is missing or wrong"


class SealedSide:
    """A sealed endpoint on a socket: its records on channel 0, and how its last connection ended."""

    def __init__(self, *, accepts: bool, on_record: Callable[[bytes], None] = lambda body: None) -> None:
        udp = UdpSocket("127.0.0.1")
        self.address = udp.local_address
        config = EndpointConfig(accepts=accepts, receive_buffer_bytes=udp.receive_buffer_bytes)
        self.endpoint = Endpoint(config, entropy=os.urandom, sealer=RealSealer(new_identity()))
        self.connected: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.answer: asyncio.Future[Closed | bytes] = asyncio.get_running_loop().create_future()
        self._on_record = on_record
        self.driver = EndpointDriver(self.endpoint, udp, self._on_events)

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected) and not self.connected.done():
                self.connected.set_result(event.connection)
            elif isinstance(event, Received) and event.channel == 0:
                event.connection.consume(0, len(event.body))
                self._on_record(bytes(event.body))
                self._settle(bytes(event.body))
            elif isinstance(event, Closed):
                self._settle(event)

    def _settle(self, answer: Closed | bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


async def ask(broker: Address, make_login: Callable[[Connection], bytes]) -> Closed | bytes:
    """Connect to a broker, send a login, and return the first record of its reply, or how it closed the connection."""
    side = SealedSide(accepts=False)
    try:
        side.endpoint.connect(broker, side.driver.clock())
        side.driver.flush()
        connection = await side.connected
        connection.send(0, make_login(connection))
        side.driver.flush()
        return await side.answer
    finally:
        side.driver.close()


def test_a_relayed_or_recorded_login_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        settings = load_configuration(CONFIG, read_secret=lambda path: b"")
        notices = Notices()
        async with Service(replace(settings, listen=["127.0.0.1:0"]), notices=notices) as service:
            broker = service.addresses[0]
            recorded: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            def record(body: bytes) -> None:
                if not recorded.done():
                    recorded.set_result(body)

            middle = SealedSide(accepts=True, on_record=record)
            trusting = Security(seal="always", known_brokers=tmp_path / "known_brokers")

            async def victim() -> None:
                address = f"udps://127.0.0.1:{middle.address[1]}"
                async with connect(address, name="one", secret=SECRET, timeout_s=10.0, security=trusting):
                    pytest.fail("a broker that does not know the secret was accepted")

            deceived = asyncio.create_task(victim())
            login = await recorded
            sent = decode_control(login)
            assert isinstance(sent, Login)
            assert sent.name == "one"
            assert sent.proof
            for _ in range(2):  # relayed at once, and once more later
                refused = await ask(broker, lambda connection: login)
                assert isinstance(refused, Closed)
                assert refused.code == Code.NOT_ALLOWED
            assert [text.endswith(WRONG) for text in notices.texts("refused")] == [True, True]
            assert "one" not in service.server.broker.sessions
            with pytest.raises(GodwitError):
                await deceived
            middle.driver.close()

            def own(connection: Connection) -> bytes:
                proof = make_proof(SECRET.encode(), "client", connection.binding, "one")
                return encode_control(Login(request=1, name="one", instance=bytes(16), proof=proof))

            welcome = await ask(broker, own)
            assert isinstance(welcome, bytes)
            assert isinstance(decode_control(welcome), Welcome), "the same way is open to the right proof"

    run(test, deadline_s=120.0)
