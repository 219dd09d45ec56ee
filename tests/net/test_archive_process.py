"""The archive process: started, restarted, ended; its log lines, and its commits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.net.log_stands import entry
from tests.net.running import both_loops, run

from godwit.broker.effects import Import, Imported, Notice
from godwit.errors import DecodeError, StorageError
from godwit.net import archive_process
from godwit.net.archive_process import UNINTERRUPTED, ArchiveProcess, archive_command, read_stages
from godwit.server.archive_pipe import join_blocks
from godwit.server.configuration import ArchiveSection
from godwit.store.block import DamagedBlockError, encode_blocks
from godwit.wire.batch import Entry

# A stand-in for the archive: it reports that it is ready, runs the code in its argument, and ends with its input.
ARCHIVE = """
import os, signal, sys, time
from godwit.server.archive_pipe import *
def say(message):
    os.write(1, encode_message(message))
def answers():
    reader = PipeReader()
    while data := os.read(0, 65536):
        yield from (decode_from_broker(body) for body in reader.feed(data))
say(Ready(f"grpc://{os.getpid()}"))
"""
LISTENS = "\nfor done in answers(): pass"
COMMITS = """
for number in (1, 2):
    say(Commit(number, "query", 7, ["a", "b"]))
for done in answers():
    say(LogLine("info", f"{done.key} {done.problem} {done.was_known} {done.first_offset} {done.count}"))
"""
PATIENCE_S = 120.0


def command(code: str) -> list[str]:
    return [sys.executable, "-c", ARCHIVE + code]


class World:
    """The broker's side."""

    def __init__(self, folder: Path, code: str) -> None:
        self.notices: list[Notice] = []
        self.imports: list[Import] = []
        self._changed = asyncio.Event()
        self.import_error: Exception | None = None
        self.archive = ArchiveProcess(folder, import_staged=self._bring_in, on_notice=self._tell)
        self.archive.run(command(code))

    def _bring_in(self, event: Import) -> None:
        if self.import_error is not None:
            raise self.import_error
        self.imports.append(event)
        self._changed.set()

    def _tell(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def texts(self, kind: str) -> list[str]:
        return [notice.text for notice in self.notices if notice.kind == kind]

    async def pid(self, number: int = 1) -> int:
        """Wait until `count` processes were ready, and return the pid of the last."""
        await self.until(lambda: len(self.texts("archive")) >= number)
        return int(self.texts("archive")[number - 1].rpartition("/")[2])


@asynccontextmanager
async def keeping(folder: Path, code: str = LISTENS) -> AsyncIterator[World]:
    world = World(folder, code)
    try:
        yield world
    finally:
        await world.archive.stop()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stage(path: Path, *entries: Entry) -> None:
    path.write_bytes(join_blocks([row.body for row in encode_blocks(entries, 0)]))


# -- the process ------------------------------------------------------------------------------------------------------


@both_loops
def test_it_runs_in_the_session_of_the_broker_and_ends_with_it(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with keeping(tmp_path) as world:
            await asyncio.wait_for(world.archive.wait_until_settled(), PATIENCE_S)
            pid = await world.pid()
            assert world.notices == [Notice("archive", f"archive on grpc://{pid}", {"url": f"grpc://{pid}"})]
            assert os.getsid(pid) == os.getsid(0)  # its low priority matters only there
        assert not is_running(pid)
        await world.archive.stop()

    run(test, loop)


def test_one_that_ends_is_started_again_after_a_pause_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_process, "FIRST_PAUSE_S", 0.01)

    async def test() -> None:
        async with keeping(tmp_path) as world:
            os.kill(await world.pid(), signal.SIGKILL)
            os.kill(await world.pid(2), signal.SIGTERM)
            assert is_running(await world.pid(3))
            assert world.texts("warning") == [
                "the archive ended with exit code -9: it is started again in 0.01 s; the broker is not affected",
                "the archive ended with exit code -15: it is started again in 0.02 s; the broker is not affected",
            ]

    run(test)


def test_one_that_cannot_be_started_does_not_delay_the_broker(tmp_path: Path) -> None:
    async def test() -> None:
        async with keeping(tmp_path, "sys.exit(3)") as world:
            await asyncio.wait_for(world.archive.wait_until_settled(), PATIENCE_S)
            await world.until(lambda: bool(world.texts("warning")))
            assert "exit code 3" in world.texts("warning")[0]
            world.archive.run([str(tmp_path / "nowhere")])
            await world.until(lambda: "could not be started (No such file or directory)" in world.notices[-1].text)

    run(test)


def test_why_it_does_not_get_ready_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_process, "FIRST_PAUSE_S", 0.01)
    tries = tmp_path / "tries"
    code = f"""
import os, sys
from godwit.server.archive_pipe import *
with open({str(tries)!r}, "a") as file:
    file.write(os.environ["GRPC_VERBOSITY"] + " ")
if len(open({str(tries)!r}).read().split()) < 4:
    os.write(1, encode_message(LogLine("warning", "the port is in use")))
    sys.exit(1)
"""

    async def test() -> None:
        async with keeping(tmp_path) as world:
            await world.pid()
            world.archive.run([sys.executable, "-c", code + ARCHIVE + LISTENS])
            os.kill(await world.pid(2), signal.SIGKILL)  # which is news again
            await world.pid(3)
            assert world.texts("warning") == [
                "archive: the port is in use",
                "the archive ended with exit code 1: it is started again in 0.01 s; the broker is not affected",
                "the archive ended with exit code -9: it is started again in 0.08 s; the broker is not affected",
            ]
        assert set(tries.read_text().split()) == {"NONE"}

    run(test)


