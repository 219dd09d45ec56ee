"""The exceptions of Godwit, by who can act on them.

    GodwitError
     +-- DecodeError             bytes from outside that are not what they should be; `reason` is one word
     +-- UsageError              the calling program asked for something that cannot be
     |    +-- RecordTooLargeError     longer than the other side takes
     |    +-- ChannelError            an unknown or finished channel, or too many channels
     |    +-- ConfigurationError      a setting out of its range
     +-- SendBufferFullError     the network is slower than the program: wait for room, then send again
     +-- ConnectionClosedError   the connection has ended; `code` and `reason` say why
     +-- AddressError            a host or port that cannot be resolved
     +-- SocketError             the system refused a socket

Every text says what happened, to what, and what to do about it.
"""

from __future__ import annotations


class GodwitError(Exception):
    """The root: catch this to catch everything that Godwit raises on purpose."""


class DecodeError(GodwitError):
    """Bytes from outside that do not follow the protocol: the one error that decoding raises."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class UsageError(GodwitError):
    """The calling program asked for something that cannot be."""


class RecordTooLargeError(UsageError):
    """A record longer than the other side takes, or than one datagram if it is unreliable."""


class ChannelError(UsageError):
    """An unknown or finished channel, or one channel too many."""


class ConfigurationError(UsageError):
    """A setting out of its range."""


class SendBufferFullError(GodwitError):
    """More is waiting to be sent than the buffer holds: wait for the Writable event, then send again."""


class ConnectionClosedError(GodwitError):
    """The connection has ended."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(
            f"the connection is closed (code {code}): {reason}" if reason else f"the connection is closed (code {code})"
        )
        self.code = code
        self.reason = reason


class AddressError(GodwitError):
    """A host name or port that cannot be resolved."""


class SocketError(GodwitError):
    """The system refused to open, bind or use a socket."""
