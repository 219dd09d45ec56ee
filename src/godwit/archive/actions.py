"""The actions of the archive: JSON in, JSON out, by the name of the action.

info               log_id, first_offset, next_offset, marks (the retention floors), epochs, columns, accepts_commits
offset_for_time    offset
measure            offset, rows, bytes
topics             topics: name, messages, payload_bytes, last_us; in pages
stage_commit       first_offset, count, was_known
stage_abort        removed
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from godwit.archive.call_limits import BusyError
from godwit.archive.columns import ALL_COLUMNS
from godwit.archive.range_reader import ReaderPool, measure
from godwit.archive.requests import (
    AbortRequest,
    BadRequestError,
    CommitRequest,
    abort_request,
    commit_request,
    measure_request,
    time_request,
    topics_request,
)
from godwit.archive.stages import Stages
from godwit.archive.tokens import require
from godwit.broker.access import TokenRights
from godwit.broker.topics import shown
from godwit.errors import StorageError
from godwit.server.archive_pipe import CommitDone
from godwit.store.reader import LogReader, TopicSelection
from godwit.wire.changes import TopicRow

COMMIT_TIMEOUT_S: Final = 60.0
PAGE_TOPICS: Final = 1000
MAX_STEP: Final = 1_000_000
"""Limit of the distance from one batch of a query to the next: all batches up to the last one count as committed."""

ACTIONS: Final = {
    "info": "the log's id, its first and next offset, its retention floors and epochs",
    "offset_for_time": "the first offset received at or after a time: {time_us}",
    "measure": "the end of a range with a number of rows or bytes: {start, end, filters, max_rows, max_bytes}",
    "topics": "the topics that were published to: {filters}",
    "stage_commit": "append staged rows, once for this batch of the query: {query, batch, parts}",
    "stage_abort": "delete staged rows: {query, batch, parts}",
}


class CommitError(StorageError):
    """The broker could not append the staged rows: none of them is in the log."""


class Committer(Protocol):
    """Appends the content of stage files; BrokerPipe implements it."""

    is_accepting: bool
    """Whether it does so at present. The broker of a replica does not."""

    def commit(
        self, query: str, batch: int, files: list[str], rights: TokenRights, timeout_s: float
    ) -> CommitDone | None:
        """Append files, and return the reply, or None after the timeout."""
        ...


class Actions:
    """Executes actions, in any thread."""

    def __init__(self, readers: ReaderPool, stages: Stages, committer: Committer) -> None:
        self._readers = readers
        self._stages = stages
        self._committer = committer
        self._committing = threading.Lock()
        self._answers: dict[str, Callable[[bytes, TokenRights], Iterator[dict[str, Any]]]] = {
            "info": self._info,
            "offset_for_time": self._offset_for_time,
            "measure": self._measure,
            "topics": self._topics,
            "stage_commit": self._commit,
            "stage_abort": self._abort,
        }

    def answer(self, kind: str, body: bytes, rights: TokenRights) -> Iterator[bytes]:
        """Execute an action and yield JSON objects.

        Raise BadRequestError if the request is invalid, TokenRightsError if the client's token does not allow it,
        BusyError if the client should try again, CommitError if the broker could not append.
        """
        if kind not in self._answers:
            raise BadRequestError(f"there is no action {shown(kind)}: choose from {', '.join(ACTIONS)}")
        return map(msgspec.json.encode, self._answers[kind](body, rights))

    def topics(self, body: bytes, rights: TokenRights) -> list[TopicRow]:
        """Return the topics that a request selects."""
        filters = topics_request(body).filters
        require(rights.read_problem(filters))
        selection = TopicSelection(filters)
        return [topic for topic in self._readers.ask(lambda reader: reader.topics()) if selection.has(topic.name)]

    def _info(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        def collect(reader: LogReader) -> dict[str, Any]:
            with reader.snapshot():
                return {
                    "log_id": reader.log_id.hex(),
                    "first_offset": reader.first_offset(),
                    "next_offset": reader.next_offset(),
                    "marks": reader.retention_floors(),
                    "epochs": [(row.id.hex(), row.first_offset) for row in reader.epochs()],
                    "columns": ALL_COLUMNS,
                    "accepts_commits": self._committer.is_accepting,
                }

        yield self._readers.ask(collect)

    def _offset_for_time(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        time_us = max(time_request(body).time_us, 0)
        yield {"offset": self._readers.ask(lambda reader: reader.offset_at(time_us))}

    def _measure(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        request = measure_request(body)
        require(rights.read_problem(request.filters))
        yield msgspec.to_builtins(self._readers.ask(lambda reader: measure(request, reader)))

    def _topics(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        topics = self.topics(body, rights)
        for start in range(0, max(len(topics), 1), PAGE_TOPICS):
            yield {"topics": [topic_info(topic) for topic in topics[start : start + PAGE_TOPICS]]}

    def _commit(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        request = commit_request(body)
        require(rights.staging_problem())
        # One at a time: the broker appends them one by one anyway, and a repeated request finds its batch committed.
        if not self._committing.acquire(timeout=COMMIT_TIMEOUT_S):
            raise BusyError("other commits are under way: ask again, it is done once however often it is asked")
        try:
            done = self._committed(request, rights)
        finally:
            self._committing.release()
        self._stages.abort(AbortRequest(request.query, request.batch))  # other attempts of this batch are obsolete
        yield {"first_offset": done.first_offset, "count": done.count, "was_known": done.was_known}

    def _committed(self, request: CommitRequest, rights: TokenRights) -> CommitDone:
        recorded = self._readers.ask(lambda reader: reader.queries().get(request.query))
        if recorded is not None and request.batch <= recorded:
            return CommitDone(0, was_known=True)
        if recorded is not None and request.batch > recorded + MAX_STEP:
            raise BadRequestError(
                f"batch {request.batch} of {shown(request.query)} is more than {MAX_STEP} above its last one, "
                f"{recorded}: count on from that one, or choose another name for the query"
            )
        if not self._committer.is_accepting:
            raise CommitError("the broker of this archive is a standby: stage and commit at the active one")
        files = self._stages.files_of(request)
        if files is None:
            raise CommitError(
                f"not all parts of batch {request.batch} of {shown(request.query)} are staged here: "
                "they were never finished, were aborted or have expired; stage them again"
            )
        done = self._committer.commit(request.query, request.batch, files, rights, COMMIT_TIMEOUT_S)
        if done is None:
            raise BusyError(
                f"the broker has not answered for {COMMIT_TIMEOUT_S:.0f} s: ask again, "
                "it is done once however often it is asked"
            )
        if done.problem:
            raise CommitError(done.problem)
        return done

    def _abort(self, body: bytes, rights: TokenRights) -> Iterator[dict[str, Any]]:
        request = abort_request(body)
        require(rights.staging_problem())
        yield {"removed": self._stages.abort(request)}


def topic_info(topic: TopicRow) -> dict[str, Any]:
    """Return the description of a topic for clients."""
    return {
        "name": topic.name,
        "messages": topic.messages,
        "payload_bytes": topic.payload_bytes,
        "last_us": topic.last_us,
    }
