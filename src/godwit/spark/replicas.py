"""A client of several archives that serve replicas of one log, as the brokers of a cluster do.

Replicas have the same messages at the same offsets, and may be behind. The furthest one that answers is asked. A range
that was planned with one replica is read from another only when that has all of it. Rows are written to the archive
whose broker accepts commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from godwit.spark.archive import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    Archive,
    ArchiveError,
    DataLossError,
    UnreachableError,
)
from godwit.spark.offsets import same_below, to_epochs
from godwit.spark.options import REPLICA_SEPARATOR, ArchiveAccess, OptionError

SURVEY_S: Final = 3.0
"""How long each replica is waited for, because the others can answer."""
ABSENT_S: Final = 5.0
"""A replica that did not answer is not asked again for this time, unless no other one answers."""


class Replicas:
    """The archives of one log. It has the methods of Archive that readers and writers use."""

    def __init__(self, address: str, access: ArchiveAccess) -> None:
        self.address = address
        self._access = access
        self._archives = [Archive(each, access) for each in address.split(REPLICA_SEPARATOR)]
        self._absent_until: dict[str, float] = {}

    def info(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the state of the log in the furthest replica that answers."""
        return self._wait(lambda found: True, "", timeout_s)[1]

    def ask(self, kind: str, request: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the answer of the furthest replica to an action."""
        if kind == "info":
            return self.info(timeout_s=timeout_s)
        gives_up_at = time.monotonic() + (self._access.timeout_s if timeout_s is None else timeout_s)
        while True:
            archive, _ = self._wait(lambda found: True, "", timeout_s)
            try:
                return archive.ask(kind, request, timeout_s=0)
            except UnreachableError:
                if time.monotonic() > gives_up_at:
                    raise
                self._absent_until[archive.address] = time.monotonic() + ABSENT_S

    def accepting(self) -> Archive:
        """Return the archive whose broker accepts commits."""
        return self._wait(lambda found: bool(found.get("accepts_commits", True)), "accepts rows")[0]

    def commit(self, address: str, request: dict[str, Any]) -> None:
        """Commit the rows that are staged with one of the archives.

        Raises:
            ArchiveError: They cannot be committed there any more, because another broker became active.
            UnreachableError: That archive did not answer in time, and no other one accepts commits.
        """
        archive = Archive(address, self._access)
        gives_up_at = time.monotonic() + self._access.timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                archive.ask("stage_commit", request, timeout_s=0)
                return
            except UnreachableError:
                accepting = [each for each, info in self._survey() if info.get("accepts_commits", True)]
                if any(each.address != address for each in accepting):
                    raise ArchiveError(
                        f"the rows of batch {request['batch']} are staged at {address}, which does not answer, and "
                        "another broker became active: write the batch again"
                    ) from None
                if time.monotonic() + pause_s > gives_up_at:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def read(
        self,
        log: str,
        start: int,
        end: int,
        *,
        topics: Sequence[str],
        columns: Sequence[str],
        fails_on_data_loss: bool,
        gaps_known_below: int,
        epochs: Sequence[tuple[str, int]] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of this log. If a replica fails, reading resumes in another that has the range."""
        at = start
        while at < end:
            archive, _ = self._wait(lambda found: int(found["next_offset"]) >= end, f"has log {log} up to offset {end}")
            try:
                for batch, reached in archive.read_steps(
                    log,
                    at,
                    end,
                    topics=topics,
                    columns=columns,
                    fails_on_data_loss=fails_on_data_loss,
                    gaps_known_below=gaps_known_below,
                    epochs=epochs,
                    timeout_s=0,
                ):
                    if batch.num_rows:
                        yield batch
                    at = reached
                return
            except UnreachableError:
                self._absent_until[archive.address] = time.monotonic() + ABSENT_S

    def _wait(
        self, suits: Callable[[dict[str, Any]], bool], purpose: str, timeout_s: float | None = None
    ) -> tuple[Archive, dict[str, Any]]:
        """Wait for a replica that suits, and return it with its state; of several the furthest one.

        Raises:
            UnreachableError: There was none in time.
        """
        timeout_s = self._access.timeout_s if timeout_s is None else timeout_s
        gives_up_at = time.monotonic() + timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            found = self._survey()
            suitable = [each for each in found if suits(each[1])]
            if suitable:
                return max(suitable, key=lambda each: int(each[1]["next_offset"]))
            if time.monotonic() + pause_s > gives_up_at:
                raise self._failure(found, purpose, timeout_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _survey(self) -> list[tuple[Archive, dict[str, Any]]]:
        """Return the replicas that answer, with their states. Check that they are replicas of one log."""
        now = time.monotonic()
        present = [each for each in self._archives if self._absent_until.get(each.address, 0.0) <= now]
        absent = [each for each in self._archives if each not in present]
        found = self._ask_each(present) or self._ask_each(absent)
        if len(found) > 1:
            _check_same_log(found)
        return found

    def _ask_each(self, archives: Sequence[Archive]) -> list[tuple[Archive, dict[str, Any]]]:
        found = []
        for archive in archives:
            try:
                found.append((archive, archive.ask("info", {}, timeout_s=0, attempt_s=SURVEY_S)))
            except UnreachableError:
                self._absent_until[archive.address] = time.monotonic() + ABSENT_S
            else:
                self._absent_until.pop(archive.address, None)
        return found

    def _failure(
        self, found: Sequence[tuple[Archive, dict[str, Any]]], purpose: str, timeout_s: float
    ) -> UnreachableError:
        shown = self.address.replace(REPLICA_SEPARATOR, ", ")
        if not found:
            return UnreachableError(
                f"none of the archives at {shown} answered within {timeout_s:g} s: are the brokers running there, and "
                "can this machine reach them?"
            )
        ends = ", ".join(f"{archive.address} ends at {info['next_offset']}" for archive, info in found)
        return UnreachableError(
            f"none of the archives at {shown} {purpose} ({ends}), also after {timeout_s:g} s: are the brokers of the "
            "others running?"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the connections."""
        return type(self), (self.address, self._access)


LogArchive: TypeAlias = Archive | Replicas
"""How one log is read and written."""


def open_archive(address: str, access: ArchiveAccess) -> LogArchive:
    """Return the client of an archive, or of several replicas."""
    return Replicas(address, access) if REPLICA_SEPARATOR in address else Archive(address, access)


def _check_same_log(found: Sequence[tuple[Archive, dict[str, Any]]]) -> None:
    """Raise OptionError if these are not replicas of one log, and DataLossError if they differ below their ends."""
    furthest, info = max(found, key=lambda each: int(each[1]["next_offset"]))
    for archive, other in found:
        if other["log_id"] != info["log_id"]:
            raise OptionError(
                f"the archives at {furthest.address} and {archive.address} have the logs {info['log_id']} and "
                f"{other['log_id']}: only replicas of one log are separated by {REPLICA_SEPARATOR}, brokers by commas"
            )
        end = int(other["next_offset"])
        if not other.get("epochs") or not info.get("epochs"):  # of an older version
            continue
        same = same_below(to_epochs(other["epochs"]), to_epochs(info["epochs"]), int(info["next_offset"]))
        if same < end:
            raise DataLossError(
                f"the archives at {furthest.address} and {archive.address} are not replicas of one log: from offset "
                f"{same} on they have different messages. Name only those of the cluster"
            )
