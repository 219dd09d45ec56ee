"""The exceptions of Godwit, by who can act on them.

    GodwitError
     +-- DecodeError             bytes from outside that are not what they should be; `reason` is one word
     +-- UsageError              the calling program asked for something that cannot be
     |    +-- RecordTooLargeError     longer than the other side takes
     |    +-- ChannelError            an unknown or finished channel, or too many channels
     |    +-- ConfigurationError      a setting out of its range
     |    +-- ForkedError             a client was used in a forked child of the process that made it
     +-- SendBufferFullError     the network is slower than the program: wait for room, then send again
     +-- BufferFullError         a client holds as much unconfirmed as it may: wait until some of it is confirmed
     +-- ConnectionClosedError   the connection has ended; `code` and `reason` say why
     +-- BrokerError             the broker said no; `code` is one of godwit.wire.control_base.Code, `text` its sentence
     |    +-- AccessError             no right to do this, or a wrong secret
     |    +-- TopicError              a topic that is not there, or is there already
     |    |    +-- BadTopicError           a name that no topic can have; a UsageError too, as it is found here already
     |    |    +-- BadFilterError          a filter that is not written as filters are; likewise
     |    +-- JobError                a job that is not there, or not for this client to see
     |    |    +-- BadKindError            a name that no kind of work can have; a UsageError too
     |    +-- NameInUseError          another client has this name
     |    +-- TakenOverError          the same client has connected again elsewhere
     |    +-- KickedError             somebody with the right removed the client or its subscription
     +-- JobFailedError          a job has ended without all its results; `results` and `errors` are what there is
     |    +-- JobCancelledError       somebody cancelled it
     +-- TaskFailedError         raised by a worker's handler: this attempt, or the task for good, has failed
     +-- BrokerUnreachableError  no broker answered in time
     +-- FileTransferError       a file that could not be sent, or not be kept
     +-- StorageError            the log cannot be opened, read or written as it should
     |    +-- DiskError               the disk is full, cannot be written, or failed: what was given is not in the log
     |    +-- LogDamagedError         the file's own structure is damaged: `godwit log recover` saves what can be saved
     |    +-- LogInUseError           another broker works in the same folder
     |    +-- LogVersionError         the file was made by a newer Godwit, or by something else
     +-- AddressError            a host or port that cannot be resolved
     +-- SocketError             the system refused a socket

Every text says what happened, to what, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any


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


class ForkedError(UsageError):
    """A client was used in a forked child of the process that made it: connect again there."""


class SendBufferFullError(GodwitError):
    """More is waiting to be sent than the buffer holds: wait for the Writable event, then send again."""


class BufferFullError(GodwitError):
    """More is not confirmed yet than the client may hold: wait for room (the Room event), then send again."""


class ConnectionClosedError(GodwitError):
    """The connection has ended."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(
            f"the connection is closed (code {code}): {reason}" if reason else f"the connection is closed (code {code})"
        )
        self.code = code
        self.reason = reason


class BrokerError(GodwitError):
    """The broker refused something, or ended something."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.text)


class AccessError(BrokerError):
    """No right to do this, or a wrong proof of the name."""


class TopicError(BrokerError):
    """A topic or a filter that cannot be, is not there, or is there already."""


class BadTopicError(TopicError, UsageError):
    """A name that no topic can have: empty, too long, with a wildcard or a control character."""

    def __init__(self, text: str) -> None:
        super().__init__(104, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class BadFilterError(TopicError, UsageError):
    """A filter that is not written as filters are: a wildcard in the wrong place, too long, empty."""

    def __init__(self, text: str) -> None:
        super().__init__(105, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class JobError(BrokerError):
    """A job that is not there, or no longer, or not for this client to see."""


class BadKindError(JobError, UsageError):
    """A name that no kind of work can have: empty, too long, with a wildcard or a control character, or with $."""

    def __init__(self, text: str) -> None:
        super().__init__(120, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class NameInUseError(BrokerError):
    """Another client has this name and answers."""


class TakenOverError(BrokerError):
    """The same client has connected again elsewhere."""


class KickedError(BrokerError):
    """Somebody with the right removed this client or its subscription."""


_BY_CODE: dict[int, type[BrokerError]] = {  # by godwit.wire.control_base.Code, which stands above this module
    102: AccessError,
    103: TopicError,
    109: NameInUseError,
    110: TakenOverError,
    111: KickedError,
    113: TopicError,
    119: JobError,
}


def broker_error(code: int, text: str) -> BrokerError:
    """The error that a code of the broker stands for."""
    if code == 104:
        return BadTopicError(text)
    if code == 105:
        return BadFilterError(text)
    if code == 120:
        return BadKindError(text)
    return _BY_CODE.get(code, BrokerError)(code, text)


class JobFailedError(GodwitError):
    """A job has ended without all its results."""

    def __init__(
        self, text: str, state: str = "failed", results: Sequence[Any] = (), errors: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.state = state
        """Of the job: failed or cancelled."""
        self.results = list(results)
        """Of those tasks that have one."""
        self.errors = dict(errors or {})
        """Of those that have failed, by their numbers."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text, self.state, self.results, self.errors)


class JobCancelledError(JobFailedError):
    """Somebody cancelled the job before it was done."""


class TaskFailedError(GodwitError):
    """Raised by a worker's handler, with what its controller is to read; `final`: to try again would not help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.final = final

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), final=self.final), (self.text,)


class BrokerUnreachableError(GodwitError):
    """No broker answered in time."""


class FileTransferError(GodwitError):
    """A file that could not be sent, or not be kept."""


class StorageError(GodwitError):
    """The log cannot be opened, read or written as it should."""


class DiskError(StorageError):
    """The disk is full, cannot be written, or failed: nothing of what was given is in the log."""


class LogDamagedError(StorageError):
    """The structure of the log's file is damaged: `godwit log recover` saves every block that is intact."""


class LogInUseError(StorageError):
    """Another broker works in the same folder."""


class LogVersionError(StorageError):
    """The file was made by a newer Godwit, or is no log at all."""


class AddressError(GodwitError):
    """A host name or port that cannot be resolved."""


class SocketError(GodwitError):
    """The system refused to open, bind or use a socket."""
