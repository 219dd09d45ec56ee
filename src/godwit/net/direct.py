"""Run the client of a blocking program in the thread that waits, while messages follow each other quickly.

Usually the loop's thread reads the socket and wakes the thread that waits for a message: two changes of threads for
each message and its reply, which take longer than everything else. If the last message came soon, the loop's thread
pauses (LoopThread.pause) and leaves the client to the callers:

    wait    the caller's thread reads the socket until a message is there, for a few milliseconds at most
    send    the first message after such a wait leaves in the caller's thread

The loop continues after a moment without a use, and at once if another call needs it. Everything here has a general
path in the loop's thread, which does the same: `wait` and `send` return False if it has to be taken.

Ctrl-C must not be raised while the state of the client is being changed, only while the thread waits for the socket. So
the main thread replaces the handler of the signal meanwhile. In the main thread of a program with signal handlers of
its own, which may raise errors too or call the client, the loop's thread does all the work.
"""

from __future__ import annotations

import math
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from godwit.client.events import Available, Confirmed
from godwit.net.loop import LoopThread

if TYPE_CHECKING:
    from godwit.client.batches import Payload
    from godwit.net.runtime import ClientRuntime

DIRECT_S: Final = 0.005
"""How long a caller's thread waits by itself. Then it waits for the loop's thread, which other callers may need."""
BRISK_S: Final = 0.002
"""A message that came within this time makes the thread wait for the next one by itself."""
_KEEP_S: Final = 250e-6
"""How long the confirm of a message may wait for the next reply, while the socket is polled."""
_LEAVE_S: Final = 0.001
"""How long to wait until the loop's thread has left the loop after the message before."""
_PLAIN: Final = frozenset({Available, Confirmed})
"""Events that never need the loop: no task waits for one while the loop is paused."""
_native: Final[Any] = sys.modules.get("_signal", signal)
"""The module below `signal`, without its conversions to enums: these take 4 of 5 us of setting a handler."""
_set_handler: Final = _native.signal
_get_handler: Final = _native.getsignal
_SIGINT: Final = int(signal.SIGINT)
_ALL_SIGNALS: Final = sorted(int(number) for number in signal.valid_signals() if number != _SIGINT)
_USUAL_SIGNALS: Final = [
    int(getattr(signal, name))
    for name in ("SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
T = TypeVar("T")


class DirectPublisher(Protocol):
    """The interface of an AsyncPublisher that is used here."""

    def _send_directly(self, payload: Payload) -> bool: ...


class CallerDriver:
    """Runs one client in the threads of its callers, while the loop is paused. All of them may call all methods."""

    def __init__(self, thread: LoopThread, runtime: ClientRuntime) -> None:
        self._thread = thread
        self._driver = runtime.driver
        self.may_send = False
        """Whether a message was received and no message was sent since: further messages are sent in batches."""
        self.waits = 0
        """The number of waits that ended with a message in the thread of the caller."""
        self._is_polling = False
        """Whether the main thread waits for the socket: then Ctrl-C is raised at once."""
        self._is_interrupted = False
        self._is_possible = hasattr(select, "poll")  # not on Windows
        if self._is_possible:
            poll = select.poll()
            for udp in self._driver.sockets:
                poll.register(udp.fileno(), select.POLLIN)
            self._poll = poll.poll
            thread.on_resumed = self._driver.resume

    def may_pause(self) -> bool:
        """Return whether the loop may be paused, so that this thread can wait for the next message."""
        return self._is_possible and _is_safe(_ALL_SIGNALS)

    def wait(self, is_done: Callable[[], bool]) -> bool:
        """Receive until `is_done()`. Return False if the loop's thread must continue to wait."""
        self._thread.require_own_process()
        return self._is_free() and _is_safe(_USUAL_SIGNALS) and self._run(self._wait, is_done)

    def send(self, publisher: DirectPublisher, payload: Payload) -> bool:
        """Send a message. Return False if that was not possible: the loop's thread must send it."""
        if not self.may_send or not self._is_free() or not _is_safe(_USUAL_SIGNALS):
            return False
        return self._run(self._send, partial(publisher._send_directly, payload))

    def _is_free(self) -> bool:
        thread = self._thread
        # A callback, which this thread has called, takes the general path too, and is refused there.
        return thread.is_paused and not thread.is_wanted and thread.used_by != threading.get_ident()

    def _run(self, function: Callable[[Callable[[], bool]], bool], argument: Callable[[], bool]) -> bool:
        """Call a function, and delay KeyboardInterrupt until it has returned or waits for the socket."""
        if not _is_main_thread() or not callable(before := _get_handler(_SIGINT)):
            return function(argument)
        self._is_interrupted = False
        _set_handler(_SIGINT, self._on_interrupt)
        try:
            return function(argument)
        finally:
            _set_handler(_SIGINT, before)
            if self._is_interrupted:
                raise KeyboardInterrupt

    def _on_interrupt(self, *_: object) -> None:
        if self._is_polling:
            self._is_polling = False
            raise KeyboardInterrupt
        self._is_interrupted = True

    # -- with Ctrl-C delayed ------------------------------------------------------------------------------------------

    def _wait(self, is_done: Callable[[], bool]) -> bool:
        thread = self._thread
        if not thread.running.acquire(timeout=_LEAVE_S):
            return False  # another thread uses the client, or the loop
        try:
            if not self._is_free():
                return False
            thread.uses += 1
            if not self._call(is_done) and not self._receive(is_done):
                self.may_send = False
                return False
            self.may_send = True
            self.waits += 1
            return True
        finally:
            thread.running.release()

    def _receive(self, is_done: Callable[[], bool]) -> bool:
        """Wait for the socket until the wait is done, for a few milliseconds. The reply of the application to a message
        shares a packet with the acknowledgement, which is not sent before.

        After a reply, only the confirm of its message is left to be sent. While the socket is polled, it is kept for
        the next reply, too.
        """
        now = time.monotonic()
        ends = now + DIRECT_S
        sends_at = now if self.may_send else now + _KEEP_S
        while now < ends and not self._thread.is_wanted:
            if now >= sends_at:
                self._transmit()
            is_readable = self._wait_for_socket(self._poll_socket)
            if not is_readable:
                if now < sends_at:
                    sends_at = now
                    self._transmit()
                until = min(ends, self._driver.next_timer() or ends)
                timeout_ms = max(math.ceil((until - time.monotonic()) * 1000), 0)
                is_readable = self._wait_for_socket(partial(self._poll, timeout_ms))
            self._hand_back_after(self._call(partial(self._driver.receive_directly, is_readable)))
            if self._call(is_done):
                return True
            now = time.monotonic()
        return False

    def _wait_for_socket(self, wait: Callable[[], object]) -> bool:
        if not _is_main_thread():
            return bool(wait())
        self._is_polling = True
        try:
            return bool(wait())
        finally:
            self._is_polling = False

    def _poll_socket(self) -> bool:
        """Look for a datagram again and again, in a brisk exchange. Return whether there is one."""
        while self._driver.look_again(time.monotonic()):
            if self._poll(0):
                return True
        return False

    def _send(self, send: Callable[[], bool]) -> bool:
        thread = self._thread
        if not thread.running.acquire(timeout=_LEAVE_S):
            return False  # another thread uses the client
        try:
            if not thread.is_paused or not send():
                return False
            thread.uses += 1
            self.may_send = False
            self._transmit()
            return True
        finally:
            thread.running.release()

    def _transmit(self) -> None:
        self._hand_back_after(self._call(self._driver.send_directly))

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function that may call the application, whose callbacks may not call the client."""
        self._thread.used_by = threading.get_ident()
        try:
            return function()
        finally:
            self._thread.used_by = 0

    def _hand_back_after(self, events: Sequence[object]) -> None:
        """Let the loop continue if these events need it."""
        if self._driver.needs_loop or not _PLAIN.issuperset(map(type, events)):
            self._thread.end_pause()


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _is_safe(others: list[int]) -> bool:
    """Return whether no handler of the application for Ctrl-C or these other signals can run in this thread."""
    if not _is_main_thread():
        return True
    handler = _get_handler(_SIGINT)
    if callable(handler) and handler is not signal.default_int_handler:
        return False
    return not any(map(callable, map(_get_handler, others)))
