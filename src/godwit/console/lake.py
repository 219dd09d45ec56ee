"""The lake of the console, and the process that decodes its quarantine again: `godwit pipeline requeue`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

OUTPUT_BYTES: Final = 4_000
STOP_S: Final = 10.0
"""How long a process has to end. The next one finishes the work of an interrupted one."""


class ConsoleLake:
    """The tables of a pipeline. One process at a time changes them on behalf of the console."""

    def __init__(self, address: str, source: Mapping[str, str], config: str | None = None) -> None:
        """Name a lake.

        Args:
            address: Its location.
            source: The logs that the pipeline reads, as options of format("godwit"), for its lag.
            config: The configuration of the pipeline; None for pipeline.toml in the lake.
        """
        self.address = address
        self.source = source
        self._config = config
        self._requeue: asyncio.Task[int] | None = None
        self._output = b""

    @property
    def is_requeuing(self) -> bool:
        """Whether the quarantine is being decoded again."""
        return self._requeue is not None and not self._requeue.done()

    def start_requeue(self) -> None:
        """Begin to decode the quarantine again. Call it only if that is not under way."""
        self._output = b""
        self._requeue = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> int:
        config = [] if self._config is None else ["--config", self._config]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "godwit", "pipeline", "requeue", "--lake", self.address, *config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            while part := await process.stdout.read(OUTPUT_BYTES):
                self._output = (self._output + part)[-OUTPUT_BYTES:]
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_S)
            if process.returncode is None:
                process.kill()
                await process.wait()

    def requeue_state(self) -> dict[str, Any]:
        """Return none, running, done or failed, and the last output of the process."""
        state = "none"
        if self._requeue is not None:
            is_done = self._requeue.done()
            state = "running" if not is_done else "done" if _exit_code(self._requeue) == 0 else "failed"
        return {"state": state, "output": self._output.decode("utf-8", "replace")}

    async def stop(self) -> None:
        """End the process, if it runs."""
        if self._requeue is not None:
            self._requeue.cancel()
            await asyncio.gather(self._requeue, return_exceptions=True)


def _exit_code(ended: asyncio.Task[int]) -> int | None:
    """Return the exit code of a process, or None if it could not be started."""
    return None if ended.cancelled() or ended.exception() is not None else ended.result()
