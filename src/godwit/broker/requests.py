"""Requests about topics and clients: create, topics, clients, kick, progress."""

from __future__ import annotations

from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue, TooManyTopicsError, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Close, Effect, Notice, Send
from godwit.broker.failure import RequestFailure
from godwit.broker.identities import Identities
from godwit.broker.jobs.service import JobService
from godwit.broker.session import Link, Session
from godwit.broker.subscribing import Subscribing
from godwit.broker.topics import RESERVED, check_filter
from godwit.errors import BadFilterError, BadTopicError
from godwit.wire.control import (
    ClientInfo,
    ClientList,
    Clients,
    ControlMessage,
    Create,
    Kick,
    Kicked,
    Progressed,
    ProgressQuery,
    TopicInfo,
    TopicList,
    Topics,
    encode_control,
)
from godwit.wire.control_base import Code

PAGE_BYTES = 64 * 1024
"""What a page of a list is filled up to: half of what a control message may have."""
STEPS_A_PAGE = 1000
"""The search for one page takes at most this many steps, whether it finds anything or not."""
RULE_STEPS = 1
"""A check of the access rules costs as much as this many steps of the search."""
ENTRY_STEPS = 4
"""And so does an entry of the page."""
ENTRY_BYTES = 200
"""Of one entry of a list, besides the texts that are counted one by one."""


