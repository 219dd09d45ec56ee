"""Which event loop runs, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.net.running import both_loops, run

from godwit.net import loop
from godwit.net.loop import completes


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


async def cancelled(clean_up: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """What a clean-up returns in a task that was cancelled."""
    found: list[object] = []
    begun = asyncio.Event()

    async def main() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            found.append(await clean_up())

    task = asyncio.get_running_loop().create_task(main())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return found[0]


@both_loops
def test_a_clean_up_has_an_end_also_in_a_cancelled_task(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("endless")

    async def failing() -> None:
        raise OSError("no")

    async def test() -> None:
        assert await cancelled(lambda: completes(endless(), 0.01)) is False
        assert await cancelled(lambda: completes(asyncio.sleep(0), 60)) is True
        assert await completes(asyncio.sleep(0), 60)
        assert not await completes(endless(), 0)
        with pytest.raises(OSError, match="no"):
            await completes(failing(), 60)
        await asyncio.sleep(0)
        assert ended == ["endless"] * 2

    run(test, loop)


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
