"""`godwit capture`, `godwit flow` and `godwit dissector`."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.capture.dissected import CLIENT_ID, DISSECTOR, SERVER_ID, write_capture
from tests.cli.real import broker, error_of, eventually, godwit, lines, running

from godwit.capture.pcapng import count_packets, read_capture
from godwit.cli.capture import plugins_folder
from godwit.wire.packet import encode_packet


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "x.pcapng"
    write_capture(path, [(True, encode_packet(SERVER_ID, 0, b"\x01")), (False, encode_packet(CLIENT_ID, 0, b"\x01"))])
    return path


def test_flow_as_text(capture: Path) -> None:
    result = godwit("flow", str(capture))
    assert result.returncode == 0, result.stderr
    rows = list(lines(result.stdout))
    assert "192.0.2.7:40001" in rows[0]
    assert len(rows) == 4
    assert rows[2].endswith("PING")


@pytest.mark.parametrize("form", ["svg", "html", "txt"])
def test_flow_as_a_file(capture: Path, form: str) -> None:
    output = capture.with_name(f"flow.{form}")
    assert godwit("flow", str(capture), "-o", str(output)).returncode == 0
    assert "PING" in output.read_text()
    assert "exists already" in error_of("flow", str(capture), "-o", str(output))
    assert godwit("flow", str(capture), "-o", str(output), "--force").returncode == 0


def test_mistakes_are_explained(capture: Path, tmp_path: Path) -> None:
    assert "has no known form; name a file that ends in .svg, .html, .txt" in error_of(
        "flow", str(capture), "-o", "x.png"
    )
    assert "cannot read" in error_of("flow", str(tmp_path / "none"))
    assert "is not HOST or HOST:PORT" in error_of("flow", str(capture), "--address", "a:b")
    assert "has no such packets" in error_of("flow", str(capture), "--address", "203.0.113.9")
    (tmp_path / "text").write_bytes(b"hello world")
    assert "this is not a capture" in error_of("flow", str(tmp_path / "text"))


def test_the_packets_before_the_end_of_a_truncated_capture_are_shown(capture: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    whole = godwit("flow", str(capture)).stdout.splitlines()
    cut.write_bytes(capture.read_bytes()[:-5])
    result = godwit("flow", str(cut))
    assert result.returncode == 0
    assert result.stdout.splitlines() == whole[:-1]
    assert b"the capture is truncated: it ends inside the block" in result.stderr
    assert b"the packets before are shown" in result.stderr
    cut.write_bytes(capture.read_bytes()[:90])
    assert "the capture is truncated" in error_of("flow", str(cut))


def test_capture(address: str, tmp_path: Path) -> None:
    output = tmp_path / "x.pcapng"
    result = godwit("capture", "-o", str(output), "--seconds", "1", "--broker", address)
    assert result.returncode == 0, result.stderr
    assert b"x.pcapng: 0 packets" in result.stderr
    assert output.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    assert "exists already" in error_of("capture", "-o", str(output), "--broker", address)
    wrong = error_of("capture", "-o", str(tmp_path / "y"), "--filter", "color=red", "--broker", address)
    assert "'color=red' is not a condition" in wrong
    assert not (tmp_path / "y").exists()


def recorded(folder: Path, address: str) -> None:
    """Publish until the unfinished capture in the folder has packets."""

    def has_packets() -> bool:
        godwit("pub", "capture/x", "1", "--broker", address)
        return sum(count_packets(part.read_bytes()) for part in folder.glob(".godwit-*.part")) >= 5

    eventually(has_packets)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_is_kept(address: str, tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "x.pcapng"
    with running("capture", "-o", str(output), "--seconds", "600", "--broker", address) as command:
        recorded(tmp_path, address)
        command.process.send_signal(number)
        assert command.wait() == 0
        assert "x.pcapng: " in command.err.line()
    assert len(list(read_capture(output.read_bytes()))) >= 5
    assert list(tmp_path.iterdir()) == [output]


def test_packets_before_the_end_of_a_broker_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "x.pcapng"
    with ExitStack() as stack:
        with broker() as own:
            arguments = ("capture", "-o", str(output), "--seconds", "600", "--broker", own, "--timeout", "1")
            command = stack.enter_context(running(*arguments))
            recorded(tmp_path, own)
        assert command.wait() == 1
        command.err.until("x.pcapng: ")
        command.err.until("did not come back within 1 s")
    assert len(list(read_capture(output.read_bytes()))) >= 5


def test_dissector(tmp_path: Path) -> None:
    assert Path(godwit("dissector", "path").stdout.decode().strip()) == DISSECTOR
    folder = tmp_path / "plugins"
    for _ in range(2):  # the second time replaces the first
        assert godwit("dissector", "install", "--folder", str(folder)).returncode == 0
    assert (folder / "godwit.lua").read_bytes() == DISSECTOR.read_bytes()
    (tmp_path / "file").touch()
    assert "choose --folder" in error_of("dissector", "install", "--folder", str(tmp_path / "file"))


def test_the_folder_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins_folder({}, Path("/home/a")) == Path("/home/a/.local/lib/wireshark/plugins")
    monkeypatch.setattr("sys.platform", "win32")
    assert plugins_folder({"APPDATA": "/app"}, Path("/home/a")) == Path("/app/Wireshark/plugins")
