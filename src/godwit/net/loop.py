"""The event loop that suits the system: uvloop where it runs, elsewhere the one of asyncio that can watch sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run: Ctrl-C cancels `main`, which may tidy up, and comes out as KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows; its default loop has no add_reader
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
