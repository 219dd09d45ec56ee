"""Consumer groups: joining and leaving them, their expiry, lists and deletion. One group is in godwit.broker.group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.group import Group, GroupMember, GroupSubscription
from godwit.broker.ports import Outbound, Peer, RequestFailure
from godwit.broker.session import Session, Sessions, check_name
from godwit.errors import UsageError
from godwit.limits import GROUP_MEMBER_WINDOW
from godwit.wire.changes import SubscriptionRow
from godwit.wire.control_base import Code
from godwit.wire.filters import GROUP_PREFIX, WILDCARDS

SWEEP_US: Final = 1_000_000
"""How often slow members are looked for."""


def check_group_name(name: str) -> None:
    """Raise UsageError if the name is not valid for a group."""
    check_name(name)
    if set(name) & {"/", *WILDCARDS}:
        raise UsageError(f"the group name {name!r} has one of the characters / + # *: choose another")


def group_session_name(name: str, filters: Sequence[str]) -> str:
    """Return the name of the session of a group. A client cannot have such a name."""
    return f"{GROUP_PREFIX}{name}/" + "\n".join(filters)  # a filter has no control characters


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One group in a list."""

    name: str
    filters: list[str]
    members: list[str]
    """The names of their clients; only the first ones if there are very many."""
    member_count: int
    position: int
    lag: int
    in_flight: int
    missed: int
    expires_us: int
    """When it is deleted unless a member joins; 0 while it has members."""


class GroupPage(msgspec.Struct, frozen=True):
    """A page of the list of groups."""

    groups: list[GroupStatus]
    steps: int
    after: str | None = None
    """If there may be more: from where to continue."""


