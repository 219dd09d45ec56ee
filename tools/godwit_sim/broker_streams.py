"""The checker of the messages that one subscription delivers to its application, compared with the log model.

QoS 1 and 2: offsets rise. No matching message between two delivered ones is skipped without a report: it was reported
as missed, by its exact number (after a reconnect: by the number of offsets), and it was deleted or damaged. As the log
is in order, the first deliveries with one order key are in order too.

QoS 0: at most once, in order. Retained messages: one per topic, before other messages of the topic. A quiet
subscription gets no report about messages that only others have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from godwit_sim.broker_log_model import History, LogChecker, OrderKey, Publication, PublishedMessages, matches_any
from godwit_sim.checkers import ViolationError


class Delivered(Protocol):
    """The fields of the library's Message that the checker reads."""

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
    """Where a subscription begins, as far as that is known."""

    lowest: int
    """No lower offset may be delivered (except retained messages)."""
    due: int | None = None
    """All messages from here on must be delivered; None: from the broker's reply on."""
    is_approximate: bool = False
    """It was requested by offset: how many deleted messages below matched this subscription is unknown."""


class Stream:
    """Check one subscription object through all connections of its client."""

    NAME = "stream"

    def __init__(
        self,
        name: str,
        filters: Sequence[str],
        published: PublishedMessages,
        log: LogChecker,
        start: Start,
        *,
        is_quiet: bool = False,
    ) -> None:
        """`is_quiet`: the broker must not report messages that this subscription does not match."""
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
        self._published = published
        self._log = log
        self._history: History | None = None
        """The history that its last message came from."""
        self._next: int | None = None
        """All lower offsets were delivered or reported as missed; None: none were."""
        self._is_approximate = False
        self._unfinished: int | None = None
        """The first offset that the application is processing."""
        self._live_positions: dict[OrderKey, int] = {}
        self._seen: set[Publication] = set()
        self._fresh_topics: set[str] = set()

    def matches(self, topic: str) -> bool:
        return matches_any(self.filters, topic)

    # -- events -------------------------------------------------------------------------------------------------------

    def answered(self, due: int | None = None) -> None:
        """Record that the broker confirmed the subscription: all messages appended from now on must be delivered."""
        self.is_answered = True
        if self.start.due is None:
            self.start = replace(self.start, due=self._log.next_offset if due is None else due)

    def disconnected(self) -> None:
        """Record a disconnect: the library will resume by offset."""
        self._is_approximate = True

    def restore(self, end: int) -> None:
        """Record that an older copy of the log, with this end, was restored: a pending subscription may begin there."""
        if not self.is_answered:
            due = self.start.due
            self.start = replace(self.start, lowest=min(self.start.lowest, end), due=due and min(due, end))

    def notified_replaced(self, next_offset: int, had_below: int) -> None:
        """Record the report that the subscription resumes at a lower offset, where the log has other messages now."""
        if self._next is not None:
            assert self._history is not None
            # If copies were restored more than once since, the start of any of them is valid.
            later = [*self._log.former[self._log.former.index(self._history) + 1 :], self._log.history]
            positions = [self._history.same_below(history, had_below) for history in later]
            same_below = positions[-1]
            if had_below != self._next or not min(positions) <= next_offset <= same_below or next_offset >= had_below:
                raise self._violation(
                    f"reported as read to {had_below} and resuming at {next_offset}: it had read to "
                    f"{self._next}, and up to {same_below} the log is the same"
                )
            self._next = next_offset
        self._history = self._log.history
        self.start = Start(min(self.start.lowest, next_offset), next_offset)

    def notified_missed(self, count: int, next_offset: int) -> None:
        """Record the report that `count` messages before this offset are missing."""
        missing = self._passed_over(next_offset)
        if not len(missing) <= count <= len(self._most_missing(next_offset)) or count <= 0:
            raise self._violation(
                f"{count} messages before offset {next_offset} are reported missing: {len(missing)} are"
            )
        there = [one for one in missing if not self._log.is_unavailable(one)]
        if there:
            raise self._violation(f"offset {there[-1]} is reported missing, and is still in the log")
        if self.is_quiet and not self._may_miss(next_offset):
            raise self._violation(
                f"{count} messages before offset {next_offset} are reported missing: none that matches it is gone"
            )
        self.missed += count
        self._next = next_offset

    def took(self, messages: Sequence[Delivered]) -> list[Publication]:
        """Record messages that the application received: it has finished processing the earlier ones."""
        if self.is_over:
            raise self._violation(f"{len(messages)} messages after its end")
        self._unfinished = None
        return [self._take(message) for message in messages]

    def finished(self) -> None:
        """Record that the application asked for messages and none were available."""
        self._unfinished = None

    def ended(self) -> None:
        """Record that the subscription ended: unsubscribed, closed, or its process died."""
        self.is_over = True

    @property
    def resume_offset(self) -> int | None:
        """Return the highest offset at which a later subscription of the same session may begin."""
        if self._unfinished is not None:
            return self._unfinished
        return self._next if self._next is not None else self.start.due

    def outstanding(self) -> list[int]:
        """Return the offsets that must still be delivered."""
        return [] if self.is_over else self._passed_over(self._log.next_offset)

    def complete(self) -> None:
        """Check liveness: all messages that had to be delivered were delivered."""
        waiting = self.outstanding()
        if waiting:
            raise self._violation(
                f"{len(waiting)} messages never came, {self._log.at(waiting[0])} at offset {waiting[0]} the first"
            )

    # -- delivery of one message --------------------------------------------------------------------------------------

    def _take(self, message: Delivered) -> Publication:
        publication = self._published.identify(
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
        if self._is_approximate:
            return  # after a reconnect they may be delivered again, marked as retained
        if former is not None:
            raise self._violation(f"{publication} came as retained behind {former}: one for a topic")
        if not publication.qos:
            self._take_once(publication)

    def _take_once(self, publication: Publication) -> None:
        """Check QoS 0, live or retained, for repeats."""
        if publication in self._seen and not publication.is_will:
            raise self._violation(f"{publication} came twice")
        self._seen.add(publication)

    def _take_live(self, publication: Publication, offset: int | None) -> None:
        if offset is not None:
            raise self._violation(f"{publication} has offset {offset}, but is in no log")
        self._take_once(publication)
        newest = self._live_positions.get(publication.order_key, -1)
        if publication.position < newest and not publication.is_will:
            raise self._violation(f"{publication} came behind message {newest}: out of order")
        self._live_positions[publication.order_key] = publication.position
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
                f"{len(passed)} messages before offset {offset} were skipped, "
                f"{self._log.at(passed[0])} at offset {passed[0]} the first"
            )
        self._next = offset + 1
        if self._unfinished is None:
            self._unfinished = offset
        self._fresh_topics.add(publication.topic)

    def _enter_history(self, publication: Publication, offset: int, received_us: int) -> None:
        """Check a message of the present log. If replaced histories share it, messages of those may still follow."""
        own, present = self._history, self._log.history
        former = self._log.former if own is None else [own]
        self._history = next((one for one in former if one.has(offset, publication, received_us)), present)
        if own is None or self._next is None:
            return
        same_below = own.same_below(self._history, self._next)
        if same_below < self._next:
            raise self._violation(
                f"offset {offset} of a log that has other messages from {same_below} on than it read up to "
                f"{self._next}, and that was not reported"
            )

    def _take_former(self, publication: Publication, offset: int, received_us: int) -> None:
        """Check a message that was in flight when an older copy of the log was restored."""
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
        """Return the offsets below `offset` that had to be delivered and were not."""
        first = self._next if self._next is not None else self.start.due
        if first is not None and self._history is not None:
            first = self._history.same_below(self._log.history, first)  # later ones came from a replaced history
        return [] if first is None else self._log.matching(self.filters, first, offset, required=True)

    def _most_missing(self, offset: int) -> Sequence[int]:
        """Return the offsets below `offset` that may be reported as missed."""
        first = self._next if self._next is not None else self.start.lowest
        if self._is_approximate or (self._next is None and self.start.is_approximate):
            return range(first, offset)
        damaged = {one for one in self._log.damaged if first <= one < offset}  # their topics are unknown
        return sorted(damaged.union(self._log.matching(self.filters, first, offset)))

    def _may_miss(self, offset: int) -> bool:
        """Return whether a message before this offset is gone that was for it, or whose topic is unknown."""
        first = self._next if self._next is not None else self.start.lowest
        is_damaged = any(first <= one < offset for one in self._log.damaged)
        return is_damaged or any(map(self._log.is_unavailable, self._log.matching(self.filters, 0, offset)))

    def _violation(self, text: str) -> ViolationError:
        return ViolationError(self.NAME, f"{self.name}: {text}")
