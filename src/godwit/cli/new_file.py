"""Files that appear complete or not at all: written under a hidden name and renamed at the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from godwit.cli.text import safe
from godwit.errors import GodwitError
from godwit.store.atomic_file import move_into_place


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary path to write to, which becomes `path` at the end of the block.

    If the block fails, the temporary file is deleted. An existing file is an error unless `force` replaces it.

    Raises:
        GodwitError: The file exists, or cannot be written.
    """
    check_free(path, force=force)
    part = path.with_name(f".godwit-{os.getpid()}.part")
    try:
        yield part
        move_into_place(part, path, is_new=not force)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        # The system's error text: that of the library which wrote the file describes library internals.
        cause = str(error) if error.errno is None else os.strerror(error.errno)
        raise GodwitError(f"cannot write {safe(str(path))}: {cause}; the partial file was removed") from error
    finally:
        with suppress(OSError):  # a failing disk may refuse this too
            part.unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Check, before any work is done, that a file can be created at `path`.

    Raises:
        GodwitError: The folder does not exist, or a file is in the way.
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise GodwitError(f"{safe(str(path.parent))} is not a folder; choose another path")
    if not path.parent.is_dir():
        raise GodwitError(f"the folder {safe(str(path.parent))} does not exist; create it, or choose another")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise GodwitError(f"cannot write {safe(str(path))}: {error.strerror}; choose another path") from error
    if not stat.S_ISREG(mode):
        raise GodwitError(f"{safe(str(path))} is not a regular file and is not replaced; choose another name")
    if not force:
        raise _exists(path)


def _exists(path: Path) -> GodwitError:
    return GodwitError(f"{safe(str(path))} exists already; choose another name, or replace it with --force")
