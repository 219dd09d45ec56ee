"""Control messages: each request to the part that knows about it, and its reply back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

from godwit.broker.admission import NAME_PING, Admission
from godwit.broker.commits import Commits
from godwit.broker.effects import Effect, Send
from godwit.broker.failure import RequestFailure
from godwit.broker.jobs.job_requests import JobRequests
from godwit.broker.list_queue import ListQueue, ListRequest
from godwit.broker.rate import Bucket
from godwit.broker.requests import Requests
from godwit.broker.session import Link, Session
from godwit.broker.subscribing import Subscribing
from godwit.limits import (
    MAX_CHANNELS,
    MAX_CONTROL_ITEMS,
    MAX_CONTROL_RECORD_BYTES,
    MAX_FIRST_ITEMS,
    MAX_LOGIN_BYTES,
    REQUESTS_PER_S,
)
from godwit.wire import control, jobs
from godwit.wire.control import ControlMessage, MalformedError, UnknownKind, decode_control, encode_control
from godwit.wire.control_base import Code

REQUEST_BURST_S: Final = 4
BYTES_A_REQUEST: Final = 256
"""This number of bytes of a long control message costs as much as a request."""
WATCHES_A_REQUEST: Final = 64
"""So many jobs that a client begins to watch cost as much as a request."""
MAX_AWAITED: Final = 4 * REQUESTS_PER_S
"""Replies to one client that wait for the log: a disk may take its time."""


class FloodError(Exception):
    """Too many requests: the connection is to be closed."""


class Desk:
    """Feed: handle. What it has to say goes into the list of effects."""

    def __init__(
        self,
        admission: Admission,
        subscribing: Subscribing,
        requests: Requests,
        work: JobRequests,
        commits: Commits,
        effects: list[Effect],
    ) -> None:
        self._admission = admission
        self._commits = commits
        self._effects = effects
        self.lists = ListQueue(self._answer_list)
        self._pages: dict[type[Any], Callable[[Session, Any], tuple[ControlMessage, int]]] = {
            control.Topics: requests.topics,
            control.Clients: requests.clients,
            jobs.ListJobs: work.jobs,
            jobs.ShowJob: work.job,
        }
        # Each gives the reply, or None when it is sent elsewhere or there is none.
        self._answers: dict[type[Any], Callable[[Link, Session, Any, int], ControlMessage | None]] = {
            control.Ping: lambda link, session, message, now_us: control.Pong(request=message.request),
            control.Pong: self._pong,
            control.Error: lambda link, session, message, now_us: None,  # answering could go on for ever
            control.Subscribe: lambda link, session, message, now_us: subscribing.subscribe(link, session, message),
            control.ProgressQuery: lambda link, session, message, now_us: requests.progress(session, message),
            jobs.Volunteer: work.volunteer,
            jobs.WatchJobs: lambda link, session, message, now_us: work.watch(link, session, message),
        }
        # These are done or fail: there is nothing else to say.
        self._deeds: dict[type[Any], Callable[[Link, Session, Any, int], None]] = {
            control.Unsubscribe: lambda link, session, message, now_us: subscribing.unsubscribe(link, session, message),
            control.CursorCommit: lambda link, session, message, now_us: subscribing.commit(link, message),
            control.Create: lambda link, session, message, now_us: requests.create(session, message),
            control.Kick: lambda link, session, message, now_us: requests.kick(session, message, now_us),
            jobs.UnwatchJobs: lambda link, session, message, now_us: work.unwatch(link, message),
            jobs.CancelJob: lambda link, session, message, now_us: work.cancel(session, message, now_us),
        }

    def handle(self, link: Link, body: bytes, now_us: int) -> None:
        """A record of channel 0. DecodeError if it is no message, FloodError if it is one too many."""
        request: int | None = None
        is_cancel = False
        # Before it is decoded: what cannot be understood costs time, too.
        _require_rate(link, 1 + len(body) // BYTES_A_REQUEST, now_us)
        is_known = link.session is not None
        max_bytes = MAX_CONTROL_RECORD_BYTES if is_known else MAX_LOGIN_BYTES
        try:
            message = decode_control(
                body, max_bytes=max_bytes, max_items=MAX_CONTROL_ITEMS if is_known else MAX_FIRST_ITEMS
            )
            is_cancel = isinstance(message, jobs.CancelJob)
            _require_rate(link, _extra_cost(message), now_us)
            request = getattr(message, "request", None)
            reply = self._answer(link, message, now_us)
        except MalformedError as error:
            reply = control.Error(code=Code.MALFORMED, text=error.detail, request=error.request)
        except RequestFailure as failure:
            reply = control.Error(code=failure.code, text=failure.text, request=request)
        if isinstance(reply, control.Done | control.Progressed):
            self._commits.answer(link, reply.request, reply)  # it is true once all that led to it is safe
        elif reply is not None and is_cancel and request is not None:
            self._commits.answer(link, request, reply)  # so is this: that the job has ended already
        elif reply is not None and link.is_open:
            self._effects.append(Send(link.connection, 0, encode_control(reply)))

    def _answer(self, link: Link, message: ControlMessage | UnknownKind, now_us: int) -> ControlMessage | None:
        if isinstance(message, UnknownKind):
            raise RequestFailure(Code.UNKNOWN_KIND, f"this broker does not know the request {message.kind!r}")
        session = link.session
        if isinstance(message, control.Login):
            if session is not None:
                raise RequestFailure(Code.MALFORMED, "logged in already")
            if link.login_by_us is not None:  # else it waits for its name, or has been turned away
                self._admission.login(link, message, now_us)
            return None
        if session is None:
            raise RequestFailure(Code.NOT_LOGGED_IN, "log in first")
        deed = self._deeds.get(type(message))
        if deed is not None:
            request: int = message.request  # type: ignore[union-attr,assignment]  # all deeds are requests
            deed(link, session, message, now_us)
            return control.Done(request=request)
        if isinstance(message, get_args(ListRequest)):
            self.lists.add(link, message, now_us)
            return None
        answer = self._answers.get(type(message))
        if answer is None:
            raise RequestFailure(Code.MALFORMED, "this is nothing that a client asks")
        return answer(link, session, message, now_us)

    def _answer_list(self, link: Link, request: ListRequest) -> int:
        """Send a page of a list; return the steps that it cost."""
        session = link.session
        assert session is not None
        steps = 1
        reply: ControlMessage
        try:
            reply, steps = self._pages[type(request)](session, request)
        except RequestFailure as failure:
            reply = control.Error(code=failure.code, text=failure.text, request=request.request)
        if isinstance(request, jobs.ListJobs | jobs.ShowJob):
            self._commits.say(link, reply)  # true once all that led to it is safe, and shown while the disk is full
        else:
            self._effects.append(Send(link.connection, 0, encode_control(reply)))
        return steps

    def _pong(self, link: Link, session: Session, message: control.Pong, now_us: int) -> None:
        if message.request == NAME_PING:
            self._admission.on_pong(link)


def require_open_rate(link: Link, now_us: int) -> None:
    """A channel is being opened. FloodError if it is one too many: as many as it may have can be opened at once."""
    if link.opens is None:
        link.opens = Bucket(REQUESTS_PER_S, MAX_CHANNELS, now_us)
    if not link.opens.take(1, now_us):
        raise FloodError(f"more than {REQUESTS_PER_S} channels opened a second")


def _require_rate(link: Link, cost: int, now_us: int) -> None:
    if link.requests is None:
        link.requests = Bucket(REQUESTS_PER_S, REQUESTS_PER_S * REQUEST_BURST_S, now_us)
    if not link.requests.take(cost, now_us):
        raise FloodError(f"more than {REQUESTS_PER_S} requests a second, {BYTES_A_REQUEST} bytes counted as one")
    if link.awaited > MAX_AWAITED:
        raise FloodError(f"more than {MAX_AWAITED} requests wait for the broker's disk")


def _extra_cost(message: ControlMessage | UnknownKind) -> int:
    """Return how many requests beyond one a message counts for."""
    if isinstance(message, control.Subscribe):
        return len(message.filters) - 1
    if isinstance(message, jobs.Volunteer):
        return len(message.kinds) // 8 + len(message.holding) // 64
    if isinstance(message, jobs.WatchJobs):
        return len(message.jobs) // WATCHES_A_REQUEST
    return 0
