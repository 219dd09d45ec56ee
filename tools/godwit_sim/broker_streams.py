"""The checker of what one subscription hands to its application, message by message, against the truth of the log.

QoS 1 and 2: offsets rise, and between two of them nothing that matches is passed over in silence: it was told as
missed, by its exact number (by the number of offsets after a break), and it was gone. That the first deliveries of a
lane are in order follows from this: the log is in order, and offsets rise.
QoS 0: at most once, in order. Retained messages: one for a topic, before its others. A quiet subscription is told of
nothing that only others have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from godwit_sim.broker_log_model import History, Lane, Ledger, LogChecker, Publication, fits_any
from godwit_sim.checkers import ViolationError


class Delivered(Protocol):
    """What the checker reads of a message: fields of the library's Message."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def publisher(self) -> str: ...
    @property
    def published_us(self) -> int: ...
    @property
    def qos(self) -> int: ...
    @property
    def retained(self) -> bool: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def received_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of the place where a subscription begins."""

    lowest: int
    """Nothing below it may come (but retained messages)."""
    due: int | None = None
    """From here on everything must come; None: from the broker's answer on."""
    is_vague: bool = False
    """It was named by its offset: of what is gone below, nobody can say how much was for this subscription."""


class Stream:
    """One subscription object through all connections of its client."""

    NAME = "stream"

    def __init__(
        self,
        name: str,
        filters: Sequence[str],
        ledger: Ledger,
        log: LogChecker,
        start: Start,
        *,
        is_quiet: bool = False,
    ) -> None:
        """`is_quiet`: the broker must know that a loss of others is none of this subscription's."""
        self.name = name
        self.is_quiet = is_quiet
        self.filters = tuple(filters)
        self.start = start
        self.is_answered = False
        self.is_over = False
        self.received = 0
        self.missed = 0
        self.live_received = 0
        self.retained: dict[str, Publication] = {}
        self._ledger = ledger
        self._log = log
        self._history: History | None = None
        """The one that its messages came from last."""
        self._next: int | None = None
        """Everything below has come or was told as missed; None: nothing has."""
        self._is_vague = False
        self._unfinished: int | None = None
        """The first offset of what the application is at work on."""
        self._live_places: dict[Lane, int] = {}
        self._seen: set[Publication] = set()
        self._fresh_topics: set[str] = set()

    def matches(self, topic: str) -> bool:
        return fits_any(self.filters, topic)

    # -- what happens -------------------------------------------------------------------------------------------------

    def answered(self, due: int | None = None) -> None:
        """The broker has agreed to the subscription: what is appended to the log from now on must come."""
        self.is_answered = True
        if self.start.due is None:
            self.start = replace(self.start, due=self._log.next_offset if due is None else due)

    def disconnected(self) -> None:
        """The library will ask again from the offset where it stands."""
        self._is_vague = True

    def put_back(self, end: int) -> None:
        """An older copy of the log was put back, which ends there: what was not answered may begin there."""
        if not self.is_answered:
            due = self.start.due
            self.start = replace(self.start, lowest=min(self.start.lowest, end), due=due and min(due, end))

    def told_replaced(self, next_offset: int, had_below: int) -> None:
        """The application was told that it goes back to this offset: from there on the log has other messages."""
        if self._next is not None:
            assert self._history is not None
            # If copies were put back more than once meanwhile, it may go back as far as with each of them.
            later = [*self._log.former[self._log.former.index(self._history) + 1 :], self._log.history]
            places = [self._history.same_below(history, had_below) for history in later]
            same_below = places[-1]
            if had_below != self._next or not min(places) <= next_offset <= same_below or next_offset >= had_below:
                raise self._violation(
                    f"told that it had read to {had_below} and goes back to {next_offset}: it had read to "
                    f"{self._next}, and up to {same_below} the log is the same"
                )
            self._next = next_offset
        self._history = self._log.history
        self.start = Start(min(self.start.lowest, next_offset), next_offset)

    def told_missed(self, count: int, next_offset: int) -> None:
        """The application was told that so many messages are missing before this offset."""
        missing = self._passed_over(next_offset)
        if not len(missing) <= count <= len(self._most_missing(next_offset)) or count <= 0:
            raise self._violation(
                f"told that {count} messages before offset {next_offset} are missing: {len(missing)} are"
            )
        there = [one for one in missing if not self._log.is_gone(one)]
        if there:
            raise self._violation(f"told that offset {there[-1]} is missing, which is still in the log")
        if self.is_quiet and not self._may_miss(next_offset):
            raise self._violation(
                f"told that {count} messages before offset {next_offset} are missing: none that is gone was for it"
            )
        self.missed += count
        self._next = next_offset

    def took(self, messages: Sequence[Delivered]) -> list[Publication]:
        """The application asked for more and got these: it is done with what it had before."""
        if self.is_over:
            raise self._violation(f"{len(messages)} messages after its end")
        self._unfinished = None
        return [self._take(message) for message in messages]

    def finished(self) -> None:
        """The application asked for more, and there was nothing."""
        self._unfinished = None

    def ended(self) -> None:
        """Unsubscribed, closed, or dead."""
        self.is_over = True

    @property
    def goes_on_at(self) -> int | None:
        """Where a later subscription of the same session must begin, at the latest."""
        if self._unfinished is not None:
            return self._unfinished
        return self._next if self._next is not None else self.start.due

    def outstanding(self) -> list[int]:
        """The offsets that have not come yet, and must."""
        return [] if self.is_over else self._passed_over(self._log.next_offset)

    def complete(self) -> None:
        """Liveness: everything that had to come has come."""
        waiting = self.outstanding()
        if waiting:
            raise self._violation(
                f"{len(waiting)} messages never came, {self._log.at(waiting[0])} at offset {waiting[0]} the first"
            )

    # -- one message --------------------------------------------------------------------------------------------------

    def _take(self, message: Delivered) -> Publication:
        publication = self._ledger.recognise(
            self.NAME, self.name, message.topic, message.payload, message.published_us, message.qos, message.publisher
        )
        if not self.matches(message.topic):
            raise self._violation(f"{publication} matches none of {self.filters}")
        self.received += 1
        if message.retained:
            self._take_retained(publication)
        elif message.qos == 0:
            self._take_live(publication, message.offset)
        else:
            self._take_logged(publication, message.offset, message.received_us)
        return publication

    def _take_retained(self, publication: Publication) -> None:
        topic = publication.topic
        if not publication.retain:
            raise self._violation(f"{publication} came as retained and was not published so")
        if topic in self._fresh_topics:
            raise self._violation(f"{publication} came as retained behind a newer message of its topic")
        former = self.retained.get(topic)
        self.retained[topic] = publication
        if self._is_vague:
            return  # after a break they may come again, and who gets them can see what they are
        if former is not None:
            raise self._violation(f"{publication} came as retained behind {former}: one for a topic")
        if not publication.qos:
            self._take_once(publication)

    def _take_once(self, publication: Publication) -> None:
        """QoS 0, live or retained."""
        if publication in self._seen and not publication.is_will:
            raise self._violation(f"{publication} came twice")
        self._seen.add(publication)

    def _take_live(self, publication: Publication, offset: int | None) -> None:
        if offset is not None:
            raise self._violation(f"{publication} has offset {offset}, but is in no log")
        self._take_once(publication)
        newest = self._live_places.get(publication.lane, -1)
        if publication.place < newest and not publication.is_will:
            raise self._violation(f"{publication} came behind message {newest}: out of order")
        self._live_places[publication.lane] = publication.place
        self.live_received += 1

    def _take_logged(self, publication: Publication, offset: int | None, received_us: int) -> None:
        if offset is None:
            raise self._violation(f"{publication} has no offset")
        if not self._log.history.has(offset, publication, received_us):
            self._take_former(publication, offset, received_us)
            return
        self._enter_history(publication, offset, received_us)
        if offset < self.start.lowest:
            raise self._violation(f"offset {offset}, but it begins at {self.start.lowest}")
        if self._next is not None and offset < self._next:
            raise self._violation(f"offset {offset} behind offset {self._next - 1}")
        passed = self._passed_over(offset)
        if passed:
            raise self._violation(
                f"{len(passed)} messages before offset {offset} were passed over, "
                f"{self._log.at(passed[0])} at offset {passed[0]} the first"
            )
        self._next = offset + 1
        if self._unfinished is None:
            self._unfinished = offset
        self._fresh_topics.add(publication.topic)

    def _enter_history(self, publication: Publication, offset: int, received_us: int) -> None:
        """The message is in the present log. If it is of a common past, others of a former log may come behind it."""
        own, present = self._history, self._log.history
        former = self._log.former if own is None else [own]
        self._history = next((one for one in former if one.has(offset, publication, received_us)), present)
        if own is None or self._next is None:
            return
        same_below = own.same_below(self._history, self._next)
        if same_below < self._next:
            raise self._violation(
                f"offset {offset} of a log that has other messages from {same_below} on than it read up to "
                f"{self._next}, and it was not told"
            )

    def _take_former(self, publication: Publication, offset: int, received_us: int) -> None:
        """It was on its way when an older copy of the log was put back."""
        histories = [history for history in self._log.former if history.has(offset, publication, received_us)]
        if not histories or (self._history is not None and self._history is self._log.history):
            raise self._violation(f"{publication} came with offset {offset}, where the log has {self._log.at(offset)}")
        if self._next is not None and offset < self._next:
            raise self._violation(f"offset {offset} behind offset {self._next - 1}, of a former log")
        self._history = histories[-1]
        self._next = offset + 1
        self._unfinished = offset if self._unfinished is None else self._unfinished
        self._fresh_topics.add(publication.topic)

    def _passed_over(self, offset: int) -> list[int]:
        """What lies before this offset, had to come, and has not."""
        first = self._next if self._next is not None else self.start.due
        if first is not None and self._history is not None:
            first = self._history.same_below(self._log.history, first)  # what is behind came of a former log
        return [] if first is None else self._log.matching(self.filters, first, offset)

    def _most_missing(self, offset: int) -> Sequence[int]:
        """What lies before this offset and may be told as missed."""
        first = self._next if self._next is not None else self.start.lowest
        if self._is_vague or (self._next is None and self.start.is_vague):
            return range(first, offset)
        damaged = {one for one in self._log.damaged if first <= one < offset}  # nobody can say which topics they had
        return sorted(damaged.union(self._log.matching(self.filters, first, offset)))

    def _may_miss(self, offset: int) -> bool:
        """Return whether a message before this offset is gone that was for it, or whose topic is unknown."""
        first = self._next if self._next is not None else self.start.lowest
        is_damaged = any(first <= one < offset for one in self._log.damaged)
        return is_damaged or any(map(self._log.is_gone, self._log.matching(self.filters, 0, offset)))

    def _violation(self, text: str) -> ViolationError:
        return ViolationError(self.NAME, f"{self.name}: {text}")
