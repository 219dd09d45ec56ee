"""Clients in a forked child process: they refuse to work there, and leave the parent's connection alone.

A child inherits the memory and the sockets of a client, but not the thread that runs its event loop. A call would wait
for that thread for ever, and a datagram from the child would break the parent's connection.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from godwit.errors import ForkedError


class Owned(Protocol):
    """Something that works only in the process that made it."""

    def on_forked(self) -> None:
        """In a child, before any other code of the program runs there: refuse everything from now on.

        It may not take a lock, which another thread of the parent may have held, nor touch a socket or an event loop.
        """


_owned: WeakSet[Owned] = WeakSet()


def disown_in_children(owned: Owned) -> None:
    """Call `owned.on_forked` in every child that this process forks."""
    _owned.add(owned)


def forked_error() -> ForkedError:
    return ForkedError(
        f"this client was inherited by a fork and works only in the parent (process {os.getppid()}): connect again in "
        "the child, or start processes with the method 'spawn'"
    )


def _on_forked() -> None:
    inherited = list(_owned)
    _owned.clear()
    for owned in inherited:
        owned.on_forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_on_forked)
