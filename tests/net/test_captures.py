"""Captures of a broker's packets: rights, filters, limits, and that they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.capture.dissected import needs_tshark, run_tshark
from tests.net.running import run, service
from tests.net.test_bridge import broker as make_broker

import godwit
from godwit.broker.access import Access, Rule
from godwit.broker.ports import CaptureRequest, RequestFailure
from godwit.capture.conversation import read_reports
from godwit.capture.pcapng import RECEIVED, SENT, CapturedDatagram, packet_block, read_capture
from godwit.errors import AccessError, BrokerError
from godwit.net import captures
from godwit.net.captures import BrokerCaptures, CaptureFilter, capture_counts, capture_packets
from godwit.net.client import AsyncClient, connect
from godwit.net.service import Service
from godwit.server.configuration import BridgeSection
from godwit.transport.events import Train

MIB = 1024 * 1024
LONG_S = 600


async def collected(client: AsyncClient, work: AsyncIterator[None] | None = None, **options: Any) -> list[bytes]:
    """Capture until the limits end it. `work` runs once the capture has begun, and ends it by `end_captures`."""
    arguments = {"seconds": 1 if work is None else LONG_S, "max_bytes": 16 * MIB, **options}
    pieces: list[bytes] = []
    async for piece in capture_packets(client, **arguments):
        if not pieces and work is not None:
            await anext(work, None)
        pieces.append(piece)
    return pieces


def end_captures(service: Service) -> None:
    """Let the captures of a broker end with their next tick, as if their time had passed."""
    assert service._captures is not None
    for capture in service._captures._running:
        capture.ends_at = 0.0


async def publishing(service: Service, count: int = 20, size: int = 10, name: str = "sensor") -> AsyncIterator[None]:
    async with connect(service.urls[0], name=name) as client:
        for _ in range(count):
            await client.publish("t/x", b"x" * size)
    end_captures(service)
    yield


def test_packets_in_both_directions_are_recorded_and_the_operators_are_not(tmp_path: Any) -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0], name="operator") as client:
            pieces = await collected(client, publishing(broker))
            datagrams = list(read_capture(b"".join(pieces)))
            assert {one.direction for one in datagrams} == {RECEIVED, SENT}
            local = broker.addresses[0][:2]
            assert all(local in (one.source, one.destination) for one in datagrams)
            assert len({one.source for one in datagrams} - {local}) == 1  # one client, and not the operator
            texts = [part for report in read_reports(datagrams) for part in report.parts]
            for word in (
                "HELLO",
                "COOKIE",
                "CONNECT",
                "ACCEPT",
                "login",
                "welcome",
                "open",
                "1 message, QoS 1",
                "CLOSE",
            ):
                assert any(word in text for text in texts), (word, texts)
            times = [one.time_ns for one in datagrams]
            assert times == sorted(times)
            assert capture_counts(pieces[-1]) == (len(datagrams), 0)
            (tmp_path / "x.pcapng").write_bytes(b"".join(pieces))
            assert not any(driver.udp.on_train for driver in broker._drivers)

    run(main)


@needs_tshark
def test_tshark_finds_nothing_malformed(tmp_path: Any) -> None:
    test_packets_in_both_directions_are_recorded_and_the_operators_are_not(tmp_path)
    path = tmp_path / "x.pcapng"
    assert run_tshark(path, "-Y", "_ws.malformed || godwit.expert.malformed || !godwit") == ""
    assert "DATA login" in run_tshark(path)


@needs_tshark
def test_sealed_connections_and_bridges_are_shown(tmp_path: Path) -> None:
    """A sealed client, and a bridge whose channel was opened before the capture, at a hub."""
    path = tmp_path / "x.pcapng"

    async def main() -> None:
        hub = make_broker(tmp_path / "hub")
        async with hub, connect(hub.urls[0], name="operator") as operator:
            bridge = BridgeSection(name="edge", hub=hub.urls[0])
            async with make_broker(tmp_path / "edge", bridge) as edge, connect(edge.urls[0]) as device:
                await device.publish("t/first", b"1")
                while hub.server.broker.end_offset < 1:  # the bridge runs
                    await asyncio.sleep(0.02)

                async def work() -> AsyncIterator[None]:
                    sealed = hub.urls[0].replace("udp://", "udps://")
                    security = godwit.Security(known_brokers=str(tmp_path / "known"))
                    async with connect(sealed, name="s", security=security) as client:
                        await client.publish("t/sealed", b"very secret")
                    await device.publish("t/second", b"2")
                    while hub.server.broker.end_offset < 3:
                        await asyncio.sleep(0.02)
                    end_captures(hub)
                    yield

                path.write_bytes(b"".join(await collected(operator, work())))

    run(main)
    data = path.read_bytes()
    assert b"very secret" not in data
    assert run_tshark(path, "-Y", "_ws.malformed || godwit.expert.malformed || !godwit") == ""
    assert "CRYPTO" in run_tshark(path)
    assert "sealed, " in run_tshark(path, "-Y", "godwit.sealed == 1")
    assert run_tshark(path, "-Y", "godwit.relay", "-T", "fields", "-e", "godwit.batch.topic").split() == ["t/second"]
    texts = [part for report in read_reports(read_capture(data)) for part in report.parts]
    for word in ("CRYPTO bytes 0-", "sealed, ", "relay of offsets 1 to 2, 1 message"):
        assert any(word in text for text in texts), (word, texts)


def test_a_filter_selects_a_client() -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0], name="operator") as client:
            async with connect(broker.urls[0], name="wanted one") as wanted, connect(broker.urls[0]) as other:

                async def both() -> AsyncIterator[None]:
                    for _ in range(5):
                        await wanted.publish("t", b"w")
                        await other.publish("t", b"o")
                    end_captures(broker)
                    yield

                pieces = await collected(client, both(), filter="client='wanted one' direction=in")
            datagrams = list(read_capture(b"".join(pieces)))
            assert datagrams
            assert {one.direction for one in datagrams} == {RECEIVED}
            assert len({one.source for one in datagrams}) == 1

    run(main)


def test_it_ends_with_its_size() -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            pieces = await collected(client, publishing(broker, 50, 1000), max_bytes=20_000)
            data = b"".join(pieces)
            assert 10_000 < len(data) < 21_000
            assert list(read_capture(data))

    run(main)


def test_packets_can_be_cut() -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            datagrams = list(read_capture(b"".join(await collected(client, publishing(broker), packet_bytes=64))))
            assert max(len(one.data) for one in datagrams) == 64
            assert max(one.length for one in datagrams) == 1200  # a hello

    run(main)


def test_the_rate_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "TICK_BYTES", 3000)

    async def main() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            pieces = await collected(client, publishing(broker, 300, 1000))
            packets, dropped = capture_counts(pieces[-1])
            assert dropped > 0
            assert packets == len(list(read_capture(b"".join(pieces))))

    run(main)


def lone_capture() -> captures._RunningCapture:
    anyone: Any = None
    request = CaptureRequest(peer=anyone, inbox="", seconds=1, max_bytes=16 * MIB, packet_bytes=65_535, filter="")
    return captures._RunningCapture(request, CaptureFilter(), 0.0)


def test_a_slow_client_gets_the_statistics_before_the_end() -> None:
    sent: list[bytes] = []
    replies: list[bool | None] = [False, True, False, True, True]

    class SlowInbox:
        administration = SimpleNamespace()

        def send_to_inbox(self, inbox: str, payload: bytes) -> bool | None:
            reply = replies.pop(0)
            if reply:
                sent.append(payload)
            return reply

    async def main() -> None:
        broker: Any = SlowInbox()
        running, capture = BrokerCaptures(broker, []), lone_capture()
        capture.packets = 7
        assert [running._end(capture) for _ in range(3)] == [False, False, True]
        replies[:] = [None]
        assert running._end(capture)

    run(main)
    assert [capture_counts(payload)[0] for payload in sent[:-1]] == [7, 7]
    assert sent[-1] == b""


def test_packets_beyond_the_rate_cost_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CapturedDatagram] = []

    def counted(datagram: CapturedDatagram) -> bytes:
        made.append(datagram)
        return packet_block(datagram)

    monkeypatch.setattr(captures, "packet_block", counted)
    capture = lone_capture()
    capture.record(0, ("192.0.2.1", 50_000), Train(("192.0.2.7", 40_001), bytes(1000 * 1000), 1000), RECEIVED)
    assert 0 < len(made) == capture.pending_packets < 1000
    assert capture.dropped == 1000 - len(made)


def test_it_needs_the_right_to_kick() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=("#",)),))

    async def main() -> None:
        async with service(access=access) as broker, connect(broker.urls[0]) as client:
            with pytest.raises(AccessError, match="may not see the packets of others: this needs the right to kick"):
                await collected(client)

    run(main)


def test_too_many_captures_are_refused_and_others_end_with_their_clients() -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            others = [connect(broker.urls[0]) for _ in range(captures.MAX_CAPTURES)]
            running = []
            for other in others:
                one = capture_packets(await other.__aenter__(), seconds=600, max_bytes=MIB)
                await anext(one)
                running.append(one)
            with pytest.raises(BrokerError, match="4 captures are under way"):
                await collected(client)
            for other, one in zip(others, running, strict=True):
                await one.aclose()
                await other.__aexit__(None, None, None)
            assert broker._captures is not None
            while broker._captures._running:
                await asyncio.sleep(0.02)
            assert await collected(client)

    run(main)


def test_a_broker_can_stop_during_a_capture() -> None:
    async def main() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            pieces = capture_packets(client, seconds=600, max_bytes=MIB)
            await anext(pieces)
            await broker.stop()
            await pieces.aclose()

    run(main)


@pytest.mark.parametrize(
    "text",
    ["port", "port=x", "port=0", "port=70000", "direction=up", "host=", "color=red", "client='a", "\x1b[31m<script>"],
)
def test_invalid_filters(text: str) -> None:
    with pytest.raises(RequestFailure) as raised:
        CaptureFilter.parse(text)
    assert "is invalid, because" in raised.value.text


def test_filters() -> None:
    one = CaptureFilter.parse("host=192.0.2.7 port=40001")
    assert one.matches(("192.0.2.7", 40001), SENT, None)
    assert not one.matches(("192.0.2.7", 40002), SENT, None)
    assert not one.matches(("192.0.2.8", 40001), SENT, None)
    assert not CaptureFilter.parse("direction=in").matches(("192.0.2.7", 1), SENT, None)
    assert not CaptureFilter.parse("client=a").matches(("192.0.2.7", 1), SENT, None)
    assert CaptureFilter.parse("").matches(("192.0.2.7", 1), SENT, None)
    assert isinstance(CapturedDatagram(0, ("a", 1), ("b", 2), b""), tuple)
