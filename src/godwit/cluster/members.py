"""The other members of a cluster, as their heartbeats describe them, and which of these statements count.

A wrongly configured member must not stop or disturb others. Therefore

    another log            its heartbeats are ignored
    not verified           a node that has just started may have the folder of another cluster. Its records are
                           not compared with those of others before it has found its own in the replicated log
    verified               it had the same records as the log. If its records and those of this node differ, the engine
                           has broken its promises, and both stop
    the same name          the one that has started later stops, and never the active one

A position beyond the end of the replicated log is believed without verification, and then no node claims: the member
may be the only one that has records which the engine has lost.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from godwit.cluster.records import Fold
from godwit.cluster.values import Evidence, Heartbeat, Member

HISTORY: Final = 1024
"""Positions for which a node can compare itself with others."""
MAX_MEMBERS: Final = 32
MEMBER_S: Final = 3.0
"""A member that was not received for this time counts as absent."""
SAME_AGE_S: Final = 1.0
"""Of two nodes with one name that have started within this time, the ids of their runs decide."""


class Members:
    """The other members, by the heartbeats that one run of a node has received."""

    def __init__(self, run_id: bytes, now: float) -> None:
        self.known: OrderedDict[str, Member] = OrderedDict()
        self._run_id = run_id
        self._since = now
        self._history: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        self._namesake = Evidence()
        self._strangers: set[bytes] = set()

    def age_s(self, now: float) -> float:
        """Return how long this run lasts."""
        return now - self._since

    def remember(self, fold: Fold) -> None:
        """Remember the last part that counts at the present position."""
        self._history[fold.position] = (fold.epoch, fold.number, fold.link)
        if len(self._history) > HISTORY:
            self._history.popitem(last=False)

    def add(self, beat: Heartbeat, now: float) -> bool:
        """Store the heartbeat of a member. Return whether it has read other records than this node."""
        if beat.name not in self.known and len(self.known) >= MAX_MEMBERS:
            return False
        self.known[beat.name] = Member(beat, now)
        mine = self._history.get(beat.position)
        return beat.is_verified and mine is not None and mine != (beat.epoch, beat.number, beat.link)

    def present(self, now: float) -> list[Heartbeat]:
        """Return the last heartbeats of the members that are not absent."""
        return [member.beat for member in self.known.values() if now - member.at <= MEMBER_S]

    def applied(self, now: float) -> list[int]:
        """Return the positions of files that are known to be replicas of this log."""
        return [beat.applied for beat in self.present(now) if beat.is_verified and beat.state != "stopped"]

    def skip(self, seconds: float) -> None:
        """Leave a pause of this process out of the silence of all members."""
        for member in self.known.values():
            member.at += seconds

    def is_earlier_namesake(self, beat: Heartbeat, now: float) -> bool:
        """Return whether another process with the name of this node goes before, and has been there for a while.

        Late messages of an earlier run of this node end soon.
        """
        if beat.state == "stopped" or not beat.is_verified:
            return False
        later_s = beat.age_s - self.age_s(now)
        is_earlier = self._run_id < beat.run if abs(later_s) < SAME_AGE_S else later_s > 0
        return (beat.state == "active" or is_earlier) and self._namesake.add(now)

    def is_new_stranger(self, beat: Heartbeat) -> bool:
        """Return whether this run of a member is to be reported, which is once."""
        if beat.run in self._strangers or len(self._strangers) >= MAX_MEMBERS:
            return False
        self._strangers.add(beat.run)
        return True
