"""`godwit capture`, `godwit flow` and `godwit dissector`."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.capture.dissected import CLIENT_ID, DISSECTOR, SERVER_ID, needs_tshark, run_tshark, write_capture
from tests.cli.real import PATIENCE_S, address_of, broker, error_of, eventually, godwit, lines, running

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
            arguments = ("capture", "-o", str(output), "--seconds", "600", "--broker", own, "--timeout", "10")
            command = stack.enter_context(running(*arguments))
            recorded(tmp_path, own)
        assert command.wait() == 1
        command.err.until("x.pcapng: ")
        command.err.until("did not come back within 10 s")
    assert len(list(read_capture(output.read_bytes()))) >= 5


@needs_tshark
@pytest.mark.parametrize("writer", ["broker", "client"])
def test_the_key_log_of_a_process_opens_a_recording(tmp_path: Path, writer: str) -> None:
    """The broker records its own packets, or dumpcap those of the network interface."""
    keys, output = tmp_path / "keys.log", tmp_path / "x.pcapng"
    variable = {"GODWIT_KEY_LOG": str(keys)}
    with ExitStack() as stack:
        arguments = ("broker", "--listen", "127.0.0.1:0", "--memory", "--archive", "none")
        address = address_of(stack.enter_context(running(*arguments, **variable if writer == "broker" else {})))
        if writer == "broker":
            recorder = stack.enter_context(
                running("capture", "-o", str(output), "--seconds", "600", "--broker", address)
            )
            eventually(lambda: any(tmp_path.glob(".godwit-*.part")))
            recorded(tmp_path, address)
        else:
            dumpcap = ["dumpcap", "-q", "-i", "lo", "-f", f"udp port {address.rpartition(':')[2]}", "-w", str(output)]
            recording = stack.enter_context(recording_of(dumpcap))
        more = {"XDG_CONFIG_HOME": str(tmp_path), **(variable if writer == "client" else {})}
        for payload in ("first secret", "second secret"):
            sealed = ("pub", "vault/door", payload, "--name", "safe", "--broker", f"udps://{address}")
            done = godwit(*sealed, input=b"", **more)
            assert done.returncode == 0, done.stderr
        assert godwit("pub", "vault/door", "the last words", "--broker", address).returncode == 0
        found = ".godwit-*.part" if writer == "broker" else output.name
        eventually(lambda: any(b"the last words" in path.read_bytes() for path in tmp_path.glob(found)))
        if writer == "broker":
            assert recorder.interrupt() == 0
        else:
            recording.send_signal(signal.SIGINT)
            assert recording.wait(PATIENCE_S) == 0
    assert keys.stat().st_mode & 0o777 == 0o600
    assert b"secret" not in output.read_bytes()
    assert run_tshark(output, "-Y", "godwit.sealed == 1 && godwit.opened") == ""
    option = ("-o", f"godwit.key_log:{keys}")
    assert run_tshark(output, *option, "-Y", "_ws.malformed || godwit.expert.malformed || (udp && !godwit)") == ""
    opened = run_tshark(output, *option, "-Y", "godwit.sealed == 1", "-V")
    assert opened.count("vault/door") >= 2
    for payload in ("first secret", "second secret"):
        assert payload in opened or payload.encode().hex() in opened, opened
    sealed_packets = run_tshark(output, *option, "-Y", "godwit.sealed == 1").splitlines()
    assert len(run_tshark(output, *option, "-Y", "godwit.opened == 1").splitlines()) == len(sealed_packets) > 4
    drawn = godwit("flow", str(output)).stdout.decode()
    assert "checksum" not in drawn
    assert "sealed, " in drawn
    assert "publish" not in drawn
    read = godwit("flow", str(output), "--key-log", str(keys))
    assert read.stderr == b""
    drawn = read.stdout.decode()
    assert "sealed, " not in drawn
    assert drawn.count("1 message, QoS 1") >= 2
    assert "acknowledges #" in drawn
    keys.write_text("something else\n")
    done = godwit("flow", str(output), "--key-log", str(keys))
    assert (done.returncode, b"has no secrets" in done.stderr) == (1, True)
    keys.write_text(f"GODWIT_CLIENT_SECRET {'0' * 64} {'0' * 64}\n")
    done = godwit("flow", str(output), "--key-log", str(keys))
    assert b"opens no packet" in done.stderr
    assert "sealed, " in done.stdout.decode()


@contextmanager
def recording_of(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run dumpcap, once it records."""
    if shutil.which(command[0]) is None:
        pytest.skip("dumpcap is missing: apt install wireshark-common")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            seen = ""
            while not seen.startswith("File:"):
                seen = process.stderr.readline()
                if not seen or "permission" in seen:
                    pytest.skip("dumpcap may not record packets here: it needs CAP_NET_RAW")
            yield process
        finally:
            process.kill()


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
