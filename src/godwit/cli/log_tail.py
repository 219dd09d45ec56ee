"""`godwit log tail`: the newest messages, and then what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from godwit.broker.topics import check_filter
from godwit.cli.connecting import guarded, run, tell
from godwit.cli.log_folder import LogFile, ranges
from godwit.cli.log_messages import newest, pieces
from godwit.cli.rendering import Lines
from godwit.cli.streams import Output
from godwit.store.reader import EpochRow, TopicSelection
from godwit.wire.epochs import same_below

LOOK_S: Final = 0.2
"""How often a followed log is asked for more."""


def show_tail(folder: Path, filters: list[str], count: int, *, follow: bool, as_json: bool) -> None:
    """Print the last so many messages; with `follow` go on until Ctrl-C or until nobody reads."""
    for each in filters:
        check_filter(each)
    chosen = TopicSelection(filters)
    with LogFile(folder) as log:
        stop = log.reader.next_offset()
        start, skip = newest(log.reader, chosen, count, stop)  # out here Ctrl-C ends it at once
        run(_Tail(log, chosen, as_json=as_json).run(start, stop, skip, follow=follow))


class _Tail:
    def __init__(self, log: LogFile, chosen: TopicSelection, *, as_json: bool) -> None:
        self._log = log
        self._chosen = chosen
        self._lines = Lines(as_json=as_json)
        self._output = Output()

    async def run(self, start: int, stop: int, skip: int, *, follow: bool) -> None:
        await guarded(self._show(start, stop, skip, follow=follow), self._output.until_closed())

    async def _show(self, start: int, stop: int, skip: int, *, follow: bool) -> None:
        await self._print(start, stop, skip)
        while follow:
            await asyncio.sleep(LOOK_S)
            log_id, epochs = self._log.reader.log_id, self._log.reader.epochs()
            if self._log.reopen():
                stop = self._go_back(log_id, epochs, stop)
            start, stop = stop, self._log.reader.next_offset()
            await self._print(start, stop, 0)

    def _go_back(self, log_id: bytes, epochs: Sequence[EpochRow], stop: int) -> int:
        """Return where to go on in a file that took the place of another one, which was read up to `stop`."""
        reader = self._log.reader
        if reader.log_id != log_id:
            tell("there is a new log in the folder; going on with its beginning")
            return 0
        ours = [row.epoch for row in reader.epochs()]
        same = same_below([row.epoch for row in epochs], ours, reader.next_offset())
        if same < stop:
            tell(
                f"an older copy of the log was put back: from offset {same:,} on it has other messages; going on there"
            )
        return min(same, stop)

    async def _print(self, start: int, stop: int, skip: int) -> None:
        for messages, damaged in pieces(self._log.reader, start, stop, self._chosen):
            if damaged:
                tell(f"offsets {ranges(damaged)} cannot be read: they are damaged; see godwit log verify")
            if len(messages) > skip:
                await self._output.write(self._lines.render(messages[skip:]))
            skip = max(skip - len(messages), 0)
            await asyncio.sleep(0)  # Ctrl-C is heard here
