"""Bars on stderr, if it is a terminal."""

from __future__ import annotations

import asyncio

import pytest

from godwit.cli.connection import print_notice
from godwit.cli.progress import MAX_BARS, FileProgress, LineProgress, TaskProgress, WorkProgress
from godwit.cli.streams import Output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("terminal")
def test_a_bar_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    with FileProgress(enabled=True) as progress:
        progress.show("a\x1b.bin", 1_000_000, 4_000_000)
        progress.show("a\x1b.bin", 2_000_000, 4_000_000)
        for number in range(2 * MAX_BARS):
            progress.show(f"{number}", 1, 2)
        assert len(progress.progress.tasks) == MAX_BARS
        progress.progress.refresh()
        progress.finish("a\x1b.bin")
        progress.finish("never seen")
        assert len(progress.progress.tasks) == MAX_BARS - 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "a\\x1b.bin" in err
    assert "2.0/4.0 MB" in err


@pytest.mark.usefixtures("terminal")
def test_lines_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress(enabled=True) as progress:
        progress.show(12_345)
        progress.progress.refresh()
    assert "12,345 messages" in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_a_bar_for_a_piece_of_work(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkProgress("checking", enabled=True) as progress:
        progress.show(1, 4)
        progress.progress.refresh()
    out, err = capsys.readouterr()
    assert out == ""
    assert "checking" in err
    assert "25%" in err


@pytest.mark.usefixtures("terminal")
def test_a_bar_for_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    with TaskProgress(enabled=True) as progress:
        progress.show(0, "task 0", None, "waits")
        progress.show(0, "task 0 anna\x1b", 0.25, "half\x07")
        progress.total("job 7", 3, 20)
        for number in range(2 * MAX_BARS):
            progress.show(number, f"task {number}", 0.5)
        assert len(progress.progress.tasks) == MAX_BARS + 1
        progress.show(0, "task 0 anna\x1b", 0.25, "half\x07")
        progress.print_line("task 3 goes to \x1b bert, who is not [bold]")
        progress.progress.refresh()
        progress.finish(0)
        progress.finish("never seen")
        assert len(progress.progress.tasks) == MAX_BARS
    out, err = capsys.readouterr()
    assert out == ""
    for text in ("task 0 anna\\x1b", "25%", "half\\x07", "job 7", "3 of 20", "who is not [bold]"):
        assert text in err


def test_lines_go_to_standard_output_unless_bars_are_in_the_way(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one terminal they are put above the bars."""
    with TaskProgress(enabled=True) as progress:
        asyncio.run(progress.write("a: °\n", Output(1)))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        asyncio.run(progress.write("b: x\n", Output(1)))
    out, err = capfd.readouterr()
    assert out == "a: °\n"
    assert "b: x" in err


@pytest.mark.usefixtures("terminal")
def test_a_notice_never_shares_a_line_with_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C at a worker printed `task 0 ... 58% handed back 1 task`."""
    with TaskProgress(enabled=True) as bars:
        bars.show(0, "task 0", 0.5)
        bars.progress.refresh()
        print_notice("handed back 1 task")
    print_notice("the end")
    err = capsys.readouterr().err
    before, _, after = err.partition("godwit: handed back 1 task\n")
    assert before.endswith("\x1b[2K"), "the line of the bar is erased first"
    assert "task 0" in before
    assert after.endswith("godwit: the end\n")


def test_no_bars_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress(enabled=False) as lines, FileProgress(enabled=False) as files:
        with TaskProgress(enabled=False) as tasks:
            tasks.show(0, "task 0", 0.5)
            tasks.total("job 7", 1, 2)
        with WorkProgress("checking", enabled=False) as work:
            work.show(1, 2)
        lines.show(1)
        files.show("a", 1, 2)
    assert capsys.readouterr() == ("", "")
