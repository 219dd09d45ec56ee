"""Requests about topics and clients: create, delete, kick, the progress of a publisher, and pages of lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from godwit.broker.access import Access
from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue, TooManyTopicsError, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Effect, Notice
from godwit.broker.group import GroupMember
from godwit.broker.groups import GroupPage, Groups, GroupStatus
from godwit.broker.identities import Identities, PublisherProgress
from godwit.broker.jobs.service import JobService
from godwit.broker.ports import CaptureRequest, PathStatus, Peer, RequestFailure
from godwit.broker.publications import Publications
from godwit.broker.quotas import Bucket
from godwit.broker.session import Session, is_group_session, require_right
from godwit.broker.settings import Policy
from godwit.broker.subscription import FilterTable
from godwit.broker.subscriptions import SubscriptionRequests
from godwit.broker.topics import check_filter
from godwit.errors import BadFilterError, BadTopicError
from godwit.wire.control_base import Code
from godwit.wire.filters import GROUP_PREFIX, RESERVED, is_inbox

PAGE_BYTES: Final = 64 * 1024
"""How long a page of a list may become: half of what a control message may have."""
STEPS_PER_SEARCH: Final = 1000
"""How many steps the search for one page takes at most, whether it finds anything or not."""
RULE_STEPS: Final = 1
"""The cost of a check of the access rules, in steps of the search."""
ITEM_STEPS: Final = 4
"""The cost of one item of a page, in steps of the search."""
ITEM_BYTES: Final = 200
"""The length of one item of a list, besides the texts that are counted one by one."""
CLIENT_BYTES: Final = 400
"""The same of a client, which has more figures."""
STEPS_PER_S: Final = 200_000
"""About a quarter of a processor's time."""
STEPS_PER_TURN: Final = 4000
"""What a turn may spend on lists, beyond its last page: a few milliseconds."""
PAGE_STEPS: Final = 20
"""The cost of a page beside its search and its items."""
MEMBERS_SHOWN: Final = 100
"""Names of members in the list of groups."""
MAX_LISTS_WAITING: Final = 256
"""Requests of one client that wait to be answered."""


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in a list."""

    name: str
    policy: Policy
    subscribers: int
    publishers: int
    messages: int
    payload_bytes: int
    retained: bool
    last_us: int


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One client in a list."""

    name: str
    address: str
    since_us: int
    subscriptions: list[list[str]]
    """The filters of each; only the first ones if there are very many."""
    messages_in: int
    messages_out: int
    protocol: str = ""
    arq: str = ""
    round_trip_us: int = 0
    window_bytes: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    fragments_resent: int = 0
    bytes_sent: int = 0


class CursorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription in a list, with its position in the log."""

    client: str
    filters: list[str]
    cursor: str
    connected: bool
    position: int
    lag: int
    idle: bool


class TopicPage(msgspec.Struct, frozen=True):
    """A page of the list of topics."""

    topics: list[TopicStatus]
    steps: int
    """What the search cost."""
    after: str | None = None
    """If there may be more: from where to continue."""


class ClientPage(msgspec.Struct, frozen=True):
    """A page of the list of clients."""

    clients: list[ClientStatus]
    steps: int
    has_more: bool = False


class CursorPage(msgspec.Struct, frozen=True):
    """A page of the list of subscriptions."""

    cursors: list[CursorStatus]
    steps: int
    after: str | None = None
    """If there may be more: the client after which to continue."""


@dataclass(eq=False)
class Administration:
    """Each method is one request; one that is refused raises RequestFailure."""

    _catalogue: Catalogue
    _delivery: Delivery
    _identities: Identities
    _publications: Publications
    _subscriptions: SubscriptionRequests
    _admission: Admission
    _jobs: JobService
    _groups: Groups
    _effects: list[Effect]
    capture_handler: Callable[[CaptureRequest], None] | None = None
    """Begins captures, if the broker has sockets."""

    def create(self, session: Session, name: str) -> None:
        """Create a topic that is never deleted."""
        access = self._catalogue.settings.access
        if name.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own")
        require_right(access, session, "create", name, f"create topic {name!r}")
        topic = self._catalogue.get(name)
        if topic is not None and (topic.is_created or topic.messages):
            raise RequestFailure(Code.TOPIC_EXISTS, f"topic {name!r} exists already")
        try:
            if topic is not None:
                self._catalogue.make_permanent(topic)
            else:
                self._catalogue.create(name, creator=session.name, is_created=True)
        except BadTopicError as error:
            raise RequestFailure(Code.BAD_TOPIC, str(error)) from None
        except TooManyTopicsError as error:
            raise RequestFailure(Code.TOO_MANY, str(error)) from None
        text = f"{session.name} created topic {name}"
        self._effects.append(Notice("topic_created", text, session.fields(topic=name)))

    def delete(self, session: Session, name: str) -> None:
        """Delete a topic that is not in use. The log keeps its messages until retention deletes them."""
        if name.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own")
        what = f"delete topic {name!r}: this needs the right to create it"
        require_right(self._catalogue.settings.access, session, "create", name, what)
        topic = self._catalogue.get(name)
        if topic is None:
            raise RequestFailure(Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist")
        if name in self._catalogue.settings.topics:
            raise RequestFailure(Code.NOT_ALLOWED, f"topic {name!r} is in the broker's configuration: remove it there")
        if topic.publishers or self._delivery.has_filter(name):
            raise RequestFailure(
                Code.TOPIC_EXISTS, f"topic {name!r} is in use: end its publishers, and the subscriptions to exactly it"
            )
        self._catalogue.delete(topic)
        text = f"{session.name} deleted topic {name}"
        self._effects.append(Notice("topic_deleted", text, session.fields(topic=name)))

    def topics(self, session: Session, pattern: str | None, after: str | None) -> TopicPage:
        """Return a page of the topics that a filter matches and that the client may subscribe or publish to."""
        try:
            if pattern is not None:
                check_filter(pattern)
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        found: list[TopicStatus] = []
        room = PAGE_BYTES
        steps = 0
        last = after or ""
        # Without a filter as with "#": the broker's own topics are listed only on request.
        for position, topic in self._catalogue.after(pattern or "#", after):
            if steps >= STEPS_PER_SEARCH:
                return TopicPage(found, steps, last)
            steps += 1
            if topic is not None and not topic.is_inbox:
                steps += RULE_STEPS
                if self._may_see(session, topic.name):
                    room -= 4 * len(topic.name) + ITEM_BYTES
                    if room < 0:
                        return TopicPage(found, steps, last)
                    status = self._topic_status(topic)
                    steps += ITEM_STEPS + status.subscribers
                    found.append(status)
            last = position
        return TopicPage(found, steps)

    def _may_see(self, session: Session, topic: str) -> bool:
        access = self._catalogue.settings.access
        return any(
            access.may(session.principal, session.is_proved, action, topic) for action in ("subscribe", "publish")
        )

    def _topic_status(self, topic: Topic) -> TopicStatus:
        return TopicStatus(
            name=topic.name,
            policy=topic.policy,
            subscribers=len(self._delivery.routes(topic)),
            publishers=topic.publishers,
            messages=topic.messages,
            payload_bytes=topic.payload_bytes,
            retained=topic.retained is not None,
            last_us=topic.last_us,
        )

    def clients(self, session: Session, after: str | None) -> ClientPage:
        """Return a page of the clients, for a client that may kick."""
        what = "see who is there: this needs the right to kick"
        require_right(self._catalogue.settings.access, session, "kick", "", what)
        found: list[ClientStatus] = []
        room = PAGE_BYTES
        for known in self._admission.sessions.after(after):
            status, cost_bytes = _client_status(known)
            room -= cost_bytes
            if room < 0 and found:
                return ClientPage(found, ITEM_STEPS * len(found), has_more=True)
            found.append(status)
        return ClientPage(found, ITEM_STEPS * len(found))

    def cursors(self, session: Session, client: str | None, after: str | None) -> CursorPage:
        """Return a page of subscriptions, for a client that may kick or asks for its own."""
        if client != session.name:
            what = "see positions of others: this needs the right to kick"
            require_right(self._catalogue.settings.access, session, "kick", "", what)
        if client is not None:
            known = self._admission.sessions.get(client)
            if known is None or is_group_session(client):
                raise RequestFailure(Code.NO_SUCH_CLIENT, f"the client {client!r} does not exist")
            found, _ = self._cursors_of(known)
            return CursorPage(found, ITEM_STEPS * (1 + len(found)))
        cursors: list[CursorStatus] = []
        room, steps = PAGE_BYTES, 0
        last = after or ""
        for known in self._admission.sessions.after(after):
            found, cost_bytes = self._cursors_of(known)
            room -= cost_bytes
            if (room < 0 and cursors) or steps >= STEPS_PER_SEARCH:
                return CursorPage(cursors, steps, last)
            steps += 1 + ITEM_STEPS * len(found)
            cursors += found
            last = known.name
        return CursorPage(cursors, steps)

    def _cursors_of(self, session: Session) -> tuple[list[CursorStatus], int]:
        """Return the subscriptions of a client, and their length in bytes at most; only the first of very many."""
        end = self._delivery.next_offset
        found: list[CursorStatus] = []
        cost_bytes = 0
        for one in session.subscriptions.values():
            cost_bytes += 4 * (len(session.name) + len(one.cursor or "")) + ITEM_BYTES
            cost_bytes += sum(4 * len(text) + 4 for text in one.filters)
            if cost_bytes > PAGE_BYTES:
                break
            position = min(one.restart_position(end)[0], end)
            is_connected = one.peer is not None
            status = CursorStatus(
                client=session.name,
                filters=list(one.filters),
                cursor=one.cursor or "",
                connected=is_connected,
                position=position,
                lag=end - position,
                idle=is_connected and one.is_live and not one.sent and not one.gaps and one.outbound.is_idle(),
            )
            found.append(status)
        return found, min(cost_bytes, PAGE_BYTES)

    def groups(self, session: Session, after: str | None) -> GroupPage:
        """Return a page of the consumer groups: all for a client that may kick, else the ones it may join."""
        access = self._catalogue.settings.access
        may_kick = access.may(session.principal, session.is_proved, "kick", "")
        found: list[GroupStatus] = []
        room, steps = PAGE_BYTES, 0
        last = after or ""
        for group in self._groups.after(after):
            steps += 1
            if steps >= STEPS_PER_SEARCH:
                return GroupPage(found, steps, last)
            is_visible = may_kick or all(
                access.may_join(session.principal, session.is_proved, group.name, text) for text in group.filters
            )
            if is_visible:
                status = self._groups.status(group, MEMBERS_SHOWN)
                room -= 4 * sum(map(len, (status.name, *status.filters, *status.members))) + ITEM_BYTES
                if room < 0 and found:
                    return GroupPage(found, steps, last)
                steps += ITEM_STEPS + len(status.members)
                found.append(status)
            last = group.session.name
        return GroupPage(found, steps)

    def delete_group(self, session: Session, name: str, filters: list[str] | None) -> None:
        """Delete the consumer groups of a name, or only that of these filters, for a client that may kick."""
        what = f"delete the group {name!r}: this needs the right to kick"
        require_right(self._catalogue.settings.access, session, "kick", "", what)
        wanted = None if filters is None else tuple(sorted(set(filters)))
        found = self._groups.delete(name, wanted, session.name)
        if not found:
            of = "" if wanted is None else f" of {', '.join(wanted)}"
            raise RequestFailure(Code.NO_SUCH_CLIENT, f"the group {name!r}{of} does not exist")
        text = f"{session.name} deleted the group {name}"
        shown = [" + ".join(group.filters) for group in found]
        self._effects.append(Notice("group_deleted", text, session.fields(group=name, filters=shown)))

    def capture(self, session: Session, request: CaptureRequest) -> None:
        """Begin to send the broker's packets to an inbox, for a client that may kick."""
        what = "see the packets of others: this needs the right to kick"
        require_right(self._catalogue.settings.access, session, "kick", "", what)
        inbox = request.inbox
        is_own = is_inbox(inbox) and self._delivery.has_filter(inbox) and self._delivery.owns_inbox(session, inbox)
        if not is_own:
            text = f"{inbox!r} is not an inbox of {session.name}: subscribe to one first, and name it"
            raise RequestFailure(Code.NOT_SUBSCRIBED, text)
        if self.capture_handler is None:
            raise RequestFailure(Code.NOT_ALLOWED, "this broker has no sockets to capture")
        self.capture_handler(request)
        text = f"{session.name} captures packets for up to {request.seconds} s"
        self._effects.append(Notice("capture", text, session.fields(filter=request.filter)))

    def kick(
        self, session: Session, name: str, filters: list[str] | None, reason: str, now_us: int, keep: bool = False
    ) -> None:
        """Remove a client and its session, or (with filters) one of its subscriptions, or (`keep`) its connection."""
        require_right(self._catalogue.settings.access, session, "kick", "", "kick others")
        target = self._admission.sessions.get(name)
        if target is None or is_group_session(name):
            raise RequestFailure(Code.NO_SUCH_CLIENT, f"there is no client {name!r}")
        why = f": {reason}" if reason else ""
        fields = session.fields(client=target.name, by=session.name, reason=reason)
        if filters is not None:
            self._kick_subscription(session, target, filters, reason)
            text = f"{session.name} removed {target.name} from {', '.join(filters)}{why}"
            self._effects.append(Notice("kicked", text, {**fields, "filters": list(filters)}))
            return
        peer = target.peer
        if keep:
            if peer is None:
                raise RequestFailure(Code.NO_SUCH_CLIENT, f"{name!r} is not connected")
            peer.close(Code.SHUTDOWN, f"{session.name} disconnected this client{why}")
            self._admission.on_gone(peer, now_us, was_expected=False, reason=f"disconnected by {session.name}{why}")
            self._effects.append(Notice("kicked", f"{session.name} disconnected {target.name}{why}", fields))
            return
        target.expiry_s = 0  # a client that waits for the name begins a new session
        self._jobs.handle_leave(target, now_us)
        if peer is not None:
            peer.close(Code.KICKED, f"{session.name} removed this client{why}")
            self._admission.on_gone(peer, now_us, was_expected=False, reason=f"kicked by {session.name}{why}")
        elif target.is_awaited:
            self._admission.abandon(target, now_us)
        else:
            self._admission.forget(target)
        self._effects.append(Notice("kicked", f"{session.name} removed {target.name}{why}", fields))

    def _kick_subscription(self, session: Session, target: Session, filters: list[str], reason: str) -> None:
        wanted = tuple(sorted(set(filters)))
        found = [one for one in target.subscriptions.values() if one.filters == wanted]
        members = [
            one for one in (target.peer.members if target.peer is not None else ()) if _shared_filters(one) == wanted
        ]
        for member in members:
            self._groups.remove(member, session.name, reason)
        if not found and not members:
            raise RequestFailure(
                Code.NOT_SUBSCRIBED,
                f"{target.name} has no subscription to {', '.join(wanted)}: see its list of clients",
            )
        for subscription in found:
            self._subscriptions.remove(subscription, session.name, reason)

    def progress(self, session: Session, publisher: str | None, topic: str) -> PublisherProgress | None:
        """Return how far a publisher of QoS 2 has come, or None if it is not known."""
        owner = session.name if session.is_remembered else ""
        return self._identities.get((owner, publisher or session.instance.hex(), topic))

    def apply_rules(self, peer: Peer, session: Session, access: Access, former: Access) -> str | None:
        """End what new access rules no longer allow a connected client.

        Return why the whole connection must be closed, or None. `former`: the rules until now.
        """
        secret = access.secret_of(session.principal)
        has_proved = (
            session.is_proved
            and secret == former.secret_of(session.principal)
            and access.certificate_of(session.principal) == former.certificate_of(session.principal)
        )
        if not (has_proved if access.is_listed(session.principal) else access.allows_anonymous):
            return "the broker's access rules have changed: connect again"
        for publication in list(peer.publications):
            name = publication.topic.name
            if not (publication.topic.is_inbox or access.may(session.principal, session.is_proved, "publish", name)):
                self._publications.close(publication)
                publication.ended(Code.NOT_ALLOWED, f"{session.name} may no longer publish to {name!r}")
        for member in list(peer.members):
            group = member.group
            rights = [access.may_join(session.principal, session.is_proved, group.name, text) for text in group.filters]
            if not all(rights):
                self._groups.remove(member, "the broker", "the access rules no longer allow it")
        for subscription in list(peer.subscriptions):
            if isinstance(subscription, FilterTable):
                self._subscriptions.remove_forbidden(subscription)
                continue
            filters = subscription.filters
            may = partial(access.may, session.principal, session.is_proved, "subscribe")
            if not all(is_inbox(text) or may(text) for text in filters):
                self._subscriptions.remove(subscription, "the broker", "the access rules no longer allow it")
        return None


