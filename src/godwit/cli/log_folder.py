"""The log in a broker's folder, opened for reading, and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from godwit.cli.text import count, safe
from godwit.errors import GodwitError, StorageError
from godwit.store.folder import DataFolder
from godwit.store.reader import LogReader
from godwit.store.schema import refuse_lone_wal
from godwit.store.sqlite import refuse_missing

MAX_RANGES: Final = 8
"""More are not listed in a sentence."""


def log_path(folder: Path) -> Path:
    """The file of the log; GodwitError if there is none."""
    path = DataFolder(folder).log_path
    try:
        if folder.is_file():
            raise GodwitError(f"{safe(str(folder))} is a file: give the folder that it is in with --data")
        found = path.exists()
    except OSError as error:
        raise GodwitError(f"cannot look into {safe(str(folder))}: {error.strerror}; check its rights") from error
    if not found:
        refuse_lone_wal(path)
        refuse_missing(path)
        raise GodwitError(
            f"there is no log in {safe(str(folder))} (no file {path.name}); name the folder of a broker with --data"
        )
    return path


class LogFile:
    """A reader of the log in a folder, for the time of a block."""

    def __init__(self, folder: Path) -> None:
        self.path = log_path(folder)
        self._file = self._identity()
        self.reader = LogReader.open(self.path)

    def reopen(self) -> bool:
        """Whether there is another file under the name, as after `godwit log compact`; then that one is read now."""
        try:
            file = self._identity()
            if file == self._file:
                return False
            reader = LogReader.open(self.path)
        except (OSError, StorageError):
            return False  # it is being replaced, or it is gone: the next time is soon
        self.reader.close()
        self.reader, self._file = reader, file
        return True

    def _identity(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reader.close()


def ranges(found: Sequence[tuple[int, int]]) -> str:
    """Offsets as people read them: the last one is named, not the one behind it. Of many, the first few."""
    shown = [f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}" for begin, end in found[:MAX_RANGES]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {count(more, 'range')} more" if more else "")