def test_one_that_speaks_nonsense_is_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with keeping(tmp_path, "print('hello, world', flush=True)" + LISTENS) as world:
            pid = await world.pid()
            await world.until(lambda: bool(world.texts("warning")))
            assert "the archive sent an invalid message" in world.texts("warning")[0]
            while is_running(pid):  # its end is not reported
                await asyncio.sleep(0.01)

    run(test)


def test_one_that_does_not_end_is_ended_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_process, "END_TIMEOUT_S", 0.05)

    async def test() -> None:
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(LogLine('info', '')); time.sleep(100)"
        async with keeping(tmp_path, deaf) as world:
            await world.until(lambda: bool(world.texts("log")))
            pid = await world.pid()
        assert not is_running(pid)

    run(test)


@both_loops
@pytest.mark.parametrize("cancels", [1, 2, 3, 4])
def test_one_that_does_not_end_is_ended_however_often_the_clean_up_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop], cancels: int
) -> None:
    monkeypatch.setattr(archive_process, "END_TIMEOUT_S", 0.05)
    ended: list[asyncio.subprocess.Process] = []
    end = archive_process._end

    async def recording_end(process: asyncio.subprocess.Process) -> None:
        ended.append(process)
        await end(process)

    monkeypatch.setattr(archive_process, "_end", recording_end)

    async def test() -> None:
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(LogLine('info', '')); time.sleep(100)"
        world = World(tmp_path, deaf)
        await world.until(lambda: bool(world.texts("log")))
        pid = await world.pid()
        (task,) = world.archive._tasks
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)  # it gets as far as its next wait
        await asyncio.wait([task])
        async with asyncio.timeout(PATIENCE_S):
            while ended[0].returncode is None:  # after a last cancellation the loop reaps it
                await asyncio.sleep(0.01)
        assert not is_running(pid)

    run(test, loop)


@both_loops
def test_another_one_is_started_when_the_former_has_ended_and_none_when_none_is_wanted(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with keeping(tmp_path) as world:
            first = await world.pid()
            world.archive.run(command(LISTENS))  # the same command: it keeps running
            assert world.archive.url == f"grpc://{first}"
            for code in ("\n0", "\n1", "\n2"):  # the last counts
                world.archive.run(command(code + LISTENS))
            assert world.archive.url == ""
            second = await world.pid(2)
            assert not is_running(first)
            assert world.archive.url == f"grpc://{second}"
            world.archive.run(None)
            assert world.archive.url == ""
            await world.archive.stop()  # at the same time: it waits for the end all the same
            assert not is_running(second)
            assert len(world.notices) == 2

    run(test, loop)


def test_something_unforeseen_is_reported_and_another_one_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_process, "FIRST_PAUSE_S", 0.01)

    def fail(self: ArchiveProcess, message: object) -> None:
        monkeypatch.undo()
        raise ValueError("a bug")

    monkeypatch.setattr(ArchiveProcess, "_on_ready", fail)

    async def test() -> None:
        async with keeping(tmp_path) as world:
            assert is_running(await world.pid())
            assert "an unexpected error (ValueError: a bug): it is started again in 0.01 s" in world.notices[0].text

    run(test)


def test_its_log_lines_become_event_lines(tmp_path: Path) -> None:
    async def test() -> None:
        code = 'say(LogLine("warning", "a stage is too old")); say(LogLine("info", "all is well"))'
        async with keeping(tmp_path, code + LISTENS) as world:
            await world.until(lambda: len(world.notices) == 3)
            assert world.texts("warning") == ["archive: a stage is too old"]
            assert world.texts("log") == ["archive: all is well"]

    run(test)


# -- commits ----------------------------------------------------------------------------------------------------------


