"""The name of the distribution, and the commands that install parts of it."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "godwit-mq"
"""The name on the package index. The import and the command are `godwit`."""


def pip_command(extra: str | None = None) -> str:
    """Return the command that installs Godwit, or Godwit with an extra."""
    return f"pip install {DISTRIBUTION}" if extra is None else f"pip install '{DISTRIBUTION}[{extra}]'"
