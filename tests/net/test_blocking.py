"""The client without asyncio: the same methods, from any thread, and an end in every way."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.net.running import broker_in_thread

import godwit
from godwit.errors import AccessError, AddressError, BrokerUnreachableError, TopicError, UsageError
from godwit.net.blocking import connect
from godwit.net.udp import UdpSocket

DEADLINE_S = 120.0


def test_everything_that_can_be_asked() -> None:
    with broker_in_thread() as url, connect(url, name="me") as client, connect(url, name="other") as other:
        assert (client.name, client.state) == ("me", "online")
        assert client.ping() > 0
        assert client.statistics.packets_sent > 0
        client.create_topic("made")
        with pytest.raises(TopicError):
            client.create_topic("made")
        with other.subscribe("a"):
            assert client.publish("a", "x") == 1
            assert client.publish("a", b"x", qos=0) is None
            assert [info.name for info in client.topics()] == ["a", "made"]
            assert [info.name for info in client.topics("a")] == ["a"]
            assert [info.name for info in client.clients()] == ["me", "other"]
            client.kick("other", "a", reason="enough")
        assert client.publish("a", "x") == 0


def test_the_package_offers_it_as_sync() -> None:
    with broker_in_thread() as url, godwit.sync.connect(url) as client:
        assert client.publish("a", b"x") == 0


def test_a_broker_that_is_not_there_is_reported() -> None:
    with UdpSocket("127.0.0.1") as silent, pytest.raises(BrokerUnreachableError):
        connect(f"127.0.0.1:{silent.local_address[1]}", timeout_s=0.05)
    with pytest.raises(AddressError):
        connect("tcp://x")


def test_errors_are_typed() -> None:
    with broker_in_thread() as url:
        with pytest.raises(AccessError):
            connect(url, name="me", secret=b"a secret that it does not know")
        with connect(url) as client, pytest.raises(TopicError):
            client.publish("a/+", b"x")


def test_a_closed_client_refuses_kindly() -> None:
    with broker_in_thread() as url:
        client = connect(url)
        publisher = client.publisher("a")
        assert client.close() is True
        assert client.close() is True
        assert client.state == "closed"
        with pytest.raises(UsageError, match="closed"):
            client.ping()
        with pytest.raises(UsageError, match="closed"):
            client.subscribe("a")
        with pytest.raises(UsageError, match="closed"):
            publisher.send(b"x")


def test_threads_that_wait_are_released_when_the_client_is_closed() -> None:
    with broker_in_thread() as url:
        client = connect(url)
        errors: list[BaseException] = []
        started = threading.Event()

        def read() -> None:
            try:
                with client.subscribe("a") as messages:
                    started.set()
                    messages.get()
            except BaseException as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(DEADLINE_S)
        client.close()
        reader.join(DEADLINE_S)
        assert [type(error) for error in errors] == [UsageError]


def test_files_go_both_ways(tmp_path: Path) -> None:
    source = tmp_path / "data.bin"
    source.write_bytes(bytes(range(256)) * 3000)
    seen: list[tuple[int, int]] = []
    with (
        broker_in_thread() as url,
        connect(url) as sender,
        connect(url) as receiver,
        receiver.receive_files("files/#", folder=tmp_path / "inbox", timeout_s=DEADLINE_S) as files,
    ):
        sent = sender.send_file("files/a", source, progress=lambda *step: seen.append(step))
        received = next(files)
        assert received.path.read_bytes() == source.read_bytes()
        assert received.sha256 == sent.sha256
        assert seen[-1] == (sent.size_bytes, sent.size_bytes)
        assert files.problems == 0


PROGRAM = """
import sys, godwit
client = godwit.sync.connect(sys.argv[1], name="me", will=godwit.Will(topic="wills", payload=b"gone"))
"""


def test_ctrl_c_returns_at_once() -> None:
    program = PROGRAM + (
        "try:\n"
        "    with client, client.subscribe('a') as messages:\n"
        "        print('ready', flush=True)\n"
        "        for message in messages: pass\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    with broker_in_thread() as url, connect(url) as reader, reader.subscribe("wills", "end") as messages:
        process = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_S) == (b"stopped\n", b"")
        reader.publish("end", b"")
        assert messages.get().topic == "end"  # and no will before it


@pytest.mark.parametrize("wait", ["messages.get()", "client.request('nothing', b'', timeout_s=1000)"])
def test_ctrl_c_that_another_thread_receives_ends_a_wait(wait: str) -> None:
    """The system may choose any thread. The same happens if it arrives just before the main thread begins to wait."""
    program = PROGRAM + (
        "import signal, threading\n"
        "def interrupt():\n"
        "    import time\n"
        "    since = time.monotonic()\n"
        "    while time.monotonic() < since + 0.05:  # until it waits in the same place for a moment\n"
        "        if not main_waits(): since = time.monotonic()\n"
        "        time.sleep(0.001)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGINT)\n"
        "def main_waits():\n"
        "    frame = sys._current_frames()[threading.main_thread().ident]\n"
        "    return frame.f_code.co_name in ('wait', 'result')\n"
        "try:\n"
        "    with client, client.subscribe('a', 'nothing') as messages:\n"
        "        threading.Thread(target=interrupt).start()\n"
        f"        {wait}\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    with broker_in_thread() as url:
        result = subprocess.run(
            [sys.executable, "-c", program, url], capture_output=True, timeout=DEADLINE_S, check=False
        )
        assert (result.stdout, result.stderr) == (b"stopped\n", b"")


def test_a_program_that_just_ends_closes_its_client() -> None:
    program = PROGRAM + "client.publisher('a').send(b'last words')\n"
    with broker_in_thread() as url, connect(url) as reader, reader.subscribe("wills", "a", "end") as messages:
        result = subprocess.run(
            [sys.executable, "-c", program, url], capture_output=True, timeout=DEADLINE_S, check=False
        )
        assert (result.returncode, result.stderr) == (0, b"")
        reader.publish("end", b"")
        assert [messages.get().topic, messages.get().topic] == ["a", "end"]


def test_a_client_that_is_dropped_leaves_no_thread_behind() -> None:
    with broker_in_thread() as url:
        before = set(threading.enumerate())
        client = connect(url)
        assert client.publish("a", "x") == 0
        threads = set(threading.enumerate()) - before
        assert threads
        del client
        gc.collect()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
