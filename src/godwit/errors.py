"""The exceptions of Godwit, grouped by the party that can act on them, and the reason codes of peers.

    GodwitError
     +-- DecodeError             invalid bytes from a peer or a file; `reason` is one word
     +-- UsageError              an invalid call of the program
     |    +-- RecordTooLargeError     a record above the peer's limit
     |    +-- ChannelError            an unknown or finished channel, or too many channels
     |    +-- ConfigurationError      an invalid setting
     |    +-- ForkedError             a client was used in a forked child of the process that made it
     +-- SendBufferFullError     the network is slower than the program: wait for room, then send again
     +-- BufferFullError         the client's buffer for unconfirmed messages is full: wait for confirmations
     +-- ConnectionClosedError   the connection has ended; `code` and `reason` tell why
     +-- BrokerError             the broker refused; `code` is one of Code, `text` the reason
     |    +-- AccessError             no right to do this, or a wrong secret
     |    +-- TopicError              a topic does not exist, or exists already
     |    |    +-- BadTopicError           an invalid topic name; also a UsageError, as the client checks it too
     |    |    +-- BadFilterError          an invalid topic filter; also a UsageError
     |    +-- JobError                a job does not exist, or this client may not see it
     |    |    +-- BadKindError            an invalid kind of work; also a UsageError
     |    +-- NameInUseError          another client has this name
     |    +-- TakenOverError          the same client has connected again elsewhere
     |    +-- KickedError             another client removed this client or its subscription
     |    +-- SealingError            the connection must be sealed, or this broker's certificate is not trusted
     +-- JobFailedError          a job has ended without all its results; `results` and `errors` have the rest
     |    +-- JobCancelledError       a job was cancelled
     +-- TaskFailedError         raised by a worker's handler: this attempt, or with `final` the task, has failed
     +-- MessageExpiredError     a message expired in this client's queue, before the broker confirmed it
     +-- RequestError            a request to another client has no result
     |    +-- NoResponderError        no client that may reply is subscribed
     |    +-- NoReplyError            no reply came in time; also a TimeoutError
     |    +-- RequestFailedError      the responder reports a failure; `reply` is its message
     +-- BrokerUnreachableError  no broker answered in time
     |    +-- ReplyTimeoutError       a call with `timeout_s` was not confirmed or answered in time; also a TimeoutError
     +-- PayloadError            a received payload is not the text or the JSON that was asked for; also a ValueError
     +-- FileTransferError       a file could not be sent or received
     +-- StorageError            the log cannot be opened, read or written
     |    +-- DiskError               the disk is full, read-only or defective: nothing was appended
     |    +-- LogDamagedError         the structure of the file is damaged: `godwit log recover` saves intact blocks
     |    +-- LogInUseError           another broker uses the same folder
     |    +-- LogVersionError         the file was made by a newer Godwit, or is not a log
     +-- NodeStoppedError        a node of a cluster must not continue, or the operator has to act
     +-- AddressError            an invalid or unknown host or port
     +-- SocketError             the system refused a socket

Every text tells what happened, to what, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final


class Code(IntEnum):
    """Why a connection ended or a request failed. Below 100: the transport's; from 100 on: the broker's."""

    NORMAL = 0
    SHUTDOWN = 1
    """The other side is being stopped; come back later."""
    PROTOCOL = 2
    """It broke the rules of the protocol."""
    LIMIT = 3
    """It sent more than it was allowed to."""
    VERSION = 4
    """It speaks another version."""
    BUSY = 5
    """There are as many connections as there may be; come back later."""
    TIMEOUT = 6
    """No packet was received for the idle timeout. Not sent in a close: the peer would not receive it."""
    RESET = 7
    """The other side does not know the connection, because it was restarted. Never sent in a close."""
    INTERNAL = 8
    """A defect of the program that reports it."""
    SEALING = 9
    """The connection must be sealed, or sealing it failed: for example the peer's certificate is not trusted."""
    STANDBY = 10
    """This broker is a standby of a cluster: try the others at once, and this one again soon."""
    UNKNOWN_KIND = 100
    MALFORMED = 101
    NOT_ALLOWED = 102
    """No right to do this, or a wrong proof of the name."""
    NO_SUCH_TOPIC = 103
    BAD_TOPIC = 104
    BAD_FILTER = 105
    TOO_LARGE = 106
    NOT_SUBSCRIBED = 107
    BAD_NAME = 108
    NAME_IN_USE = 109
    """Another client has this name and answers."""
    TAKEN_OVER = 110
    """The same client has connected again: do not come back."""
    KICKED = 111
    """An authorised client removed this client: do not reconnect."""
    STALE_EPOCH = 112
    """A newer run of this publisher is known."""
    TOPIC_EXISTS = 113
    NOT_LOGGED_IN = 114
    TOO_MANY = 115
    """A limit of the broker: topics, subscriptions, sessions."""
    NO_SUCH_CLIENT = 116
    STORAGE = 117
    """The log could not be written: what was asked is not done, or not safe. Try again later."""
    NO_SUCH_OFFSET = 118
    """The log ends before it."""
    NO_SUCH_JOB = 119
    """It is not there, or no longer, or not for this client to see."""
    BAD_KIND = 120
    """No kind of work can be called so."""


