"""Ctrl-C while the program is being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from tests.cli.real import PATIENCE_S, environment, needs_posix

from godwit.cli.interrupts import quick_interrupts

INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

wanted = sys.argv[-1]

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from godwit.cli import main
sys.argv = ["godwit", "pub", "--help"]
main()
"""


@needs_posix
@pytest.mark.parametrize("module", ["godwit.cli.main", "typer", "godwit.errors", "godwit.cli.pub"])
def test_ctrl_c_during_the_imports(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module]
    result = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, env=environment())
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_behind_the_block_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with quick_interrupts():
        inside = signal.getsignal(signal.SIGINT)
    assert inside is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before


def test_another_handler_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with quick_interrupts():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_happens() -> None:
    found = []

    def work() -> None:
        with quick_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
