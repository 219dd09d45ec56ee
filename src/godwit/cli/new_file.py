"""Files that are there whole or not at all: written under a hidden name beside theirs, and renamed when all is in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from godwit.cli.text import safe
from godwit.errors import GodwitError


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """The name to write to. At the end of the block it becomes `path`; if the block fails, nothing is left of it.

    What is there already stays as it is, and is an error, unless `force` replaces it, which also happens at the end.
    """
    check_free(path, force=force)
    part = path.with_name(f".godwit-{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if not force:
            path.open("xb").close()  # the name is ours now, with an empty file that is replaced in one step
        part.replace(path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        # The system's own words: those of the library that wrote it tell of its insides.
        cause = str(error) if error.errno is None else os.strerror(error.errno)
        raise GodwitError(f"cannot write {safe(str(path))}: {cause}; nothing is left of it") from error
    finally:
        with suppress(OSError):  # such as of a disk that nothing could be written to: there is nothing to remove
            part.unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Before any work is done: whether a file can be put there."""
    if not path.parent.is_dir():
        raise GodwitError(f"there is no folder {safe(str(path.parent))}; make it first, or choose another")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise GodwitError(f"cannot write {safe(str(path))}: {error.strerror}; choose another place") from error
    if not stat.S_ISREG(mode):
        raise GodwitError(f"{safe(str(path))} is no plain file and is not replaced; choose another name")
    if not force:
        raise _exists(path)


def _exists(path: Path) -> GodwitError:
    return GodwitError(f"{safe(str(path))} is there already; choose another name, or replace it with --force")
