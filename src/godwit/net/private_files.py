"""Permissions of files that only a broker may read: repaired where possible, else refused with a sentence.

A file that the broker's user owns must be closed to all other users. A file of another owner, such as a secret that an
administrator or an orchestrator provides, may be readable for a group: that is how the broker reads it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from godwit.errors import ConfigurationError

_GROUP_AND_OTHERS: Final = 0o077
_OTHERS: Final = 0o007


def protect_files(paths: Iterable[Path]) -> list[str]:
    """Take the rights of other users from files with keys, secrets or tokens.

    Return a sentence for each file that was changed. Missing files are left to their readers, and so is everything
    that is not a regular file.

    Raises:
        ConfigurationError: Others have rights on a file, and removing them failed.
    """
    repaired = []
    for path in dict.fromkeys(paths):
        mode = _loose_mode(path, stat.S_ISREG)
        if mode is None:
            continue
        if not _remove_rights(path, mode):
            raise ConfigurationError(
                f"other users can read or change {path} (mode {mode:o}), which has secrets: remove their rights "
                f"(`chmod o= {path}`), and replace the secrets if they may have been copied"
            )
        repaired.append(
            f"other users could read or change {path} (mode {mode:o}), which has secrets, and their rights were "
            "removed: replace the secrets if they may have been copied"
        )
    return repaired


def protect_folder(path: Path) -> list[str]:
    """Take the rights of other users from the data folder, which has all messages and the broker's key.

    Return a sentence if it was changed. A folder that does not exist yet is made without such rights.

    Raises:
        ConfigurationError: Others have rights on the folder, and removing them failed, or it is shared like /tmp.
    """
    mode = _loose_mode(path, stat.S_ISDIR)
    if mode is None:
        return []
    if mode & stat.S_ISVTX or not _remove_rights(path, mode):
        raise ConfigurationError(
            f"other users can read the data folder {path} (mode {mode:o}): remove their rights (`chmod go= {path}`), "
            "or give the broker a folder of its own"
        )
    return [f"other users could read the data folder {path} (mode {mode:o}): their rights were removed"]


def _loose_mode(path: Path, is_kind: Callable[[int], bool]) -> int | None:
    """Return the mode of a file that other users have rights on, else None."""
    if os.name != "posix":
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    forbidden = _GROUP_AND_OTHERS if status.st_uid == os.geteuid() else _OTHERS
    return stat.S_IMODE(status.st_mode) if is_kind(status.st_mode) and status.st_mode & forbidden else None


def _remove_rights(path: Path, mode: int) -> bool:
    """Return whether others have no rights now: not all users may change them, and not all file systems have them."""
    try:
        path.chmod(mode & ~_GROUP_AND_OTHERS)
        return not path.stat().st_mode & _OTHERS
    except OSError:
        return False
