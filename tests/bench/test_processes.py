"""The processes of a measurement: their messages are received, and all of them are ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench.processes import HOST, ProcessGroup, free_port, receive_reply, wait_for_listener


def echo(pipe: Pipe, word: str) -> None:
    pipe.send((word, os.getpid()))
    pipe.send(pipe.recv())


def fail(_: Pipe) -> None:
    raise GodwitError("it was too hot")


def vanish(_: Pipe) -> None:
    os._exit(3)


def stay(pipe: Pipe) -> None:
    pipe.send(os.getpid())
    signal.pause()


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_process_receives_and_replies() -> None:
    with ProcessGroup() as processes:
        pipe = processes.start(echo, "word")
        word, process = receive_reply(pipe, tuple)
        assert word == "word"
        assert process != os.getpid()
        pipe.send(12)
        assert receive_reply(pipe, int) == 12


def test_its_folder_is_where_it_is_wanted(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as processes:
        assert processes.folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_failures_are_reported() -> None:
    with ProcessGroup() as processes:
        with pytest.raises(GodwitError, match="failed: it was too hot"):
            receive_reply(processes.start(fail), str)
        with pytest.raises(GodwitError, match="ended too early"):
            receive_reply(processes.start(vanish), str)
        stuck = processes.start(stay)
        with pytest.raises(TypeError, match="expected str"):
            receive_reply(stuck, str)
        with pytest.raises(GodwitError, match=r"sent nothing for 0\.01 s"):
            receive_reply(stuck, str, within_s=0.01)


def test_all_are_ended_with_the_block_however_it_is_left() -> None:
    def interrupted() -> None:
        with ProcessGroup() as processes:
            parts.append(receive_reply(processes.start(stay), int))
            log = processes.run(sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
            while not log.exists() or not log.read_text(encoding="utf-8"):
                time.sleep(0.01)
            parts.append(int(log.read_text(encoding="utf-8")))
            folders.append(processes.folder)
            assert all(map(is_running, parts))
            raise KeyboardInterrupt

    parts: list[int] = []
    folders: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(parts) == 2
    assert not any(map(is_running, parts))
    assert not folders[0].exists()


KILLED = """
from godwit_bench.processes import ProcessGroup, receive_reply
from tests.bench.test_processes import stay
if __name__ == "__main__":
    with ProcessGroup() as processes:
        print(receive_reply(processes.start(stay), int), flush=True)
        stay(processes.start(stay))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux promises this")
def test_none_outlives_a_benchmark_that_was_killed(tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    program.write_text(KILLED, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment) as benchmark:
        assert benchmark.stdout is not None
        process = int(benchmark.stdout.readline())
        assert is_running(process)
        benchmark.kill()
        benchmark.wait()
        ends = time.monotonic() + 120
        while is_running(process) and time.monotonic() < ends:
            time.sleep(0.01)
    assert not is_running(process)


def test_a_listener_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def listen() -> None:
            time.sleep(0.1)
            listener.bind((HOST, port))
            listener.listen()

        thread = threading.Thread(target=listen)
        thread.start()
        wait_for_listener(port, tmp_path / "broker.log")
        thread.join()


def test_a_program_that_does_not_listen_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    with pytest.raises(GodwitError, match=r"broker did not listen on port .* the last it printed: nothing"):
        wait_for_listener(free_port(), log, within_s=0.05)
    log.write_text("starting\nno such option: -x\n\n", encoding="utf-8")
    with pytest.raises(GodwitError, match="the last it printed: no such option: -x"):
        wait_for_listener(free_port(), log, within_s=0.05)
