"""`godwit security`: certificates that brokers and clients use, fingerprints, renewal, and findings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from godwit.cli.security import app
from godwit.errors import GodwitError
from godwit.net.authority import load_authority
from godwit.net.tls import check_authority, client_names, load_authorities, load_identity, stored_identity

runner = CliRunner()


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def test_init_makes_certificates_that_are_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    run("init", str(folder), "--host", "broker.example", "--host", "192.0.2.7", "--client", "press 7/ä")
    assert folder.stat().st_mode & 0o777 == 0o700
    broker = load_identity(folder / "broker.crt", folder / "broker.key")
    for host in ("broker.example", "192.0.2.7"):
        check_authority(broker.certificates, host, folder / "ca.crt")
    client = load_identity(folder / "press_7_ä.crt", folder / "press_7_ä.key")
    assert client_names(client.certificates, load_authorities(folder / "ca.crt")) == ("press 7/ä",)
    assert run("fingerprint", str(folder / "broker.crt")).strip() == broker.fingerprint
    for key in folder.glob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    authority = load_authority(folder).fingerprint
    run("init", str(folder), "--client", "later", "--node", "192.0.2.7")
    check_authority(
        load_identity(folder / "192_0_2_7.crt", folder / "192_0_2_7.key").certificates, "192.0.2.7", folder / "ca.crt"
    )
    assert load_authority(folder).fingerprint == authority


@pytest.mark.parametrize("arguments", [(), ("--client", "ca"), ("--client", "a", "--client", "a")])
def test_init_refuses_what_it_cannot_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = runner.invoke(app, ["init", str(tmp_path), *arguments])
    assert isinstance(result.exception, GodwitError)
    assert list(tmp_path.iterdir()) == []


def test_init_replaces_nothing(tmp_path: Path) -> None:
    run("init", str(tmp_path), "--host", "a.example")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert isinstance(runner.invoke(app, ["init", str(tmp_path), "--host", "b.example"]).exception, GodwitError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_rotate_renews_the_certificate_of_a_broker(tmp_path: Path) -> None:
    run("init", str(tmp_path), "--host", "broker.example", "--host", "192.0.2.7")
    before = load_identity(tmp_path / "broker.crt", tmp_path / "broker.key").fingerprint
    output = run("rotate", str(tmp_path))
    renewed = load_identity(tmp_path / "broker.crt", tmp_path / "broker.key")
    assert output.split() == ["before", before, "now", renewed.fingerprint]
    assert renewed.fingerprint != before
    for host in ("broker.example", "192.0.2.7"):
        check_authority(renewed.certificates, host, tmp_path / "ca.crt")
    assert load_identity(tmp_path / "broker.crt.old", tmp_path / "broker.key.old").fingerprint == before


def test_rotate_replaces_the_own_key_of_a_broker(tmp_path: Path) -> None:
    before = stored_identity(tmp_path).fingerprint
    run("rotate", str(tmp_path))
    assert stored_identity(tmp_path).fingerprint != before
    assert run("fingerprint", str(tmp_path)).strip() == stored_identity(tmp_path).fingerprint


def test_check_shows_weak_points(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('listen = ["0.0.0.0:50000"]\n[security]\nplain = "allow"\n[mqtt]\nlisten = ["0.0.0.0:1883"]\n')
    output = run("check", str(file), code=1)
    for words in (
        "any machine that reaches the broker's address",
        "clients that do not seal",
        "passwords of MQTT clients",
    ):
        assert words in output
    file.write_text(
        'listen = ["0.0.0.0:50000"]\n[access]\nanonymous = false\n[[access.client]]\nname = "a"\n'
        'secret = "a long and random secret"\n[[access.rule]]\nclients = ["a"]\nallow = ["publish"]\ntopics = ["#"]\n'
    )
    file.chmod(0o644)
    assert "read or change keys, secrets or tokens" in run("check", str(file), code=1)
    file.chmod(0o600)
    assert run("check", str(file)) == "nothing found\n"


def test_check_names_the_rights_of_anonymous_clients(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[access]\n[[access.rule]]\nclients = ["*"]\nallow = ["publish", "kick"]\ntopics = ["#"]\n')
    file.chmod(0o600)
    assert "every user and program of this machine can publish, kick" in run("check", str(file), code=1)