class GodwitError(Exception):
    """The base class: catch it to catch every error that Godwit raises on purpose."""


class DecodeError(GodwitError):
    """Bytes from a peer or a file do not follow the protocol or format: the only error that decoding raises."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        """One word, by which dropped packets are counted."""


class UsageError(GodwitError):
    """The program made an invalid call."""


class RecordTooLargeError(UsageError):
    """A record is larger than the peer's limit, or than one datagram if it is unreliable."""


class ChannelError(UsageError):
    """An unknown or finished channel, or one channel too many."""


class ConfigurationError(UsageError):
    """A setting is invalid."""


class ForkedError(UsageError):
    """A client was used in a forked child of the process that made it: connect again there."""


class SendBufferFullError(GodwitError):
    """The send buffer of a connection is full: wait for the event Writable, then send again."""


class BufferFullError(GodwitError):
    """The client's buffer for unconfirmed messages is full: wait for room (the event Room), then send again."""


class ConnectionClosedError(GodwitError):
    """The connection has ended."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(
            f"the connection is closed (code {code}): {reason}" if reason else f"the connection is closed (code {code})"
        )
        self.code = code
        """One of Code, or a code of the transport."""
        self.reason = reason


class BrokerError(GodwitError):
    """The broker refused a request, or ended a subscription or the client."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        """One of Code."""
        self.text = text
        """The reason that the broker sent."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.text)


class AccessError(BrokerError):
    """The client has no right to do this, or has not proved its name."""


class TopicError(BrokerError):
    """A topic or a filter is invalid, or a topic does not exist or exists already."""


class BadTopicError(TopicError, UsageError):
    """The name of a topic is invalid: empty, too long, or with a wildcard or a control character."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.BAD_TOPIC, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class BadFilterError(TopicError, UsageError):
    """A filter is invalid: empty, too long, or with a wildcard in the wrong position."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.BAD_FILTER, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class JobError(BrokerError):
    """A job does not exist (any more), or this client may not see it."""


class BadKindError(JobError, UsageError):
    """A kind of work is invalid: empty, too long, or with a wildcard, a control character or $."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.BAD_KIND, text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text,)


class NameInUseError(BrokerError):
    """Another client that is still connected has this name."""


class TakenOverError(BrokerError):
    """The same client has connected again elsewhere."""


class KickedError(BrokerError):
    """Another client, which has the right to do so, removed this client or its subscription."""


class SealingError(BrokerError):
    """The connection must be sealed and is not, or the broker's certificate is not the expected one."""


MAX_LINE_CHARACTERS: Final = 1000
"""Longer texts of peers are cut in errors and log records."""

FINAL_CODES: Final = frozenset(
    (
        Code.VERSION,
        Code.NOT_ALLOWED,
        Code.NO_SUCH_TOPIC,
        Code.BAD_TOPIC,
        Code.BAD_NAME,
        Code.TAKEN_OVER,
        Code.KICKED,
    )
)
"""When its connection ends with one of these, a client does not reconnect to this broker: it would be refused again."""

