"""Control messages: each request goes to the part of the core that handles it, and its reply back to the client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from godwit.broker.administration import ITEM_STEPS
from godwit.broker.broker import Broker
from godwit.broker.effects import Effect, refusal_notice
from godwit.broker.ports import CaptureRequest, Outbound, RequestFailure, SubscribeRequest, SubscribeResult
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_ITEMS, MAX_CONTROL_RECORD_BYTES, MAX_FIRST_ITEMS, MAX_LOGIN_BYTES
from godwit.native.job_requests import JobRequests
from godwit.native.peer import BYTES_PER_REQUEST, NAME_PING, NativeCredentials, NativePeer
from godwit.native.subscriber_channel import NativeMemberOutbound, NativeOutbound
from godwit.wire import control, jobs, relay
from godwit.wire.control import ControlMessage, MalformedError, UnknownKind, decode_control, make_proof
from godwit.wire.control_base import Code
from godwit.wire.epochs import MAX_EPOCHS_TOLD
from godwit.wire.extension import check_properties
from godwit.wire.filters import GROUP_PREFIX

WATCHES_PER_REQUEST: Final = 64
"""This number of jobs that a client begins to watch costs as much as a request."""
ListRequest = (
    control.Topics
    | control.Clients
    | control.Cursors
    | control.ListGroups
    | jobs.ListJobs
    | jobs.ShowJob
    | jobs.ListWorkers
)


class SubscribeResponder(msgspec.Struct):
    """Sends the reply to one subscribe request."""

    peer: NativePeer
    request: int
    outbound: NativeOutbound
    effects: list[Effect]

    def subscribed(self, result: SubscribeResult) -> None:
        outbound: Outbound = self.outbound
        if result.member is None and result.subscription.peer is not None:
            outbound = result.subscription.outbound
        assert isinstance(outbound, NativeOutbound)
        if not result.is_new:
            self._drop()
        if self.peer.is_open:
            self.peer.send(
                control.Subscribed(
                    request=self.request,
                    subscription=outbound.number,
                    is_new=result.is_new,
                    next_offset=result.next_offset,
                    same_below=result.same_below,
                    group=result.member is not None,
                )
            )

    def refused(self, code: Code, text: str) -> None:
        self._drop()
        session = self.peer.session
        if code is Code.NOT_ALLOWED and session is not None:
            self.effects.append(refusal_notice(session, code, text))
        self.peer.send(control.Error(code=code, text=text, request=self.request))

    def _drop(self) -> None:
        """The outbound of the request is not used."""
        if self.peer.outbounds.get(self.outbound.number) is self.outbound:
            del self.peer.outbounds[self.outbound.number]


class ControlRouter:
    """Input: handle. Replies are sent on channel 0."""

    def __init__(self, broker: Broker, work: JobRequests) -> None:
        self._broker = broker
        self._queue = broker.append_queue
        self._administration = administration = broker.administration
        # Each returns the reply, or None if it is sent elsewhere or there is none.
        self._replies: dict[type[Any], Callable[[NativePeer, Session, Any, int], ControlMessage | None]] = {
            control.Ping: lambda peer, session, message, now_us: control.Pong(request=message.request),
            control.Pong: self._pong,
            control.Error: lambda peer, session, message, now_us: None,  # a reply could be answered without end
            control.Subscribe: self._subscribe,
            control.ProgressQuery: self._progress,
            jobs.Volunteer: work.volunteer,
            jobs.WatchJobs: lambda peer, session, message, now_us: work.watch(peer, session, message),
            jobs.RetryJob: lambda peer, session, message, now_us: work.retry(session, message, now_us),
        }
        # These succeed or fail: the reply has nothing else to report.
        self._actions: dict[type[Any], Callable[[NativePeer, Session, Any, int], None]] = {
            control.Unsubscribe: self._unsubscribe,
            control.CursorCommit: self._commit,
            control.Create: lambda peer, session, message, now_us: administration.create(session, message.topic),
            control.DeleteTopic: lambda peer, session, message, now_us: administration.delete(session, message.topic),
            control.Kick: lambda peer, session, message, now_us: administration.kick(
                session, message.client, message.filters, message.reason, now_us, keep=message.keep
            ),
            control.Capture: self._capture,
            control.DeleteGroup: lambda peer, session, message, now_us: administration.delete_group(
                session, message.group, message.filters
            ),
            jobs.UnwatchJobs: lambda peer, session, message, now_us: work.unwatch(peer, message),
            jobs.CancelJob: lambda peer, session, message, now_us: work.cancel(session, message, now_us),
        }
        self._pages: dict[type[Any], Callable[[Session, Any], tuple[ControlMessage, int]]] = {
            control.Topics: self._topics,
            control.Clients: self._clients,
            control.Cursors: self._cursors,
            control.ListGroups: self._groups,
            relay.ListBridges: self._bridges,
            jobs.ListJobs: work.jobs,
            jobs.ShowJob: work.job,
            jobs.ListWorkers: work.workers,
        }

    def handle(self, peer: NativePeer, body: bytes, now_us: int) -> None:
        """Handle a record of channel 0. Raises DecodeError if it is not a message, FloodError if it is one too many."""
        request: int | None = None
        is_cancel = False
        # Before it is decoded: a malformed message costs time, too.
        peer.require_request_rate(1 + len(body) // BYTES_PER_REQUEST, now_us)
        is_known = peer.session is not None
        reply: ControlMessage | None
        try:
            message = decode_control(
                body,
                max_bytes=MAX_CONTROL_RECORD_BYTES if is_known else MAX_LOGIN_BYTES,
                max_items=MAX_CONTROL_ITEMS if is_known else MAX_FIRST_ITEMS,
            )
            is_cancel = isinstance(message, jobs.CancelJob)
            peer.require_request_rate(_extra_cost(message), now_us)
            request = getattr(message, "request", None)
            reply = self._reply(peer, message, now_us)
        except MalformedError as error:
            reply = control.Error(code=Code.MALFORMED, text=error.detail, request=error.request)
        except RequestFailure as failure:
            self._note_refusal(peer.session, failure)
            reply = control.Error(code=failure.code, text=failure.text, request=request)
        if reply is None:
            return
        if isinstance(reply, control.Done | control.Progressed | jobs.RetryReply) or (
            is_cancel and request is not None
        ):
            # It is true once everything that led to it is stored; so is the reply that a job has ended already.
            self._send_when_stored(peer, reply, request)
        elif peer.is_open:
            peer.send(reply)

    def _reply(self, peer: NativePeer, message: ControlMessage | UnknownKind, now_us: int) -> ControlMessage | None:
        if isinstance(message, UnknownKind):
            raise RequestFailure(Code.UNKNOWN_KIND, f"this broker does not know the request {message.kind!r}")
        session = peer.session
        if isinstance(message, control.Login):
            if session is not None:
                raise RequestFailure(Code.MALFORMED, "logged in already")
            self._login(peer, message, now_us)
            return None
        if session is None:
            raise RequestFailure(Code.NOT_LOGGED_IN, "log in first")
        kind = type(message)
        action = self._actions.get(kind)
        if action is not None:
            request: int = message.request  # type: ignore[union-attr,assignment]  # all of these are requests
            action(peer, session, message, now_us)
            return control.Done(request=request)
        if kind in self._pages:
            self._broker.lists.add(peer, partial(self._send_page, peer, session, message), now_us)
            return None
        handler = self._replies.get(kind)
        if handler is None:
            raise RequestFailure(Code.MALFORMED, "this is nothing that a client asks")
        return handler(peer, session, message, now_us)

    def _note_refusal(self, session: Session | None, failure: RequestFailure) -> None:
        """Report to the operator that a client asked for something that it may not do."""
        if failure.code is Code.NOT_ALLOWED and session is not None:
            self._broker.effects.append(refusal_notice(session, failure.code, failure.text))

    def _send_when_stored(self, peer: NativePeer, reply: ControlMessage, request: int | None) -> None:
        self._queue.when_stored(peer, partial(_send, peer, reply), partial(_send_storage_error, peer, request))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _login(self, peer: NativePeer, message: control.Login, now_us: int) -> None:
        will = message.will
        if will is not None:
            try:
                check_properties(will.extension)
            except DecodeError as error:
                raise RequestFailure(Code.MALFORMED, f"the will is not accepted: {error}") from None
        credentials = NativeCredentials(
            name=message.name,
            instance=message.instance,
            session_expiry_s=message.session_expiry_s,
            is_clean=message.fresh,
            will=None if will is None else msgspec.structs.replace(will, delay_s=0, extension=b""),
            will_extension=None if will is None else will.extension or None,
            will_delay_s=0 if will is None else will.delay_s,
            proof=message.proof,
            connection=peer.connection,
        )
        self._broker.login(peer, credentials, partial(self._welcome, peer, message.request), now_us)

    def _welcome(self, peer: NativePeer, request: int, session: Session, resumed: bool) -> None:
        broker = self._broker
        settings = broker.settings
        secret = settings.access.secret_of(session.name) if session.is_proved else None
        proof = make_proof(secret, "server", peer.connection.binding, session.name) if secret is not None else b""
        welcome = control.Welcome(
            request=request,
            name=session.name,
            resumed=resumed,
            proof=proof,
            log=broker.log_id,
            epochs=list(broker.epochs[-MAX_EPOCHS_TOLD:]),
            max_message_bytes=settings.max_message_bytes,
        )
        _send(peer, welcome)

    def _pong(self, peer: NativePeer, session: Session, message: control.Pong, now_us: int) -> None:
        if message.request == NAME_PING:
            self._broker.handle_alive(peer)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _subscribe(self, peer: NativePeer, session: Session, message: control.Subscribe, now_us: int) -> None:
        number = message.subscription
        request = SubscribeRequest(
            filters=tuple(message.filters),
            cursor=message.cursor,
            start=message.start,
            since_us=message.since_us,
            retained=message.retained,
            retain_handling=message.retain_handling,
            no_local=message.no_local,
            is_responder=message.responder,
            epochs=message.epochs,
            group=message.group,
            group_expiry_s=message.group_expiry_s,
            max_in_flight=message.max_in_flight,
        )
        is_member = message.group is not None or message.filters[0].startswith(GROUP_PREFIX)
        known = None if is_member else session.subscriptions.get((tuple(sorted(set(message.filters))), message.cursor))
        make = NativeMemberOutbound if is_member else NativeOutbound
        outbound = make(peer, number, self._broker.effects)
        if number not in peer.outbounds:
            peer.outbounds[number] = outbound
        elif known is None or known.peer is None:
            raise RequestFailure(Code.MALFORMED, f"subscription {number} exists with other filters")
        self._broker.subscribe(
            peer, request, outbound, SubscribeResponder(peer, message.request, outbound, self._broker.effects)
        )

    def _outbound(self, peer: NativePeer, number: int) -> NativeOutbound:
        outbound = peer.outbounds.get(number)
        if outbound is None:
            raise RequestFailure(Code.NOT_SUBSCRIBED, f"there is no subscription {number}")
        return outbound

    def _unsubscribe(self, peer: NativePeer, session: Session, message: control.Unsubscribe, now_us: int) -> None:
        outbound = self._outbound(peer, message.subscription)
        if isinstance(outbound, NativeMemberOutbound) and outbound.member is not None:
            outbound.leave(self._broker, message.record, message.handled)
            return
        self._broker.unsubscribe(peer, outbound, pause=message.keep, offset=message.offset, epochs=message.epochs)
        peer.outbounds.pop(message.subscription, None)

    def _commit(self, peer: NativePeer, session: Session, message: control.CursorCommit, now_us: int) -> None:
        subscription = self._outbound(peer, message.subscription).subscription
        if subscription is None:
            raise RequestFailure(Code.NOT_SUBSCRIBED, f"there is no subscription {message.subscription}")
        self._broker.commit(subscription, message.offset, message.epochs)

    def _capture(self, peer: NativePeer, session: Session, message: control.Capture, now_us: int) -> None:
        request = CaptureRequest(
            peer=peer,
            inbox=message.inbox,
            seconds=message.seconds,
            max_bytes=message.max_bytes,
            packet_bytes=message.packet_bytes,
            filter=message.filter,
        )
        self._administration.capture(session, request)

    def _progress(
        self, peer: NativePeer, session: Session, message: control.ProgressQuery, now_us: int
    ) -> control.Progressed:
        known = self._administration.progress(session, message.publisher, message.topic)
        if known is None:
            return control.Progressed(request=message.request)
        return control.Progressed(request=message.request, epoch=known.epoch, next_sequence=known.next_sequence)

    # -- lists --------------------------------------------------------------------------------------------------------

    def _send_page(self, peer: NativePeer, session: Session, message: Any) -> int:
        """Send a page of a list; return the steps that it cost."""
        steps = 1
        reply: ControlMessage
        try:
            reply, steps = self._pages[type(message)](session, message)
        except RequestFailure as failure:
            self._note_refusal(session, failure)
            reply = control.Error(code=failure.code, text=failure.text, request=message.request)
        if isinstance(message, jobs.ListJobs | jobs.ShowJob):
            # It is true once everything that led to it is stored, and is sent also while the disk is full.
            self._queue.when_stored(peer, partial(_send, peer, reply))
        else:
            peer.send(reply)
        return steps

    def _topics(self, session: Session, message: control.Topics) -> tuple[ControlMessage, int]:
        page = self._administration.topics(session, message.filter, message.after)
        topics = [control.TopicInfo(**msgspec.structs.asdict(topic)) for topic in page.topics]
        has_more = page.after is not None
        return control.TopicList(
            request=message.request, topics=topics, more=has_more, after=page.after or ""
        ), page.steps

    def _clients(self, session: Session, message: control.Clients) -> tuple[ControlMessage, int]:
        page = self._administration.clients(session, message.after)
        clients = [control.ClientInfo(**msgspec.structs.asdict(client)) for client in page.clients]
        return control.ClientList(request=message.request, clients=clients, more=page.has_more), page.steps

    def _cursors(self, session: Session, message: control.Cursors) -> tuple[ControlMessage, int]:
        page = self._administration.cursors(session, message.client, message.after)
        cursors = [control.CursorInfo(**msgspec.structs.asdict(cursor)) for cursor in page.cursors]
        return control.CursorList(
            request=message.request, cursors=cursors, more=page.after is not None, after=page.after or ""
        ), page.steps

    def _groups(self, session: Session, message: control.ListGroups) -> tuple[ControlMessage, int]:
        page = self._administration.groups(session, message.after)
        groups = [control.GroupInfo(**msgspec.structs.asdict(group)) for group in page.groups]
        return control.GroupList(
            request=message.request, groups=groups, more=page.after is not None, after=page.after or ""
        ), page.steps

    def _bridges(self, session: Session, message: relay.ListBridges) -> tuple[ControlMessage, int]:
        bridges = self._broker.relays.bridges(session)
        return relay.BridgeList(request=message.request, bridges=bridges), ITEM_STEPS * len(bridges)


def _send(peer: NativePeer, message: ControlMessage) -> None:
    if peer.is_open:
        peer.send(message)


def _extra_cost(message: ControlMessage | UnknownKind) -> int:
    """Return how many requests beyond one a message counts for."""
    if isinstance(message, control.Subscribe):
        return len(message.filters) - 1
    if isinstance(message, jobs.Volunteer):
        return len(message.kinds) // 8 + len(message.holding) // 64
    if isinstance(message, jobs.WatchJobs):
        return len(message.jobs) // WATCHES_PER_REQUEST
    return 0


def _send_storage_error(peer: NativePeer, request: int | None, text: str) -> None:
    _send(peer, control.Error(code=Code.STORAGE, text=text, request=request))
