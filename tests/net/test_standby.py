"""The sockets of a standby: clients are refused, and try the next address at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

import godwit
from godwit.net.authority import write_identity
from godwit.net.cluster_service import ClusterService, StandbyListener
from godwit.net.service import Service
from godwit.net.tls import new_identity
from godwit.net.udp import UdpSocket
from godwit.server.cluster_configuration import ClusterSection
from godwit.server.configuration import ArchiveSection, Configuration, MqttSection, SecuritySection

KEY = b"k" * 32
PATIENCE_S = 120.0


@pytest.mark.parametrize("plain", ["loopback", "refuse"])
def test_clients_move_from_a_standby_to_the_active_broker(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # where the key of the broker is stored
    scheme = "udp" if plain == "loopback" else "udps"
    security = SecuritySection(plain="loopback" if plain == "loopback" else "refuse")

    async def main() -> None:
        standby = StandbyListener(UdpSocket("127.0.0.1", 0), Configuration(), KEY)
        try:
            async with Service(Configuration(listen=["127.0.0.1:0"], security=security)) as service:
                here, there = standby.address, service.addresses[0]
                address = f"{scheme}://127.0.0.1:{here[1]},{scheme}://127.0.0.1:{there[1]}"
                began = time.monotonic()
                async with asyncio.timeout(PATIENCE_S), godwit.connect(address) as client:
                    await client.publish("a", b"1", qos=1)
                print(f"connected after {time.monotonic() - began:.2f} s")
        finally:
            standby.close()

    asyncio.run(main())


def test_a_lone_standby_is_waited_for_and_named_in_the_error() -> None:
    async def main() -> None:
        standby = StandbyListener(UdpSocket("127.0.0.1", 0), Configuration(), KEY)
        standby.set_text("this broker is a standby of the cluster c: the node n at h:1 is active")
        try:
            for timeout_s in (1.5, 15.0, PATIENCE_S):  # a busy machine may not get the answer within the first one
                with pytest.raises(godwit.BrokerUnreachableError) as caught:
                    async with godwit.connect(f"udp://127.0.0.1:{standby.address[1]}", timeout_s=timeout_s):
                        pass
                if "the node n at h:1 is active" in str(caught.value):
                    break
            assert "the node n at h:1 is active" in str(caught.value)
        finally:
            standby.close()

    asyncio.run(main())


def test_a_client_that_waits_for_a_standby_connects_when_it_is_active() -> None:
    async def main() -> None:
        port = free_port()
        standby = StandbyListener(UdpSocket("127.0.0.1", port), Configuration(), KEY)

        async def publish() -> None:
            async with godwit.connect(f"udp://127.0.0.1:{port}") as client:
                await client.publish("a", b"1", qos=1)

        task = asyncio.create_task(publish())
        await asyncio.sleep(0.5)
        assert not task.done()
        standby.release().close()
        async with asyncio.timeout(PATIENCE_S), Service(Configuration(listen=[f"127.0.0.1:{port}"])):
            await task

    asyncio.run(main())


def test_a_standby_takes_changed_paths_of_certificates(tmp_path: Path) -> None:
    """Without an engine it stays a standby. Its console asks it for the files, and MQTT uses them once it is active."""
    pytest.importorskip("nats")
    for name in ("old", "new"):
        write_identity(tmp_path, name, new_identity())

    def configured(name: str) -> Configuration:
        certificate, key = tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
        return Configuration(
            listen=["127.0.0.1:0"],
            data=tmp_path / "data",
            archive=ArchiveSection(is_on=False),
            security=SecuritySection(certificate=certificate, key=key),
            mqtt=MqttSection(listen=("tls://127.0.0.1:0",), certificate=certificate, key=key),
            cluster=ClusterSection(name="c", node="a", servers=("nats://127.0.0.1:9",)),
        )

    async def main() -> None:
        notices = Notices()
        async with ClusterService(configured("old"), notices=notices) as node:
            assert node.security.certificate_files(is_exposed=False) == (tmp_path / "old.crt", tmp_path / "old.key")
            node.security.sealer()
            node.try_reload(lambda: configured("absent"))
            assert any("the settings of security stay as they were" in text for text in notices.texts)
            assert node.configuration.security == configured("old").security
            node.try_reload(lambda: configured("new"))
            assert node.security.certificate_files(is_exposed=False) == (tmp_path / "new.crt", tmp_path / "new.key")
            assert node.configuration.mqtt == configured("new").mqtt

    asyncio.run(main())


class Notices:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        self.texts.append(text)
