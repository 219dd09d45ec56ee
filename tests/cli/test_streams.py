"""Standard input and output beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.cli.streams import DaemonThread, Input, Output, OutputClosedError
from godwit.errors import GodwitError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes are watched in another way there")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    here, there = os.pipe()
    yield here, there
    for fd in (here, there):
        with contextlib.suppress(OSError):
            os.close(fd)


def lines_of(data: bytes, max_bytes: int = 100) -> list[bytes]:
    """Return the lines read from a pipe into which these bytes are written, a few at a time."""

    async def main() -> list[bytes]:
        here, there = os.pipe()
        found: list[bytes] = []

        async def feed() -> None:
            for at in range(0, len(data), 3):
                os.write(there, data[at : at + 3])
                await asyncio.sleep(0.001)
            os.close(there)

        feeding = asyncio.create_task(feed())
        try:
            async for lines in Input(here).lines(max_bytes):
                found += lines
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            os.close(here)
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\nthree", [b"one", b"", b"three"]),
        (b"\n", [b""]),
        (b"a\r\nb\xff\n", [b"a\r", b"b\xff"]),
    ],
)
def test_lines(data: bytes, lines: list[bytes]) -> None:
    assert lines_of(data) == lines


@pytest.mark.parametrize("data", [b"ok\n" + b"x" * 11 + b"\n", b"ok\n" + b"x" * 11])
def test_a_line_that_is_too_long(data: bytes) -> None:
    with pytest.raises(GodwitError, match="line 2 of standard input is longer than 10 bytes"):
        lines_of(data, max_bytes=10)


def test_a_file_is_input_too(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n")
    fd = os.open(path, os.O_RDONLY)

    async def main() -> list[bytes]:
        return [line async for lines in Input(fd).lines(10) for line in lines]

    try:
        assert asyncio.run(main()) == [b"a", b"b"]
    finally:
        os.close(fd)


@pytest.mark.parametrize("size_bytes", [1, 4096, 300_000])
def test_output_to_a_slow_reader_does_not_block_the_loop(pipe: tuple[int, int], size_bytes: int) -> None:
    here, there = pipe

    async def main() -> int:
        writing = asyncio.create_task(Output(there).write(b"x" * size_bytes))
        turns = 0
        read = 0
        while read < size_bytes:
            await asyncio.sleep(0.001)
            turns += 1
            read += len(os.read(here, 65536))
        await writing
        return turns

    assert asyncio.run(main()) >= 1


def test_output_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    asyncio.run(Output(fd).write(b"hello"))
    os.close(fd)
    assert path.read_bytes() == b"hello"


@pytest.mark.parametrize("size_bytes", [1, 100_000])
def test_a_reader_that_is_gone(pipe: tuple[int, int], size_bytes: int) -> None:
    here, there = pipe
    os.close(here)
    with pytest.raises(OutputClosedError):
        asyncio.run(Output(there).write(b"x" * size_bytes))


def test_a_reader_that_goes_is_noticed_without_writing(pipe: tuple[int, int]) -> None:
    here, there = pipe

    async def main() -> None:
        watching = asyncio.create_task(Output(there).until_closed())
        await asyncio.sleep(0.3)
        assert not watching.done()
        os.close(here)
        await asyncio.wait_for(watching, 120)

    with pytest.raises(OutputClosedError):
        asyncio.run(main())


def test_a_full_disk_is_reported() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(GodwitError, match="cannot write to standard output: No space left"):
            asyncio.run(Output(fd).write(b"x"))
    finally:
        os.close(fd)


def test_a_thread_hands_results_and_errors_over() -> None:
    async def main() -> None:
        thread = DaemonThread("test")
        assert await thread.call(lambda: 1) == 1
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)

    asyncio.run(main())


STUCK = """
import asyncio, os, sys
from godwit.cli.streams import Input, Output

async def main():
    async def read():
        async for _ in Input().chunks():
            pass
    here, there = os.pipe()
    reading = asyncio.create_task(read())
    writing = asyncio.create_task(Output(there).write(b"x" * 1_000_000))
    await asyncio.sleep(0.1)
    reading.cancel(), writing.cancel()
    await asyncio.gather(reading, writing, return_exceptions=True)
    print("end")

asyncio.run(main())
"""


def test_blocked_threads_do_not_keep_the_program_from_ending() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.wait(timeout=120)  # while its standard input is still open
            assert (process.stdout.read(), process.stderr.read(), process.returncode) == ("end\n", "", 0)
        finally:
            process.kill()
