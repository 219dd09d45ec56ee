"""A child process that ends with this process, also if this one is killed: a shell runs it and watches a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from godwit.net.loop import completes

_SCRIPT: Final = (
    'exec 3<&0; after=$1; shift; "$@" 3<&- & p=$!; trap "kill -HUP $p" HUP; '
    "{ cat <&3; kill $p; kill -CONT $p; sleep $after; kill -9 $p; } >/dev/null 2>&1 & "
    '(echo "{\\"kind\\": \\"process\\", \\"pid\\": $p}"); '
    "while :; do wait $p; c=$?; [ $c -eq 129 ] && kill -0 $p 2>/dev/null || break; done; "
    'trap "" TERM; kill 0; exit $c'
)
"""The shell that waits for the end of standard input has no other output: it would keep that of the program open. The
process id is printed in a subshell, which a closed output may end, after the watch has begun. `kill 0` ends the
processes of the watch and what the program has left in its group. SIGHUP is passed on to the program. It interrupts
`wait`, which then has the code 129."""


async def start_watched(command: Sequence[str], kill_after_s: float, *, output: int) -> Process:
    """Start a program that runs until it ends, or until its standard input is closed.

    The program is then asked to end, also if it was stopped, and killed if it has not ended after `kill_after_s`. It
    runs in a session of its own, so Ctrl-C in a terminal does not reach it. If this is cancelled, the program is
    killed: asyncio would kill only the shell.

    Args:
        command: The program and its arguments.
        kill_after_s: See above.
        output: Its standard output, PIPE or DEVNULL. The first line is an event with its process id. With DEVNULL its
            standard error goes there, too.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            "sh", "-c", _SCRIPT, "sh", f"{kill_after_s:g}", *command,
            stdin=PIPE, stdout=output, stderr=DEVNULL if output == DEVNULL else None, start_new_session=True,
        )
    )  # fmt: skip
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        kill_group(process)
        await process.wait()
        raise


async def end_process(process: Process, timeout_s: float) -> None:
    """Close the standard input of a watched program, which ends it, and wait for it.

    Its group is killed if it takes longer than `timeout_s`, or if this is cancelled.
    """
    assert process.stdin is not None
    process.stdin.close()
    try:
        await completes(process.wait(), timeout_s)
    finally:
        kill_group(process)
        await process.wait()


def kill_group(process: Process) -> None:
    """Kill a watched program with all processes of its group, if it runs."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, if all of them have just ended
            os.killpg(process.pid, signal.SIGKILL)
