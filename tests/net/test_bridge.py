"""Bridges between brokers in one event loop: properties, chains, loops, refusals, retention."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.net.running import Notices, run
from tests.ports import free_port

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.client.relay import LogPiece
from godwit.errors import AddressError, UsageError
from godwit.net.bridge import Bridge
from godwit.net.client import AsyncClient, connect
from godwit.net.service import Service
from godwit.net.tls import stored_identity
from godwit.server.configuration import ArchiveSection, BridgeSection, Configuration, SecuritySection
from godwit.store.reader import LogReader
from godwit.store.retention import Retention, RetentionRule
from godwit.wire.batch import extension_of
from godwit.wire.extension import decode_properties
from godwit.wire.relay import BridgeInfo


def broker(folder: Path, *bridges: BridgeSection, listen: str = "127.0.0.1:0", **settings: Any) -> Service:
    configuration = Configuration(
        listen=[listen],
        settings=Settings(**settings),
        data=folder,
        archive=ArchiveSection(is_on=False),
        bridges=bridges,
    )
    return Service(configuration, notices=Notices())


def to(hub: Service, name: str = "edge", **more: Any) -> BridgeSection:
    return BridgeSection(name=name, hub=hub.urls[0], **more)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


def outgoing(edge: Service) -> BridgeInfo:
    return edge.server.broker.relays.outgoing[0]()


async def settled(edge: Service) -> None:
    async def is_settled() -> bool:
        found = outgoing(edge)
        return found.state == "running" and found.position == edge.server.broker.end_offset

    await until(is_settled)


def origins(folder: Path, topic: str) -> list[tuple[str, int]]:
    reader = LogReader.open(folder / "log.sqlite")
    try:
        entries = [entry for _, entry in reader.read(0, 1 << 30).entries if entry.topic == topic]
    finally:
        reader.close()
    found = [decode_properties(extension_of(entry)).origin for entry in entries]
    return [(origin[0].hex(), origin[1]) for origin in found if origin is not None]


def test_messages_keep_their_properties(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker(tmp_path / "hub") as hub:
            bridge = to(hub, filters=("plant/#",), prefix="site/")
            async with (
                broker(tmp_path / "edge", bridge) as edge,
                connect(edge.urls[0], name="press-7") as device,
                connect(hub.urls[0]) as reader,
            ):
                await device.publish("plant/a", b"kept", retain=True, headers={"unit": "C"}, content_type="text/plain")
                await device.publish("plant/b", b"short", expires_s=60)
                await device.publish("other", b"not relayed")
                await settled(edge)
                async with reader.subscribe("#", start="earliest") as messages:
                    first, second = await anext(messages), await anext(messages)
                assert (first.topic, first.payload, first.publisher) == ("site/plant/a", b"kept", "press-7")
                assert dict(first.headers) == {"unit": "C"}
                assert first.content_type == "text/plain"
                assert (second.topic, second.payload) == ("site/plant/b", b"short")
                async with reader.subscribe("site/plant/a") as retained:
                    assert (await anext(retained)).payload == b"kept"
                (info,) = await reader.bridges()
                assert (info.name, info.direction, info.state, info.messages) == ("edge", "in", "running", 2)
                assert info.position == 3
                assert not (await reader.topics("site/other"))

    run(test)


def test_a_chain_has_the_origin_of_the_first_log_and_a_loop_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            broker(tmp_path / "c", listen=f"127.0.0.1:{free_port()}") as last,
            broker(tmp_path / "b", to(last, "b")) as middle,
            broker(tmp_path / "a", to(middle, "a")) as first,
        ):
            async with connect(first.urls[0]) as device:
                await device.publish("x", b"1")
                await device.publish("x", b"2")
            await settled(first)
            await settled(middle)
            log_id = first.server.broker.log_id.hex()
            listen = last.urls[0].removeprefix("udp://")
            first_address = first
            await last.stop()
            # The last one now sends to the first: its messages would come back to it.
            back = BridgeSection(name="c", hub=first_address.urls[0])
            async with broker(tmp_path / "c", back, listen=listen) as again:

                async def is_refused() -> bool:
                    brokers = (first, middle, again)
                    return any("would bring messages of this broker back" in outgoing(one).problem for one in brokers)

                await until(is_refused)
                async with connect(first.urls[0]) as device:
                    await device.publish("x", b"3")
                    await asyncio.sleep(0.3)
                    (topic,) = await device.topics("x")
                    assert topic.messages == 3
        assert origins(tmp_path / "c", "x")[:2] == [(log_id, 0), (log_id, 1)]

    run(test)


def test_rights_and_messages_that_are_too_long(tmp_path: Path) -> None:
    secret = b"a secret of 16 bytes"
    rule = Rule(clients=("edge",), allow=frozenset(("relay",)), topics=("site/#",))
    viewer = Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#", "$relay/#"))
    access = Access(secrets={"edge": secret}, rules=(rule, viewer))

    async def relayed(client: AsyncClient, topic: str) -> bytes:
        async with client.subscribe(topic, start="earliest") as messages:
            return (await anext(messages)).payload

    async def test() -> None:
        async with broker(tmp_path / "hub", access=access, max_message_bytes=1000) as hub:
            for problem, section in (
                ("may not relay '#'", to(hub, secret=secret)),
                ("is not", to(hub, secret=b"another secret")),
            ):
                async with broker(tmp_path / "edge", section) as edge:

                    async def is_refused(edge: Service = edge, problem: str = problem) -> bool:
                        return outgoing(edge).state == "refused" and bool(outgoing(edge).problem)

                    await until(is_refused)
            section = to(hub, secret=secret, prefix="site/")
            async with broker(tmp_path / "edge", section) as edge, connect(edge.urls[0]) as device:
                await device.publish("a", b"x" * 2000)
                await device.publish("a", b"fits")
                await settled(edge)
                async with connect(hub.urls[0]) as reader:
                    assert await relayed(reader, "site/a") == b"fits"
                    report = json.loads(await relayed(reader, "$relay/edge"))
                assert (report["event"], report["reason"], report["messages"]) == ("gap", "too long", 1)
                assert (report["first"], report["end"]) == (0, 1)

    run(test)


def test_bridges_that_are_not_possible(tmp_path: Path) -> None:
    async def test() -> None:
        section = BridgeSection(name="edge", hub="hub:1")
        with pytest.raises(UsageError, match="a bridge sends messages of a log on disk"):
            await Service(Configuration(listen=["127.0.0.1:0"], bridges=(section,))).start()
        with pytest.raises(AddressError, match="bridge edge: "):
            await broker(tmp_path, BridgeSection(name="edge", hub="hub:x")).start()
        async with broker(
            tmp_path, BridgeSection(name="edge", hub="no-such-host.invalid"), listen="127.0.0.1:0"
        ) as edge:

            async def has_problem() -> bool:
                return "no-such-host.invalid" in outgoing(edge).problem

            await until(has_problem)

    run(test)


def test_a_bridge_tries_again_after_an_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Bridge._read
    failures = [ValueError("odd bytes")]

    def fails_once(self: Bridge, offset: int, max_bytes: int) -> LogPiece:
        if failures:
            raise failures.pop()
        return read(self, offset, max_bytes)

    async def test() -> None:
        async with broker(tmp_path / "hub") as hub:
            monkeypatch.setattr(Bridge, "_read", fails_once)
            async with broker(tmp_path / "edge", to(hub)) as edge, connect(edge.urls[0]) as device:
                await device.publish("a", b"1")

                async def has_problem() -> bool:
                    found = outgoing(edge)
                    return (found.state, found.problem) == ("refused", "odd bytes")

                await until(has_problem)
                await settled(edge)

    run(test, deadline_s=120.0)


def test_the_scheme_and_the_fingerprint_of_the_hub_are_used(tmp_path: Path) -> None:
    async def test() -> None:
        configuration = Configuration(
            listen=["127.0.0.1:0"],
            data=tmp_path / "hub",
            archive=ArchiveSection(is_on=False),
            security=SecuritySection(plain="refuse"),
        )
        async with Service(configuration, notices=Notices()) as hub:
            (url,) = hub.urls
            assert url.startswith("udps://")
            other = "sha256:" + 64 * "1"
            async with broker(tmp_path / "edge", BridgeSection(name="edge", hub=f"{url}#{other}")) as edge:

                async def is_refused() -> bool:
                    return f"{other} is expected" in outgoing(edge).problem

                await until(is_refused)
            pinned = f"{url}#{stored_identity(tmp_path / 'hub').fingerprint}"
            async with broker(tmp_path / "edge", BridgeSection(name="edge", hub=pinned)) as edge:
                await settled(edge)
        for hub_text in ("udps://hub:1#sha256:12", f"udp://hub:1#{other}"):
            with pytest.raises(AddressError, match=r"bridge edge: .*fingerprint"):
                await broker(tmp_path / "edge", BridgeSection(name="edge", hub=hub_text)).start()

    run(test, deadline_s=120.0)


def test_a_bridge_with_hold_holds_retention_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = threading.Event()
    step = Retention.step

    def observed(self: Retention, now_us: int) -> Any:
        found = step(self, now_us)
        stepped.set()
        return found

    async def after_a_step(service: Service) -> None:
        await asyncio.get_running_loop().run_in_executor(None, stepped.wait, 120.0)

    async def test() -> None:
        async with broker(tmp_path / "edge") as edge, connect(edge.urls[0]) as device:
            for number in range(3):
                await device.publish("a", bytes([number]))
        monkeypatch.setattr(Retention, "step", observed)
        monkeypatch.setattr(Service, "_serve_metrics", after_a_step)  # the bridges begin after that
        configuration = Configuration(
            listen=["127.0.0.1:0"],
            data=tmp_path / "edge",
            archive=ArchiveSection(is_on=False),
            bridges=(BridgeSection(name="edge", hub="127.0.0.1:9", hold=True),),
            retention=(RetentionRule(max_age_s=1e-6),),
        )
        async with Service(configuration, notices=Notices()) as edge:
            assert stepped.is_set()
            assert edge.server.broker.figures()["log/first_offset"] == 0
        reader = LogReader.open(tmp_path / "edge" / "log.sqlite")
        try:
            assert reader.first_offset() == 0
        finally:
            reader.close()

    run(test, deadline_s=120.0)