def test_what_was_staged_is_brought_in_one_commit_after_the_other(tmp_path: Path) -> None:
    first, second, third = entry(1, 9, "a"), entry(1, 8, "b"), entry(1, 7, "c")
    stage(tmp_path / "a", first, second)
    stage(tmp_path / "b", third)

    async def test() -> None:
        async with keeping(tmp_path, COMMITS) as world:
            await world.until(lambda: bool(world.imports))
            (one,) = world.imports  # the second waits for the first's answer
            assert (one.query, one.batch, one.entries) == ("query", 7, [first, second, third])
            world.archive.answer(Imported(one.key + 1000))  # of no waiting commit
            world.archive.answer(Imported(one.key, first_offset=5, count=3))
            await world.until(lambda: len(world.imports) == 2)
            world.archive.answer(Imported(world.imports[1].key, problem="the disk is full", was_known=True))
            await world.until(lambda: len(world.texts("log")) == 2)
            assert world.texts("log") == ["archive: 1  False 5 3", "archive: 2 the disk is full True 0 0"]

    run(test)


def test_an_answer_for_a_process_that_is_gone_does_not_reach_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_process, "FIRST_PAUSE_S", 0.01)
    stage(tmp_path / "a", entry())
    stage(tmp_path / "b", entry())

    async def test() -> None:
        async with keeping(tmp_path, COMMITS) as world:
            await world.until(lambda: bool(world.imports))
            os.kill(await world.pid(), signal.SIGKILL)
            await world.until(lambda: len(world.imports) == 2)  # the same, from another
            world.archive.answer(Imported(world.imports[0].key, problem="too late"))
            world.archive.answer(Imported(world.imports[1].key, count=1))
            await world.until(lambda: bool(world.texts("log")))
            assert world.texts("log") == ["archive: 1  False 0 1"]

    run(test)


def test_what_cannot_be_read_is_not_brought_in(tmp_path: Path) -> None:
    async def test() -> None:
        async with keeping(tmp_path, COMMITS) as world:
            await world.until(lambda: len(world.texts("log")) == 2)
            assert "1 the staged files cannot be read: " in world.texts("log")[0]
            assert world.imports == []

    run(test)


@pytest.mark.parametrize("place", ["read_stages", "bring_in"])
def test_a_commit_that_fails_in_an_unforeseen_way_is_answered_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    stage(tmp_path / "a", entry())
    stage(tmp_path / "b", entry())

    def fail(folder: Path, names: list[str]) -> None:
        raise OverflowError("a bug")

    async def test() -> None:
        async with keeping(tmp_path, COMMITS) as world:
            if place == "bring_in":
                world.import_error = OverflowError("a bug")
            else:
                monkeypatch.setattr(archive_process, "read_stages", fail)
            await world.until(lambda: len(world.texts("log")) == 2)
            for number, text in enumerate(world.texts("log"), 1):
                assert f"archive: {number} the commit failed" in text
                assert "OverflowError: a bug" in text
            assert len(world.texts("warning")) == 2
            assert is_running(await world.pid())

    run(test)


def test_stages_are_read_in_order_and_only_from_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stages"
    folder.mkdir()
    stage(tmp_path / "outside", entry())
    stage(folder / "a", entry(1, 5, "a"))
    stage(folder / "b", entry(1, 5, "b"))
    assert [found.topic for found in read_stages(folder, ["b", "a", "b"])] == ["b", "a", "b"]
    assert read_stages(folder, []) == []
    for name in ("../outside", str(tmp_path / "outside"), "", ".", "..", "a\0"):
        with pytest.raises(DecodeError, match="not the name of a staged file"):
            read_stages(folder, ["a", name])
    data = bytearray((folder / "a").read_bytes())
    data[-9] ^= 1
    (folder / "bad").write_bytes(data)
    with pytest.raises(DamagedBlockError):
        read_stages(folder, ["bad"])
    with pytest.raises(StorageError) as missing:
        read_stages(folder, ["missing"])
    assert str(missing.value) == "No such file or directory; stage it again"  # sent to clients: no paths
    monkeypatch.setattr(archive_process, "MAX_COMMIT_BATCHES", 2)
    assert len(read_stages(folder, ["a", "b"])) == 2
    with pytest.raises(DecodeError, match="more than 2 batches in one commit"):
        read_stages(folder, ["a", "b", "a"])
    monkeypatch.setattr(archive_process, "MAX_IMPORT_BYTES", 100)
    with pytest.raises(DecodeError, match="make smaller batches"):
        read_stages(folder, ["a", "b"])


def test_the_command_line() -> None:
    log, stages = Path("d/log.sqlite"), Path("d/stages")
    usual = [*UNINTERRUPTED, sys.executable, "-m", "godwit.archive", "--log", "d/log.sqlite", "--stages", "d/stages"]
    assert archive_command(log, stages, "[::1]:7", ArchiveSection()) == [*usual, "--listen", "[::1]:7"]
    section = ArchiveSection(token_file=Path("t"), certificate=Path("c"), key=Path("k"))
    more = ["--token-file", "t", "--certificate", "c", "--key", "k"]
    assert archive_command(log, stages, "a:0", section) == [*usual, "--listen", "a:0", *more]