@dataclass(eq=False)
class Groups:
    """Input: join, leave, acknowledge, resume, delete, sweep. Each request that is refused raises RequestFailure."""

    _catalogue: Catalogue
    _delivery: Delivery
    _dirty: DirtyState
    _admission: Admission
    _effects: list[Effect]
    sessions: Sessions
    _clock: Callable[[], int]
    _next_serial: Callable[[], int]

    def __post_init__(self) -> None:
        self._groups: dict[str, Group] = {}
        """By the names of their sessions."""
        self.sweep_at_us: int | None = None
        """When slow members are looked for; None if no group has members."""
        self._admission.on_session_forgotten = self._forget

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str, filters: tuple[str, ...]) -> Group | None:
        """Return a group, or None if it does not exist."""
        return self._groups.get(group_session_name(name, filters))

    # -- members ------------------------------------------------------------------------------------------------------

    def check(self, session: Session, name: str, filters: Sequence[str]) -> None:
        """Raise RequestFailure unless the client may join the group. The filters are valid."""
        try:
            check_group_name(name)
        except UsageError as error:
            raise RequestFailure(Code.BAD_NAME, f"as a group: {error}") from None
        access = self._catalogue.settings.access
        for pattern in filters:
            problem = access.join_problem(session.principal, session.is_proved, name, pattern)
            if problem:
                text = f"{session.name} may not subscribe to {pattern!r} in the group {name!r} ({problem})"
                raise RequestFailure(Code.NOT_ALLOWED, text)

    def require_room(self, session: Session, name: str, filters: tuple[str, ...]) -> None:
        """Raise RequestFailure if there are too many groups for another one of this client.

        Where names are listed, half of the groups are for clients that prove one.
        """
        settings = self._catalogue.settings
        is_half = bool(settings.access.names) and not session.is_proved
        limit = settings.max_groups // 2 if is_half else settings.max_groups
        if len(self._groups) >= limit and self.get(name, filters) is None:
            text = f"there are {limit} groups, which is the limit for this client: use one, or raise limits.groups"
            raise RequestFailure(Code.TOO_MANY, text)

    def join(
        self,
        peer: Peer,
        name: str,
        filters: tuple[str, ...],
        outbound: Outbound,
        *,
        start: int,
        expiry_s: int,
        limit: int | None = None,
        is_single: bool = False,
    ) -> tuple[GroupMember, bool]:
        """Add a member to a group, which is created if it does not exist.

        `start`: where a new group begins. `expiry_s`: how long the group is kept after its last member has left, if no
        other member asks for longer. `limit`: messages that may be in flight at the member. Return the member, and
        whether something was changed that is to be stored before the client is notified.
        """
        session = peer.session
        assert session is not None
        group = self.get(name, filters)
        is_new = group is None
        if group is None:
            group = self._create(name, filters, start)
        must_wait = is_new
        own = group.session
        expiry_s = min(expiry_s, self._catalogue.settings.max_session_expiry_s)
        if expiry_s > own.expiry_s:
            own.expiry_s = expiry_s
            must_wait = True
        if own.peer is None:
            own.peer = group.peer
            own.ends_at_us = None
            own.is_awaited = False
            must_wait = True
        if must_wait:
            must_wait = self._dirty.session(own)
            self._dirty.subscription(group.source)
        member = GroupMember(
            group, peer, outbound, min(limit or GROUP_MEMBER_WINDOW, GROUP_MEMBER_WINDOW), is_single=is_single
        )
        peer.members[member] = None
        outbound.member = member
        source = group.source
        outbound.begin(start if is_new else self._position(group))
        group.add(member)
        if source.peer is None:
            self._delivery.attach(
                source, group.peer, group, source.resumes_at(self._delivery.next_offset), resumes=not is_new
            )
        if self.sweep_at_us is None:
            self.sweep_at_us = self._clock() + SWEEP_US
        text = f"{session.name} joined the group {name} of {', '.join(filters)}"
        self._effects.append(Notice("subscribed", text, session.fields(filters=list(filters), group=name)))
        return member, must_wait

    def _create(self, name: str, filters: tuple[str, ...], start: int) -> Group:
        session = Session(group_session_name(name, filters), 0, is_remembered=True)
        session.is_proved = True  # so that it is not deleted to make room for clients
        self.sessions[session.name] = session
        source = GroupSubscription(self._next_serial(), session, filters, None, start)
        group = self._add(name, session, source)
        group.high = start
        self._delivery.add(source)
        return group

    def _add(self, name: str, session: Session, source: GroupSubscription) -> Group:
        group = Group(name, source.filters, session, self._delivery, self._clock, self._notify_missed)
        group.owner = self
        group.source = source
        source.group = group
        session.subscriptions[source.key] = source
        self._groups[session.name] = group
        return group

    def restore(self, session: Session, row: SubscriptionRow) -> None:
        """Add a group that existed before the broker was restarted."""
        name = session.name[len(GROUP_PREFIX) :].partition("/")[0]
        source = GroupSubscription(self._next_serial(), session, row.filters, None, row.resume_at)
        group = self._add(name, session, source)
        session.is_proved = True
        source.lost = row.lost
        source.quiet_from = row.resume_at if row.quiet_from is None else row.quiet_from
        source.is_stored = True
        source.is_settled = source.is_stored_settled = row.is_settled
        self._delivery.restore(source)
        end = self._delivery.next_offset  # the log may be an older copy than the rows
        if not row.is_settled:
            group.high = min(max(row.high, source.resume_at), end)
            firsts, ends = row.unfinished[::2], row.unfinished[1::2]
            group.wanted.update(zip(firsts, ends, strict=False))
            group.wanted.take(0, source.resume_at)
            group.wanted.take(group.high, 2**63)
        else:
            group.high = source.resume_at

    def leave(self, member: GroupMember) -> None:
        """Remove a member. Its unacknowledged messages go to others."""
        group = member.group
        if member.peer.members.pop(member, member) is not None:
            return
        group.remove(member)
        member.outbound.member = None
        if not group.members:
            self._rest(group)

    def _rest(self, group: Group) -> None:
        """The last member has left: the group keeps its position for a while."""
        group.update_position()
        source = group.source
        source.sent.clear()
        source.sent.extend([first, end] for first, end in group.unfinished())
        self._delivery.detach(source)
        group.session.peer = None
        self._admission.keep_for_later(group.session, self._clock())

    def acknowledge(self, member: GroupMember, first: int, end: int) -> None:
        """A member has processed messages that were put to it as one batch, or the first ones of them."""
        member.group.acknowledge(member, first, end)

    def resume(self, peer: Peer) -> None:
        """The outbounds of a client have room again."""
        for member in peer.members:
            if member.is_full:
                member.group.resume(member)

    def sweep(self, now_us: int) -> None:
        """Give the messages of slow members to others; called about once a second while groups have members."""
        timeout_us = int(self._catalogue.settings.group_ack_s * 1e6)
        is_used = False
        for group in self._groups.values():
            if group.members:
                is_used = True
                group.move_slow(now_us, timeout_us)
        self.sweep_at_us = now_us + SWEEP_US if is_used else None

    # -- lists, deletion ----------------------------------------------------------------------------------------------

    def _position(self, group: Group) -> int:
        return min(group.source.restart_position(self._delivery.next_offset)[0], self._delivery.next_offset)

    def status(self, group: Group, most_members: int) -> GroupStatus:
        """Return what a list shows of a group."""
        end = self._delivery.next_offset
        position = self._position(group)
        members = [one.peer.session for one in list(group.members)[:most_members]]
        return GroupStatus(
            name=group.name,
            filters=list(group.filters),
            members=sorted([session.name for session in members if session is not None]),
            member_count=len(group.members),
            position=position,
            lag=end - position,
            in_flight=group.in_flight,
            missed=group.missed + group.source.lost,
            expires_us=group.session.ends_at_us or 0,
        )

    def after(self, name: str | None) -> Iterator[Group]:
        """Yield the groups behind a session's name (None: all), in the order of these names."""
        for session in self.sessions.groups_after(name):
            group = self._groups.get(session.name)
            if group is not None:
                yield group

    def delete(self, name: str, filters: tuple[str, ...] | None, by: str) -> list[Group]:
        """Delete the groups of a name, or only that of these filters. Return them."""
        found = [
            group
            for group in self._groups.values()
            if group.name == name and (filters is None or group.filters == filters)
        ]
        for group in found:
            for member in list(group.members):
                self.remove(member, by, f"the group {name} was deleted", is_last=True)
            self._admission.forget(group.session)
        return found

    def remove(self, member: GroupMember, by: str, reason: str, *, is_last: bool = False) -> None:
        """Remove a member against the will of its client, and notify the client."""
        if is_last:  # of a group that is about to be deleted: nothing of it goes to others
            member.peer.members.pop(member, None)
            member.group.members.pop(member, None)
            member.pieces.clear()
            member.outbound.member = None
            self._delivery.unflushed.pop(member.outbound, None)
        else:
            self.leave(member)
        member.outbound.close()
        member.outbound.removed(by, reason)

    def _forget(self, session: Session) -> None:
        """A session was deleted: perhaps that of a group."""
        self._groups.pop(session.name, None)

    def _notify_missed(self, group: Group, count: int) -> None:
        name = f"{group.name} of {', '.join(group.filters)}"
        messages = "1 message" if count == 1 else f"{count} messages"
        text = f"the group {name} has missed up to {messages}, which retention has deleted"
        self._effects.append(Notice("warning", text, {"group": group.name, "filters": list(group.filters)}))