def _shared_filters(member: GroupMember) -> tuple[str, ...]:
    """Return the filters of a member of a group, as MQTT writes them."""
    return tuple(f"{GROUP_PREFIX}{member.group.name}/{text}" for text in member.group.filters)


def _client_status(session: Session) -> tuple[ClientStatus, int]:
    """Return what a list shows of a client, and its length in bytes at most."""
    peer = session.peer
    cost_bytes = 4 * len(session.name) + CLIENT_BYTES
    subscriptions: list[list[str]] = []
    for subscription in session.subscriptions.values():
        cost_bytes += sum(4 * len(text) + 4 for text in subscription.filters) + 4
        if cost_bytes > PAGE_BYTES:
            break
        subscriptions.append(list(subscription.filters))
    for member in peer.members if peer is not None else ():
        filters = list(_shared_filters(member))
        cost_bytes += sum(4 * len(text) + 4 for text in filters) + 4
        if cost_bytes > PAGE_BYTES:
            break
        subscriptions.append(filters)
    path = peer.path() if peer is not None else PathStatus()
    status = ClientStatus(
        name=session.name,
        address=peer.address if peer is not None else "",
        since_us=peer.since_us if peer is not None else 0,
        subscriptions=subscriptions,
        messages_in=session.messages_in,
        messages_out=peer.messages_out if peer is not None else 0,
        protocol=path.protocol,
        arq=path.arq,
        round_trip_us=path.round_trip_us,
        window_bytes=path.window_bytes,
        packets_sent=path.packets_sent,
        packets_received=path.packets_received,
        packets_lost=path.packets_lost,
        fragments_resent=path.fragments_resent,
        bytes_sent=path.bytes_sent,
    )
    return status, min(cost_bytes, PAGE_BYTES)