class Requests:
    """Each method is one request; what cannot be done is a RequestFailure."""

    def __init__(
        self,
        catalogue: Catalogue,
        delivery: Delivery,
        identities: Identities,
        subscribing: Subscribing,
        admission: Admission,
        office: JobService,
        effects: list[Effect],
    ) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._identities = identities
        self._subscribing = subscribing
        self._admission = admission
        self._office = office
        self._effects = effects

    def create(self, session: Session, request: Create) -> None:
        name = request.topic
        access = self._catalogue.settings.access
        if name.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own")
        if not access.may(session.name, session.is_proved, "create", name):
            raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not create topic {name!r}")
        topic = self._catalogue.get(name)
        if topic is not None and (topic.is_created or topic.messages):
            raise RequestFailure(Code.TOPIC_EXISTS, f"topic {name!r} exists already")
        try:
            if topic is not None:
                self._catalogue.stay(topic)
            else:
                self._catalogue.create(name, creator=session.name, is_created=True)
        except BadTopicError as error:
            raise RequestFailure(Code.BAD_TOPIC, str(error)) from None
        except TooManyTopicsError as error:
            raise RequestFailure(Code.TOO_MANY, str(error)) from None
        text = f"{session.name} created topic {name}"
        self._effects.append(Notice("topic_created", text, session.fields(topic=name)))

    def topics(self, session: Session, request: Topics) -> tuple[ControlMessage, int]:
        """Return a page of the topics that the client may subscribe or publish to, and the steps that it cost."""
        try:
            if request.filter is not None:
                check_filter(request.filter)
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        found: list[TopicInfo] = []
        room = PAGE_BYTES
        steps = 0
        after = request.after or ""
        # Without a filter as with "#": the broker's own topics are shown to those who ask for them.
        for place, topic in self._catalogue.after(request.filter or "#", request.after):
            if steps >= STEPS_A_PAGE:
                return TopicList(request=request.request, topics=found, more=True, after=after), steps
            steps += 1
            if topic is not None:
                steps += RULE_STEPS
                if self._may_see(session, topic.name):
                    room -= 4 * len(topic.name) + ENTRY_BYTES
                    if room < 0:
                        return TopicList(request=request.request, topics=found, more=True, after=after), steps
                    info = self._topic_info(topic)
                    steps += ENTRY_STEPS + info.subscribers
                    found.append(info)
            after = place
        return TopicList(request=request.request, topics=found), steps

    def _may_see(self, session: Session, topic: str) -> bool:
        access = self._catalogue.settings.access
        return any(access.may(session.name, session.is_proved, action, topic) for action in ("subscribe", "publish"))

    def _topic_info(self, topic: Topic) -> TopicInfo:
        return TopicInfo(
            name=topic.name,
            policy=topic.policy,
            subscribers=len(self._delivery.routes(topic)),
            publishers=topic.publishers,
            messages=topic.messages,
            payload_bytes=topic.payload_bytes,
            retained=topic.kept is not None,
            last_us=topic.last_us,
        )

    def clients(self, session: Session, request: Clients) -> tuple[ControlMessage, int]:
        """Return a page of the clients, for those who may kick, and the steps that it cost."""
        if not self._catalogue.settings.access.may(session.name, session.is_proved, "kick", ""):
            raise RequestFailure(
                Code.NOT_ALLOWED, f"{session.name} may not see who is there: this needs the right to kick"
            )
        found: list[ClientInfo] = []
        room = PAGE_BYTES
        for known in self._admission.sessions.after(request.after):
            info, cost_bytes = _client_info(known)
            room -= cost_bytes
            if room < 0 and found:
                return ClientList(request=request.request, clients=found, more=True), ENTRY_STEPS * len(found)
            found.append(info)
        return ClientList(request=request.request, clients=found), ENTRY_STEPS * len(found)

    def kick(self, session: Session, request: Kick, now_us: int) -> None:
        access = self._catalogue.settings.access
        if not access.may(session.name, session.is_proved, "kick", ""):
            raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not kick others")
        target = self._admission.sessions.get(request.client)
        if target is None:
            raise RequestFailure(Code.NO_SUCH_CLIENT, f"there is no client {request.client!r}")
        why = f": {request.reason}" if request.reason else ""
        fields = session.fields(client=target.name, by=session.name, reason=request.reason)
        if request.filters is not None:
            self._kick_subscription(session, target, request)
            text = f"{session.name} removed {target.name} from {', '.join(request.filters)}{why}"
            self._effects.append(Notice("kicked", text, {**fields, "filters": list(request.filters)}))
            return
        link = target.link
        target.expiry_s = 0  # who waits for the name begins anew
        self._office.handle_leave(target, now_us)
        if link is not None:
            text = f"{session.name} removed this client{why}"
            self._effects.append(Close(link.connection, Code.KICKED, text))
            self._admission.on_gone(link, now_us, was_expected=False, reason=f"kicked by {session.name}{why}")
        elif target.is_awaited:
            self._admission.abandon(target, now_us)
        else:
            self._admission.forget(target)
        self._effects.append(Notice("kicked", f"{session.name} removed {target.name}{why}", fields))

    def _kick_subscription(self, session: Session, target: Session, request: Kick) -> None:
        wanted = tuple(sorted(set(request.filters or ())))
        feeds = [feed for (filters, _), feed in target.feeds.items() if filters == wanted]
        if not feeds:
            raise RequestFailure(
                Code.NOT_SUBSCRIBED,
                f"{target.name} has no subscription to {', '.join(wanted)}: see its list of clients",
            )
        for feed in feeds:
            link: Link | None = feed.link
            number = feed.number
            self._subscribing.end(target, feed)
            if link is not None:
                kicked = Kicked(subscription=number, by=session.name, reason=request.reason)
                self._effects.append(Send(link.connection, 0, encode_control(kicked)))

    def progress(self, session: Session, request: ProgressQuery) -> ControlMessage:
        owner = session.name if session.is_remembered else ""
        identity = request.publisher or session.instance.hex()
        known = self._identities.get((owner, identity, request.topic))
        if known is None:
            return Progressed(request=request.request)
        return Progressed(request=request.request, epoch=known.epoch, next_sequence=known.next_sequence)


def _client_info(session: Session) -> tuple[ClientInfo, int]:
    """What is told of a client, and its cost in bytes at most. Of very many subscriptions only the first are named."""
    link = session.link
    cost_bytes = 4 * len(session.name) + ENTRY_BYTES
    subscriptions: list[list[str]] = []
    for feed in session.feeds.values():
        cost_bytes += sum(4 * len(text) + 4 for text in feed.filters) + 4
        if cost_bytes > PAGE_BYTES:
            break
        subscriptions.append(list(feed.filters))
    info = ClientInfo(
        name=session.name,
        address=link.address if link is not None else "",
        since_us=link.since_us if link is not None else 0,
        subscriptions=subscriptions,
        messages_in=session.messages_in,
        messages_out=link.messages_out if link is not None else 0,
    )
    return info, min(cost_bytes, PAGE_BYTES)
