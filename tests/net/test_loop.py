"""Which event loop runs, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from godwit.net import loop


async def add_reader_works() -> bool:
    running = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other:
        seen = asyncio.Event()
        running.add_reader(one.fileno(), seen.set)
        other.send(b"!")
        await asyncio.wait_for(seen.wait(), 5.0)
        running.remove_reader(one.fileno())
    return True


def test_it_can_watch_a_socket() -> None:
    assert loop.run(add_reader_works())


def test_without_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop.run(add_reader_works())
    made = loop.new_event_loop()
    assert isinstance(made, asyncio.SelectorEventLoop)
    made.close()


INTERRUPTED = """
import asyncio, os, signal
from godwit.net.loop import run

async def main():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(30)
    finally:
        print("tidied up")

try:
    run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent in another way there")
def test_an_interrupt_lets_the_coroutine_tidy_up() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=20, check=True)
    assert (result.stdout, result.stderr) == ("tidied up\ninterrupted\n", "")


def test_a_broker_looks_for_garbage_rarely() -> None:
    script = (
        "import gc; from godwit.net.loop import collect_garbage_rarely; collect_garbage_rarely(); "
        "print(gc.isenabled(), gc.get_threshold()[0] > 10_000, gc.get_freeze_count() > 1000)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True True True\n"


def test_a_broker_hands_over_between_its_threads_quickly() -> None:
    script = (
        "import sys; from godwit.net.loop import switch_threads_quickly; switch_threads_quickly(); "
        "print(sys.getswitchinterval() < 0.001)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"
