"""Questions to the archive, and commits that are done once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.archive import logs
from tests.archive.running import Appender, log_in

from godwit.archive import actions
from godwit.archive.actions import Actions, CommitError
from godwit.archive.call_limits import BusyError
from godwit.archive.columns import ALL_COLUMNS
from godwit.archive.range_reader import ReaderPool
from godwit.archive.requests import BadRequestError, StageRequest
from godwit.archive.staged_rows import staged_entries
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenRightsError
from godwit.broker.access import TokenRights
from godwit.server.archive_pipe import CommitDone, join_blocks
from godwit.store.block import encode_blocks
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import TopicRow

PLUS = b'{"filters": ["t/+"]}'


class Stand:
    """A log with its folder of staged files, and a store that appends to it."""

    def __init__(self, folder: Path, store: SqliteStore) -> None:
        self.store = store
        self.readers = ReaderPool(store.path)
        self.stages = Stages(folder / "stages")
        self.appender = Appender(store, folder / "stages")
        self.actions = Actions(self.readers, self.stages, self.appender)

    def ask(self, kind: str, **request: Any) -> dict[str, Any]:
        (answer,) = self.actions.answer(kind, json.dumps(request).encode(), TokenRights())
        found: dict[str, Any] = json.loads(answer)
        return found

    def stage(self, payload: bytes, *, batch: int = 1, partition: int = 0, attempt: int = 0) -> None:
        rows = pa.RecordBatch.from_pydict({"topic": ["a"], "payload": [payload]})
        with self.stages.begin(StageRequest("q", batch, partition, attempt, "p")) as stage:
            stage.write(join_blocks([row.body for row in encode_blocks(staged_entries([rows], "p", logs.NOW_US), 0)]))
            stage.finish()

    def commit(self, *parts: tuple[int, int], batch: int = 1) -> dict[str, Any]:
        named = [{"partition": partition, "attempt": attempt} for partition, attempt in parts]
        return self.ask("stage_commit", query="q", batch=batch, parts=named)

    def payloads(self) -> list[bytes]:
        return [row["payload"] for row in logs.rows_of(self.store.read(0, 2**30).entries)]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with log_in(tmp_path) as store:
        made = Stand(tmp_path, store)
        yield made
        made.readers.close()


def test_info(stand: Stand) -> None:
    stand.store.append([logs.make_entry(payloads=[b"1", b"2"])])
    assert stand.ask("info") == {
        "log_id": logs.LOG_ID.hex(),
        "first_offset": 0,
        "next_offset": 2,
        "marks": {},
        "epochs": [[logs.LOG_ID[:8].hex(), 0]],
        "columns": list(ALL_COLUMNS),
        "accepts_commits": True,
    }


def test_offset_for_time(stand: Stand) -> None:
    for number in range(3):
        stand.store.append([logs.make_entry(received_us=logs.NOW_US + number)])
    asked = [stand.ask("offset_for_time", time_us=logs.NOW_US + number)["offset"] for number in (-(2**60), 0, 1, 9)]
    assert asked == [0, 0, 1, 3]


def test_topics_in_pages(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "PAGE_TOPICS", 2)
    topics = [TopicRow(f"t/{number}", number, 10, 5) for number in range(3)]
    stand.store.append([], [*topics, TopicRow("other")])
    pages = [json.loads(page)["topics"] for page in stand.actions.answer("topics", PLUS, TokenRights())]
    assert [[topic["name"] for topic in page] for page in pages] == [["t/0", "t/1"], ["t/2"]]
    assert pages[1][0] == {"name": "t/2", "messages": 2, "payload_bytes": 10, "last_us": 5}
    assert stand.ask("topics", filters=["unused"]) == {"topics": []}


def test_an_action_that_is_not_there(stand: Stand) -> None:
    with pytest.raises(BadRequestError, match="no action 'x': choose from info, "):
        stand.actions.answer("x", b"", TokenRights())


def test_a_commit_appends_in_the_order_of_partitions_and_is_done_once(stand: Stand) -> None:
    for partition in (2, 0, 1):
        stand.stage(b"%d" % partition, partition=partition)
    stand.stage(b"speculative", partition=1, attempt=7)
    assert stand.commit((1, 0), (2, 0), (0, 0)) == {"first_offset": 0, "count": 3, "was_known": False}
    assert stand.payloads() == [b"0", b"1", b"2"]
    again = stand.commit((1, 0), (2, 0), (0, 0))  # its answer was lost, and so are its files
    assert again["was_known"] is True
    stand.stage(b"retry", attempt=9)
    assert stand.commit((0, 9))["was_known"] is True
    assert stand.payloads() == [b"0", b"1", b"2"]
    assert stand.appender.asked == 1
    assert stand.ask("stage_abort", query="q", batch=1) == {"removed": 0}  # nothing was left behind


def test_a_batch_without_rows_is_remembered(stand: Stand) -> None:
    assert stand.commit(batch=4)["count"] == 0
    assert stand.commit(batch=3)["was_known"] is True
    assert stand.commit(batch=5)["was_known"] is False


def test_a_batch_far_above_the_last_one_is_refused(stand: Stand) -> None:
    stand.commit(batch=4)
    with pytest.raises(BadRequestError, match="more than 1000000 above its last one, 4: count on from that one"):
        stand.commit(batch=1_000_005)
    assert stand.appender.asked == 1
    assert stand.commit(batch=1_000_004)["was_known"] is False


def test_parts_that_are_not_there(stand: Stand) -> None:
    stand.stage(b"x")
    with pytest.raises(CommitError, match="not all parts of batch 1 of 'q' are staged here"):
        stand.commit((0, 0), (1, 0))
    assert stand.appender.asked == 0


def test_what_the_broker_refuses_can_be_tried_again(stand: Stand) -> None:
    stand.stage(b"x")
    stand.appender.problem = "the disk is full"
    with pytest.raises(CommitError, match="the disk is full"):
        stand.commit((0, 0))
    stand.appender.problem = ""
    assert stand.commit((0, 0))["count"] == 1


def test_a_broker_that_does_not_answer(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(query: str, batch: int, files: list[str], rights: TokenRights, timeout_s: float) -> CommitDone | None:
        return None

    monkeypatch.setattr(stand.appender, "commit", silent)
    stand.stage(b"x")
    with pytest.raises(BusyError, match="has not answered for 60 s: ask again"):
        stand.commit((0, 0))
    monkeypatch.undo()
    assert stand.commit((0, 0))["count"] == 1  # nothing was thrown away


def test_a_token_limits_questions_and_staging(stand: Stand) -> None:
    stand.store.append([], [TopicRow("t/1"), TopicRow("other")])
    home = TokenRights(read=("t/#",), publish=())
    assert len(list(stand.actions.answer("topics", PLUS, home))) == 1
    for kind, request in (
        ("topics", b"{}"),
        ("topics", b'{"filters": ["t/1", "other"]}'),
        ("measure", b'{"start": 0, "end": 0}'),
        ("stage_commit", b'{"query": "q", "batch": 1, "parts": []}'),
        ("stage_abort", b'{"query": "q", "batch": 1}'),
    ):
        with pytest.raises(TokenRightsError, match="the token may"):
            list(stand.actions.answer(kind, request, home))
    assert stand.appender.asked == 0
    alerts = TokenRights(publish=("alerts/#",))
    assert list(stand.actions.answer("stage_commit", b'{"query": "q", "batch": 1, "parts": []}', alerts))
    assert stand.appender.rights == alerts
