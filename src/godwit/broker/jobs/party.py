"""One connection that takes part in work, as a controller, a worker or a watcher: what it said, what it is to hear."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from godwit.broker.effects import Effect
from godwit.broker.jobs.outlet import Outlet
from godwit.broker.session import Session, made_name
from godwit.native.peer import NativePeer
from godwit.wire.jobs import Ref
from godwit.wire.work import JobUpdate, TakenJob

if TYPE_CHECKING:
    from godwit.broker.jobs.model import Job, Task


class AllTasks(dict["Task", None]):
    """All of a job are to be told: which that are is looked up when there is room."""


def who(session: Session) -> str:
    """What a controller or a worker is called: a client without a name has one that outlives its connections."""
    return session.name if session.is_remembered else made_name(session.instance)


class Answer:
    """To one submission, once it is certain."""

    __slots__ = ("agreed", "code", "is_new", "job", "key", "text")

    def __init__(
        self, key: str, job: Job | None = None, *, is_new: bool = False, code: int = 0, text: str = ""
    ) -> None:
        self.key = key
        self.job = job
        self.agreed = job.agreed if job is not None else None
        """As it is now: that is safe when this turn is, and what comes later may not be."""
        self.is_new = is_new
        """Else the key was known."""
        self.code = code
        """Why there is no job, with the text."""
        self.text = text


class Arrived:
    """A record of the client's, which is confirmed when all that it said is safe."""

    __slots__ = ("answers", "body_bytes", "record", "turn")

    def __init__(self, record: int, body_bytes: int) -> None:
        self.record = record
        self.body_bytes = body_bytes
        self.turn = 0
        """When this turn is safe."""
        self.answers: list[Answer] = []


class Party:
    """What waits for the client waits as references: how they stand is looked up when there is room to say it."""

    __slots__ = (
        "arrived", "channel", "farewells", "held", "is_worker", "later", "leases", "link", "name", "outlet", "owed",
        "revokes", "session", "taken", "updates", "watched",
    )  # fmt: skip

    def __init__(self, link: NativePeer, session: Session, effects: list[Effect]) -> None:
        self.link = link
        self.session = session
        self.name = who(session)
        self.channel = 0
        """On which the client sends; 0: it has not opened one."""
        self.outlet = Outlet(link, effects)
        self.is_worker = False
        """Whether it volunteered on this connection."""
        self.arrived: deque[Arrived] = deque()
        """Not confirmed yet, in their order: to confirm one confirms all before it."""
        self.owed: list[int] = []
        """The lengths of records whose credit it gets back when it has taken what they led to: so nobody fills the
        memory with answers that he does not fetch."""
        self.taken: deque[TakenJob] = deque()
        self.revokes: deque[tuple[Ref, str]] = deque()
        self.leases: deque[tuple[Task, int]] = deque()
        """With their fencing numbers: one that has ended meanwhile is not sent."""
        self.watched: dict[int, None] = {}
        """Jobs by their numbers."""
        self.updates: OrderedDict[int, tuple[Job, dict[Task, None]]] = OrderedDict()
        """What it has not been told yet: jobs, and which of their tasks have changed."""
        self.held: dict[int, tuple[Job, dict[Task, None]]] = {}
        """The same of jobs whose present state is not safe. They come back when it is."""
        self.later: dict[int, tuple[Job, dict[Task, None]]] = {}
        """The same of tasks that were leased just now, which can wait a moment."""
        self.farewells: deque[JobUpdate] = deque()
        """The ends of jobs that were forgotten before it took their updates."""


def party_of(link: NativePeer, session: Session, effects: list[Effect]) -> Party:
    """The part that this connection takes, from now on if it took none."""
    party = link.party
    if party is None:
        party = link.party = Party(link, session, effects)
    return party