_BY_CODE: Final[Mapping[int, Callable[[int, str], BrokerError]]] = {
    Code.NOT_ALLOWED: AccessError,
    Code.NO_SUCH_TOPIC: TopicError,
    Code.BAD_TOPIC: lambda _code, text: BadTopicError(text),
    Code.BAD_FILTER: lambda _code, text: BadFilterError(text),
    Code.NAME_IN_USE: NameInUseError,
    Code.TAKEN_OVER: TakenOverError,
    Code.KICKED: KickedError,
    Code.SEALING: SealingError,
    Code.TOPIC_EXISTS: TopicError,
    Code.NO_SUCH_JOB: JobError,
    Code.BAD_KIND: lambda _code, text: BadKindError(text),
}


def broker_error(code: int, text: str) -> BrokerError:
    """Return the error for a code of the broker, with the broker's text as one line without control characters."""
    return _BY_CODE.get(code, BrokerError)(code, printable(text))


def printable(text: str) -> str:
    """Return a text as one line without control characters, because names and texts may come from the network."""
    if len(text) > MAX_LINE_CHARACTERS:
        text = f"{text[:MAX_LINE_CHARACTERS]}..."
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


class JobFailedError(GodwitError):
    """A job has ended without all its results."""

    def __init__(
        self, text: str, state: str = "failed", results: Sequence[Any] = (), errors: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.state = state
        """The state of the job: failed, cancelled, or done if the broker has deleted some of its results."""
        self.results = list(results)
        """The results of the tasks that have one (TaskResult)."""
        self.errors = dict(errors or {})
        """The errors of the tasks that failed, by their numbers."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.text, self.state, self.results, self.errors)


class JobCancelledError(JobFailedError):
    """The job was cancelled before it was done."""


class TaskFailedError(GodwitError):
    """Raise it in a worker's handler to fail an attempt with a text for the controller.

    raise godwit.TaskFailed("the picture is damaged", final=True)
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        """Make the error.

        Args:
            text: Sent to the controller.
            final: Fail the task for good: it is not tried again.
        """
        super().__init__(text)
        self.text = text
        self.final = final

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), final=self.final), (self.text,)


class MessageExpiredError(GodwitError):
    """A message expired before the broker confirmed it. It was dropped from the queue of this client."""


class RequestError(GodwitError):
    """A request to another client has no result."""


class NoResponderError(RequestError):
    """No client that may reply is subscribed to the topic of a request."""


class NoReplyError(RequestError, TimeoutError):
    """No reply to a request arrived in time; the text has the reason."""


class RequestFailedError(RequestError):
    """The handler of the responder failed. The text has its reason."""

    reply: Any
    """The reply that reports the failure, a `Message`."""

    def __init__(self, text: str, reply: Any = None) -> None:
        """Make the error.

        Args:
            text: The reason.
            reply: The reply that reports the failure.
        """
        super().__init__(text)
        self.reply = reply

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.reply)


class BrokerUnreachableError(GodwitError):
    """No broker answered in time."""


class ReplyTimeoutError(BrokerUnreachableError, TimeoutError):
    """The broker did not confirm or answer a call within its `timeout_s`. The text tells whether it may still be done.

    It is a TimeoutError too, so that one `except TimeoutError` handles all time limits.
    """


class PayloadError(GodwitError, ValueError):
    """A received payload is not valid UTF-8, or not valid JSON."""


class FileTransferError(GodwitError):
    """A file could not be sent or received."""


class StorageError(GodwitError):
    """The log cannot be opened, read or written."""


class DiskError(StorageError):
    """The disk is full, read-only or defective: nothing was appended to the log."""


class LogDamagedError(StorageError):
    """The structure of the log's file is damaged: `godwit log recover` saves all intact blocks."""


class LogInUseError(StorageError):
    """Another broker uses the same folder."""


class LogVersionError(StorageError):
    """The file was made by a newer Godwit, or is not a log."""


class NodeStoppedError(GodwitError):
    """A node of a cluster has ended, because going on could lose confirmed messages, or because it is misconfigured."""


class AddressError(GodwitError):
    """A host name or a port is invalid, or the host is unknown."""


class SocketError(GodwitError):
    """The system refused to open, bind or use a socket."""

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno
        """The number of the system's error, if there is one."""
