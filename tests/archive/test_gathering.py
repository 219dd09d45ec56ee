"""Many small pieces of rows make few batches, and all rows arrive."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.archive import logs

from godwit.archive import gathering
from godwit.archive.gathering import Gathering
from godwit.archive.requests import BadRequestError, StageRequest
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenRightsError
from godwit.broker.access import TokenRights
from godwit.server.archive_pipe import split_blocks
from godwit.store.block import decode_block
from godwit.wire.entry import Entry

RIGHTS = TokenRights(publish=("a",))


def staged(folder: Path, *pieces: pa.RecordBatch) -> list[Entry]:
    with Stages(folder).begin(StageRequest("q", 1, 0, 0, "p")) as stage:
        made = Gathering(stage, "p", RIGHTS)
        for piece in pieces:
            made.add(piece)
        made.finish()
    (file,) = folder.iterdir()
    pairs = [pair for body in split_blocks(file.read_bytes()) for pair in decode_block(body)]
    assert made.count == sum(entry.count for _, entry in pairs)
    assert [offset for offset, _ in pairs] == sorted({offset for offset, _ in pairs})
    return [entry for _, entry in pairs]


def payloads(entries: list[Entry]) -> list[bytes]:
    return [row["payload"] for row in logs.rows_of([(0, entry) for entry in entries])]


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"topic": ["a"] * (stop - start), "payload": [b"%d" % number for number in range(start, stop)]}
    )


def test_pieces_are_gathered(tmp_path: Path) -> None:
    entries = staged(tmp_path, *[rows(start, start + 3) for start in range(0, 300, 3)])
    assert [entry.count for entry in entries] == [300]
    assert payloads(entries) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize(("most_rows", "most_bytes"), [(7, 10**9), (10**9, 100), (1, 1)])
def test_only_so_much_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int, most_bytes: int) -> None:
    monkeypatch.setattr(gathering, "GATHERED_ROWS", most_rows)
    monkeypatch.setattr(gathering, "GATHERED_BYTES", most_bytes)
    entries = staged(tmp_path, rows(0, 5), rows(5, 10), rows(10, 40), rows(40, 41), rows(41, 41))
    assert payloads(entries) == [b"%d" % number for number in range(41)]
    assert max(entry.count for entry in entries) <= most_rows


def test_topics_that_the_token_does_not_allow(tmp_path: Path) -> None:
    with pytest.raises(TokenRightsError, match="may not publish to 'b': it may publish to 'a'"):
        staged(tmp_path, rows(0, 5), pa.RecordBatch.from_pydict({"topic": ["b"], "payload": [b""]}))
    assert not list(tmp_path.iterdir())


def test_batches_of_a_stage_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_COMMIT_BATCHES", 3)
    monkeypatch.setattr(gathering, "GATHERED_ROWS", 10)
    assert len(staged(tmp_path, rows(0, 30))) == 3
    with pytest.raises(BadRequestError, match="more than 3 batches"):
        staged(tmp_path, rows(0, 31))