class ListQueue:
    """Requests for pages of lists, answered client by client within a budget of work.

    A page costs steps: positions that the search visited, and items that it found. The budget refills with time, so
    lists take a bounded part of the broker's time however many requests come, and no turn is long because of them.
    """

    def __init__(self) -> None:
        self.waiting: dict[Peer, deque[Callable[[], int]]] = {}
        """The client that was served least recently comes first."""
        self._budget: Bucket | None = None

    @property
    def due_us(self) -> int | None:
        """When there is budget for the next request, or None if none waits."""
        return self._budget.due_us if self.waiting and self._budget is not None else None

    def add(self, peer: Peer, answer: Callable[[], int], now_us: int) -> None:
        """Call `answer` now or when there is budget for it. It sends a page and returns the steps that it cost.

        Raises RequestFailure if too many requests of the client wait.
        """
        requests = self.waiting.setdefault(peer, deque())
        if len(requests) >= MAX_LISTS_WAITING:
            raise RequestFailure(
                Code.TOO_MANY, f"{MAX_LISTS_WAITING} requests for lists wait to be answered: wait for those first"
            )
        requests.append(answer)
        self.serve(now_us)

    def serve(self, now_us: int) -> None:
        """Answer waiting requests, one of each client in turn, while there is budget."""
        budget = self._budget
        if budget is None:
            budget = self._budget = Bucket(STEPS_PER_S, STEPS_PER_TURN, now_us)
        while self.waiting and budget.take(0, now_us):
            peer = next(iter(self.waiting))
            requests = self.waiting.pop(peer)
            if not peer.is_open:
                continue
            answer = requests.popleft()
            if requests:
                self.waiting[peer] = requests
            budget.take(PAGE_STEPS + answer(), now_us)
