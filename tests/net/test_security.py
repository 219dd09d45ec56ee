"""Which connections are sealed, and which brokers are trusted: the decisions, and brokers and clients on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

import godwit
import godwit.net.runtime as runtime_module
from godwit.errors import AddressError, ConfigurationError, SealingError, UsageError
from godwit.net.authority import issue_for_broker, issue_for_client, new_authority, write_identity
from godwit.net.connecting import connect
from godwit.net.security import (
    BrokerSecurity,
    ClientSealer,
    KnownBrokers,
    Security,
    broker_label,
    default_key_folder,
    is_this_machine,
    securities_of,
)
from godwit.net.service import Service
from godwit.net.tls import load_identity, new_identity, stored_identity
from godwit.server.configuration import Configuration, SecuritySection, load_configuration
from godwit.transport.events import Address
from godwit.transport.protection import is_sealed
from godwit.transport.sealing import TlsError

ONE = f"sha256:{'1' * 64}"
TWO = f"sha256:{'2' * 64}"
PATIENCE_S = 120.0


def test_the_scheme_decides_and_the_fingerprint_belongs_to_its_address() -> None:
    found = securities_of(f"a,udp://b:1,udps://c:2,udps://d:3#{ONE},e#{TWO}", Security(ca="ca.crt"))
    assert {broker: (one.seal, one.fingerprint) for broker, one in found.items()} == {
        ("a", 50000): ("auto", ""),
        ("b", 1): ("never", ""),
        ("c", 2): ("always", ""),
        ("d", 3): ("always", ONE),
        ("e", 50000): ("always", TWO),
    }
    assert all(one.ca == "ca.crt" for one in found.values())


@pytest.mark.parametrize("text", ["udps://a#sha256:12", "udps://a#md5:1", f"udp://a#{ONE}", f"a#{ONE.upper()}"])
def test_a_wrong_fingerprint_in_an_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        securities_of(text, None)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="seal is 'maybe'"):
        Security(seal="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
        Security(fingerprint="12:34")
    with pytest.raises(UsageError, match=r"give a godwit\.Security"):
        connect("a", security="always")  # type: ignore[arg-type]


def test_loopback_addresses_are_this_machine() -> None:
    assert all(is_this_machine((host, 1)) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"))
    assert not any(is_this_machine((host, 1)) for host in ("192.0.2.1", "::", "0.0.0.0", "fe80::1%eth0"))


def test_a_client_seals_when_the_connection_leaves_this_machine() -> None:
    sealer = ClientSealer({}, lambda address: None, has_secret=False)
    assert sealer.new_session("client", ("127.0.0.1", 50000)) is None
    assert sealer.new_session("client", ("192.0.2.1", 50000)) is not None


@pytest.mark.parametrize(
    ("plain", "loopback", "elsewhere"), [("loopback", True, False), ("allow", True, True), ("refuse", False, False)]
)
def test_the_modes_of_a_broker(plain: Any, loopback: bool, elsewhere: bool) -> None:
    security = BrokerSecurity(SecuritySection(plain=plain), None)
    assert (security.plain_problem(("127.0.0.1", 1)) == "") is loopback
    assert (security.plain_problem(("192.0.2.1", 1)) == "") is elsewhere
    assert "udps://" in (security.plain_problem(("192.0.2.1", 1)) or "udps://")


# -- known brokers ----------------------------------------------------------------------------------------------------


def test_a_new_broker_is_remembered_and_another_key_is_refused_loudly(tmp_path: Path) -> None:
    path = tmp_path / "new" / "known_brokers"
    known = KnownBrokers(path)
    known.check("a:1", ONE, trust_new=True, is_proved=False)
    known.check("b:1", TWO, trust_new=True, is_proved=False)
    assert path.read_text() == f"a:1 {ONE}\nb:1 {TWO}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    known.check("a:1", ONE, trust_new=False, is_proved=False)
    with pytest.raises(TlsError, match=r"(?s)THE KEY OF THE BROKER b:1 HAS CHANGED.*line 2 of .*delete that line"):
        known.check("b:1", ONE, trust_new=True, is_proved=True)
    assert path.read_text().count("\n") == 2


def test_an_unknown_broker_is_refused_if_new_ones_are_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=f"add the line `a:1 {ONE}`"):
        KnownBrokers(tmp_path / "known").check("a:1", ONE, trust_new=False, is_proved=False)
    assert not (tmp_path / "known").exists()


def test_a_file_that_cannot_be_written_is_an_error_unless_a_secret_proves_the_broker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    known = KnownBrokers(tmp_path / "file" / "known_brokers")
    with pytest.raises(TlsError, match=f"udps://a:1#{ONE}"):
        known.check("a:1", ONE, trust_new=True, is_proved=False)
    known.check("a:1", ONE, trust_new=True, is_proved=True)


def test_a_broker_without_any_folder_has_a_key_for_this_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert default_key_folder() is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_key_folder() == tmp_path / "state" / "godwit"


def test_damaged_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(b"\xff\xfe nonsense\n\na:1 sha256:12\n# comment\na:1 " + ONE.encode() + b"\n")
    KnownBrokers(path).check("a:1", ONE, trust_new=False, is_proved=False)


def test_labels_have_one_form() -> None:
    assert broker_label("Broker.Example", 5) == "broker.example:5"
    assert broker_label("::1", 5) == "[::1]:5"


# -- brokers and clients ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(tmp_path: Path, *, listen: str = "127.0.0.1:0", **section: Any) -> AsyncIterator[tuple[Service, str]]:
    """A broker with a data folder, and its port."""
    configuration = Configuration(
        listen=[listen],
        data=tmp_path / "data",
        archive=Configuration().archive.__class__(is_on=False),
        security=SecuritySection(**section),
    )
    async with Service(configuration) as service:
        yield service, f"127.0.0.1:{service.addresses[0][1]}"


def security(tmp_path: Path, **options: Any) -> Security:
    return Security(known_brokers=tmp_path / "known_brokers", **options)


def test_a_sealed_client_publishes_and_receives(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, plain="refuse") as (service, address):
            assert service.urls == [f"udps://{address}"]
            opening = connect(f"udps://{address}", timeout_s=PATIENCE_S, security=security(tmp_path))
            async with opening as client, client.subscribe("a/#") as messages:
                for number in range(50):
                    await client.publish("a/b", bytes([number]) * 1000 * number)
                for number in range(50):
                    message = await anext(messages)
                    assert message.payload == bytes([number]) * 1000 * number
            known = (tmp_path / "known_brokers").read_text()
            assert known == f"{address} {stored_identity(tmp_path / 'data').fingerprint}\n"

    asyncio.run(main())


def test_a_plain_client_of_this_machine_connects_unless_plain_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_, address), connect(address, timeout_s=PATIENCE_S) as client:
            await client.publish("a", b"x")
        async with running(tmp_path, plain="refuse") as (_, address):
            with pytest.raises(SealingError, match="accepts sealed connections only"):
                await connect(address, timeout_s=PATIENCE_S)

    asyncio.run(main())


def test_a_pinned_key_is_compared(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, plain="refuse") as (_, address):
            fingerprint = stored_identity(tmp_path / "data").fingerprint
            async with connect(f"udps://{address}#{fingerprint}", timeout_s=PATIENCE_S) as client:
                await client.publish("a", b"x")
            with pytest.raises(SealingError, match=f"{ONE} is expected"):
                await connect(f"udps://{address}#{ONE}", timeout_s=PATIENCE_S)

    asyncio.run(main())


def test_a_pinned_key_is_compared_whatever_its_name_is_resolved_to_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    found: list[Address] = []
    monkeypatch.setattr(runtime_module, "resolve_all", lambda host, port: found)

    async def main() -> None:
        port = free_port()
        async with running(tmp_path / "first", listen=f"127.0.0.1:{port}") as (_, address):
            found.append(("127.0.0.1", port))
            fingerprint = stored_identity(tmp_path / "first" / "data").fingerprint
            client = await connect(
                f"udps://broker.example:{port}#{fingerprint}",
                timeout_s=PATIENCE_S,
                on_state=lambda state, reason: reasons.append(f"{state}: {reason}"),
            )
            found[:] = [("::1", port, 0, 0)]  # of a family that the client has no socket for
        resolver = client._runtime._resolver
        assert resolver is not None
        while ("::1", port, 0, 0) not in resolver.brokers():
            await asyncio.sleep(0.01)
        reasons.clear()
        async with running(tmp_path / "second", listen=address):  # another broker at the old address
            while not any("online" in reason or "is expected" in reason for reason in reasons):
                await asyncio.sleep(0.01)
            assert not any("online" in reason for reason in reasons), reasons
            await client.close(timeout_s=0.0)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_broker_with_a_new_key_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, plain="refuse") as (_, address):
            (tmp_path / "known_brokers").write_text(f"{address} {ONE}\n")
            with pytest.raises(SealingError, match="HAS CHANGED"):
                await connect(f"udps://{address}", timeout_s=PATIENCE_S, security=security(tmp_path))

    asyncio.run(main())


def test_a_sealed_client_refuses_a_broker_that_does_not_seal(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (service, address):
            for listener in service.server.listeners:
                listener.endpoint._sealer = None  # as a broker of 0.5 behaves: it ignores the parameter
            with pytest.raises(SealingError, match="does not seal its packets"):
                await connect(f"udps://{address}", timeout_s=PATIENCE_S, security=security(tmp_path))

    asyncio.run(main())


def test_a_restarted_broker_keeps_its_key_and_its_clients(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        configuration = Configuration(
            listen=[f"127.0.0.1:{port}"],
            data=tmp_path / "data",
            archive=Configuration().archive.__class__(is_on=False),
            security=SecuritySection(plain="refuse"),
        )
        async with Service(configuration):
            client = await connect(f"udps://127.0.0.1:{port}", timeout_s=PATIENCE_S, security=security(tmp_path))
            await client.publish("a", b"1")
        async with Service(configuration):
            await client.publish("a", b"2")
            await client.close()

    asyncio.run(main())


def test_the_secret_of_a_name_is_bound_to_the_exported_key(tmp_path: Path) -> None:
    """A relay that ends TLS on both sides has two exporters: neither the client's nor the broker's proof fits."""

    async def main() -> None:
        text = (
            "[access]\nanonymous = false\n[[access.client]]\nname = 'one'\nsecret = 'a long and random secret'\n"
            "[[access.rule]]\nclients = ['*']\nallow = ['publish']\ntopics = ['#']\n[security]\nplain = 'refuse'\n"
        )
        settings = load_configuration(text, read_secret=lambda path: b"")
        async with Service(replace(settings, listen=["127.0.0.1:0"])) as service:
            url = service.urls[0]
            options: dict[str, Any] = {"timeout_s": PATIENCE_S, "security": security(tmp_path), "name": "one"}
            async with connect(url, secret="a long and random secret", **options) as client:
                runtime = client._runtime
                [connection] = runtime.core.endpoint.connections.values()
                [other] = service.server.listeners[0].endpoint.connections.values()
                assert connection.binding == other.binding
                assert connection._components.protection is not None
                await client.publish("a", b"x")
            with pytest.raises(godwit.AccessError):
                await connect(url, secret="another secret", **options)

    asyncio.run(main())


async def publish_until_refused(client: Any) -> None:
    while True:
        await client.publish("plant/press-7/t", b"x")


def test_certificates_prove_names_of_clients(tmp_path: Path) -> None:
    """By the authority, or by the fingerprint of a key; for the own name only, and only as long as it is listed."""
    authority, stranger = new_authority(), new_authority("another")
    write_identity(tmp_path, "ca", authority)
    files = {
        "press-7": write_identity(tmp_path, "press-7", issue_for_client(authority, "press-7")),
        "false": write_identity(tmp_path, "false", issue_for_client(stranger, "press-7")),
        "pinned": write_identity(tmp_path, "pinned", new_identity()),
        "server": write_identity(tmp_path, "server", issue_for_broker(authority, ["press-7"])),
    }
    pin = load_identity(*files["pinned"]).fingerprint
    text = (
        "[access]\nanonymous = false\n"
        "[[access.client]]\nname = 'press-7'\ncertificate = 'ca'\n"
        f"[[access.client]]\nname = 'pinned'\ncertificate = '{pin}'\n"
        "[[access.client]]\nname = 'other'\nsecret = 'a long and random secret'\n"
        "[[access.rule]]\nclients = ['p*']\nallow = ['publish']\ntopics = ['plant/{client}/#']\n"
        "[security]\nplain = 'refuse'\nclient_ca = 'ca.crt'\n"
    )
    settings = load_configuration(text, read_secret=lambda path: b"", folder=tmp_path)

    async def main() -> None:
        async with Service(replace(settings, listen=["127.0.0.1:0"])) as service:

            def opening(name: str, file: str | None) -> Any:
                certificate, key = (None, None) if file is None else files[file]
                own = security(tmp_path, certificate=certificate, key=key)
                return connect(service.urls[0], name=name, timeout_s=PATIENCE_S, security=own)

            for name in ("press-7", "pinned"):
                async with opening(name, name) as client:
                    await client.publish(f"plant/{name}/t", b"x")
                    with pytest.raises(godwit.AccessError):
                        await client.publish("plant/other/t", b"x")
            for name, file in (
                ("press-7", None),
                ("press-7", "false"),
                ("press-7", "pinned"),
                ("press-7", "server"),
                ("pinned", "press-7"),
                ("other", "press-7"),
                ("unlisted", "press-7"),
            ):
                with pytest.raises(godwit.AccessError):
                    await opening(name, file)
            async with opening("press-7", "press-7") as client:
                without = load_configuration(
                    text.replace("'press-7'", "'press-8'"), read_secret=lambda path: b"", folder=tmp_path
                )
                service.reload(replace(without, listen=["127.0.0.1:0"]))
                with pytest.raises(godwit.GodwitError):
                    await publish_until_refused(client)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("certificate = 'ca'", "give client_ca"),
        ("certificate = 'sha256:12'", "64 hexadecimal digits"),
        ("", "give either secret or secret_file"),
    ],
)
def test_wrong_certificates_of_clients_in_the_configuration(line: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load_configuration(f"[[access.client]]\nname = 'a'\n{line}\n", read_secret=lambda path: b"")


def test_nothing_of_the_application_is_visible_on_the_wire(tmp_path: Path) -> None:
    """Records what a sealed client sends and receives: no topic, payload or name."""

    async def main() -> None:
        async with running(tmp_path, plain="refuse") as (service, address):
            seen: list[bytes] = []
            for driver in service._drivers:
                receive, next_train = driver.endpoint.receive, driver.endpoint.next_train

                def spy_receive(train: Any, now: float, receive: Any = receive) -> None:
                    seen.extend(train.datagrams())
                    receive(train, now)

                def spy_next(now: float, next_train: Any = next_train) -> Any:
                    train = next_train(now)
                    if train is not None:
                        seen.extend(train.datagrams())
                    return train

                driver.endpoint.receive, driver.endpoint.next_train = spy_receive, spy_next  # type: ignore[method-assign]
            async with connect(
                f"udps://{address}", name="unusual-name", timeout_s=PATIENCE_S, security=security(tmp_path)
            ) as client:
                await client.publish("secret/topic", b"a payload that nobody reads")
            capture = b"".join(seen)
            assert sum(map(is_sealed, seen)) >= 4
            for word in (b"unusual-name", b"secret/topic", b"nobody reads"):
                assert word not in capture

    asyncio.run(main())


def test_configuration_of_security(tmp_path: Path) -> None:
    def load(text: str) -> Configuration:
        return load_configuration(text, read_secret=lambda path: b"", folder=tmp_path)

    assert load("").security == SecuritySection()
    found = load("[security]\nplain = 'allow'\ncertificate = 'a.crt'\nkey = 'a.key'\n").security
    assert found == SecuritySection(plain="allow", certificate=tmp_path / "a.crt", key=tmp_path / "a.key")
    with pytest.raises(ConfigurationError, match=r"line 2.*plain"):
        load("[security]\nplain = 'never'\n")
    with pytest.raises(ConfigurationError, match="only one of certificate and key"):
        load("[security]\nkey = 'a.key'\n")


def test_logins_refusals_kicks_and_new_rules_are_on_the_audit_topics(tmp_path: Path) -> None:
    text = (
        "[access]\nanonymous = false\n"
        "[[access.client]]\nname = 'operator'\nsecret = 'a long and random secret'\n"
        "[[access.client]]\nname = 'press'\nsecret = 'another long and random one'\n"
        "[[access.rule]]\nclients = ['operator']\nallow = ['subscribe', 'kick']\ntopics = ['$audit/#']\n"
        "[[access.rule]]\nclients = ['press']\nallow = ['subscribe']\ntopics = ['#']\n"
    )
    settings = load_configuration(text, read_secret=lambda path: b"", folder=tmp_path)

    async def main() -> None:
        configuration = replace(settings, listen=["127.0.0.1:0"])
        async with Service(configuration) as service:
            url, timeout = service.urls[0], PATIENCE_S
            secret = "a long and random secret"
            opening = connect(url, name="operator", secret=secret, timeout_s=timeout)
            async with opening as operator, operator.subscribe("$audit/#") as events:

                async def wait_for(kind: str, word: str) -> dict[str, Any]:
                    async with asyncio.timeout(PATIENCE_S):
                        async for message in events:
                            event: dict[str, Any] = message.json()
                            if event["event"] == kind and word in event["text"]:
                                assert message.topic == f"$audit/{kind}"
                                return event
                    raise AssertionError

                with pytest.raises(godwit.AccessError):
                    await connect(url, name="press", secret="a wrong one", timeout_s=timeout)
                assert "'press' is missing or wrong" in (await wait_for("refused", "press"))["text"]
                other = "another long and random one"
                async with connect(url, name="press", secret=other, timeout_s=timeout) as client:
                    assert (await wait_for("connected", "press"))["client"] == "press"
                    with pytest.raises(godwit.AccessError):
                        async with client.subscribe("$audit/#"):
                            pass
                    await operator.kick("press")
                    await wait_for("kicked", "press")
                service.reload(configuration)
                await wait_for("reloaded", "")

    asyncio.run(main())
