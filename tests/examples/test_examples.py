"""Every example runs, ends by itself or at Ctrl-C, and prints what its reader expects."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.net.running import broker_in_thread
from tests.spark.session import running_broker

import godwit

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 120
SPARK_DEADLINE_S = 300

ALONE = {
    "two_endpoints.py": (
        "server: channel 1, record 0: 21.5\n"
        "server: channel 1, record 1: 21.6\n"
        "server: channel 1, record 2: 21.4\n"
        "client: the peer closed: thank you\n"
    ),
}
WITH_BROKER = {
    "publish.py": "".join(f"{value} is safe; subscribers reached: 0\n" for value in ("21.5", "21.6", "21.4")),
    "fast_publisher.py": "100,000 messages are safe\n",
    "blocking.py": "home/kitchen 21.5\nhome/attic 17\nhome/cellar 12.25\n",
    "last_will.py": "sensor-2 is online\nsensor-2 was killed\nsensor-2 is offline\n",
}
IN_PAIRS = {"subscribe.py", "send_file.py", "receive_file.py", "jobs_worker.py", "jobs_controller.py"}


WITH_SPARK = {"spark_notebook.py"}


def run(name: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return result.returncode, result.stdout, result.stderr


@contextmanager
def running(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An example that goes on until Ctrl-C, which ends it cleanly."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_S) == ("bye\n", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*ALONE, *WITH_BROKER, *IN_PAIRS, *WITH_SPARK}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_example(name: str) -> None:
    assert run(name) == (0, ALONE[name], "")


@pytest.mark.parametrize("name", sorted(WITH_BROKER))
def test_example_with_a_broker(name: str) -> None:
    with broker_in_thread() as url:
        assert run(name, url) == (0, WITH_BROKER[name], "")


@pytest.mark.soak
def test_the_notebook_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    with running_broker(tmp_path / "log") as broker:
        with godwit.sync.connect(broker.address) as client:
            for number in range(3):
                client.publish("home/attic/temperature", f'{{"celsius": {20 + number}}}')
        command = [sys.executable, str(EXAMPLES / "spark_notebook.py"), broker.archive]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SPARK_DEADLINE_S, check=False)
        assert result.returncode == 0, result.stderr
        assert "|home/attic/temperature|" in result.stdout
        assert "1 micro-batches" in result.stdout
        with godwit.sync.connect(broker.address) as client, client.subscribe("reports/#", start="earliest") as messages:
            message = next(iter(messages))
        assert (message.topic, message.publisher) == ("reports/home/attic/temperature", "notebook")
        assert message.payload == b'{"celsius":22.0}'


def test_one_publishes_and_the_other_subscribes() -> None:
    with broker_in_thread() as url, running("subscribe.py", url) as subscriber:
        assert line(subscriber) == "waiting for temperatures\n"
        assert run("publish.py", url)[1].count("subscribers reached: 1") == 3
        for value in ("21.5", "21.6", "21.4"):
            assert line(subscriber) == f"home/room1/temperature: {value} (from sensor-1)\n"


def test_one_sends_a_file_and_the_other_receives_it(tmp_path: Path) -> None:
    source = tmp_path / "data.bin"
    source.write_bytes(bytes(range(256)) * 4000)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with broker_in_thread() as url, running("receive_file.py", str(tmp_path / "inbox"), url) as receiver:
        assert line(receiver) == "waiting for files\n"
        code, out, err = run("send_file.py", str(source), url)
        assert (code, out) == (0, f"data.bin: 1,024,000 bytes are safe, SHA-256 {digest}\n")
        assert err.endswith("1,024,000 of 1,024,000 bytes\n")
        assert line(receiver) == f"data.bin: 1,024,000 bytes, SHA-256 {digest}\n"
    assert (tmp_path / "inbox" / "data.bin").read_bytes() == source.read_bytes()


def test_one_gives_work_and_two_do_it() -> None:
    with (
        broker_in_thread() as url,
        running("jobs_worker.py", "anna", url) as anna,
        running("jobs_worker.py", "bert", url) as bert,
    ):
        assert (line(anna), line(bert)) == ("anna waits for work\n", "bert waits for work\n")
        with godwit.sync.connect(url) as client:  # they say so before they have volunteered
            while client.submit("text/count", workers="all").agreed != 2:
                pass
        code, out, err = run("jobs_controller.py", url)
        assert (code, err) == (0, "")
        first, second, *others = out.splitlines()
        assert {first, second} == {f"{name}: neve ro ddo reven" for name in ("anna", "bert")}
        assert others[0] == "2 of 2 done"
        assert [text.rpartition(" ")[2] for text in others[1:]] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [("send_file.py", "missing", "cannot read"), ("receive_file.py", "file", "file")],
)
def test_a_path_that_cannot_be_is_one_line(tmp_path: Path, name: str, path: str, text: str) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    with broker_in_thread() as url:
        code, out, err = run(name, str(tmp_path / path), url)
    assert (code, out) == (1, "")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["send_file.py", "receive_file.py", "jobs_worker.py"])
def test_without_arguments_an_example_says_what_it_needs(name: str) -> None:
    code, out, err = run(name)
    assert (code, out) == (1, "")
    assert err.startswith(f"usage: python examples/{name} ")
    assert err.count("\n") == 1
