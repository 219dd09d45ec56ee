"""The benchmark of the archive: its logs, its reading client, its bare server, and a short real run.

The tests check the reported figures, never how fast they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from godwit.errors import GodwitError
from godwit.store.reader import LogReader
from godwit.wire.batch import Batch, Entry, decode_batch, encode_head
from godwit_bench import archive
from godwit_bench.archive import (
    FULL_BATCH_MESSAGES,
    MESSAGE_BYTES,
    PUBLISHERS,
    BareServer,
    fill_with_full_batches,
    fill_with_lone_messages,
    open_stream,
    read_forever,
    rows_per_s,
)
from godwit_bench.processes import ProcessGroup, receive_reply


def entries_of(data: Path) -> list[tuple[int, Entry]]:
    reader = LogReader.open(data / "log.sqlite")
    try:
        found: list[tuple[int, Entry]] = []
        offset, end = 0, reader.next_offset()
        while offset < end:
            piece = reader.read(offset, 1 << 20)
            found += piece.entries
            offset = piece.next_offset
        return found
    finally:
        reader.close()


def opened(entry: Entry) -> Batch:
    return decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)[0]


@pytest.mark.parametrize("fill", [fill_with_full_batches, fill_with_lone_messages])
def test_every_message_is_there(fill: Callable[[Path, int], int], tmp_path: Path) -> None:
    count = fill(tmp_path, 15_000)
    entries = entries_of(tmp_path)
    assert count >= 15_000
    assert entries[0][0] == 0
    assert all(offset + entry.count == follower for (offset, entry), (follower, _) in pairwise(entries))
    assert entries[-1][0] + entries[-1][1].count == count
    assert {len(payload) for payload in opened(entries[0][1]).payloads} == {MESSAGE_BYTES}


def test_batches_are_full(tmp_path: Path) -> None:
    fill_with_full_batches(tmp_path, 1)
    assert {entry.count for _, entry in entries_of(tmp_path)} == {FULL_BATCH_MESSAGES}


def test_messages_come_alone_from_many(tmp_path: Path) -> None:
    fill_with_lone_messages(tmp_path, PUBLISHERS, a_commit=2500)
    entries = [entry for _, entry in entries_of(tmp_path)]
    assert {entry.count for entry in entries} == {1}
    assert len({entry.publisher for entry in entries}) == len({entry.topic for entry in entries}) == PUBLISHERS


ROWS = 1000


def serve(pipe: Pipe) -> None:
    server = BareServer("grpc://127.0.0.1:0", pa.table({"offset": list(range(ROWS))}))
    pipe.send(f"grpc://127.0.0.1:{server.port}")
    server.serve()


def test_rows_are_counted() -> None:
    with ProcessGroup() as processes:
        server = receive_reply(processes.start(serve), str)
        began = time.perf_counter()
        rate = rows_per_s(processes, server, 0.1, ROWS)
        assert rate >= ROWS / (time.perf_counter() - began)  # all rows at least once, in a part of this time
        read, elapsed_s = receive_reply(processes.start(archive._read_for, server, 0.1, ROWS), tuple)
        assert read >= ROWS
        assert read % ROWS == 0
        assert elapsed_s >= 0.1
        read_forever(processes, server, ROWS)


def test_missing_rows_are_an_error() -> None:
    with ProcessGroup() as processes:
        server = receive_reply(processes.start(serve), str)
        with pytest.raises(GodwitError, match="1001 messages are in the log, and 1000 came"):
            rows_per_s(processes, server, 0.1, ROWS + 1)
        with pytest.raises(GodwitError, match="1001 messages are in the log, and 1000 came"):
            read_forever(processes, server, ROWS + 1)


def test_it_sends_its_table() -> None:
    batches = [
        pa.record_batch({"offset": [0, 1], "payload": [b"a", b"b"]}),
        pa.record_batch({"offset": [2], "payload": [b"c"]}),
    ]
    server = BareServer("grpc://127.0.0.1:0", pa.Table.from_batches(batches))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            assert [chunk.data for chunk in open_stream(client)] == batches
            assert open_stream(client).read_all().num_rows == 3
    finally:
        server.shutdown()
        thread.join()


def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = archive.run(folder=tmp_path, rounds=1, seconds=0.1, messages=20_000, on_round=rounds.append)
    assert report.bench == "archive"
    results = {result.name: result.value or 0.0 for result in report.results}
    assert rounds[-len(results) :] == list(results)
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "full_vs_bare_flight": results["full"] / results["bare_flight_full"],
        "single_vs_bare_flight": results["single"] / results["bare_flight_single"],
        "single_small_blocks_vs_bare_flight": results["single_small_blocks"] / results["bare_flight_single"],
        "forward_with_archive_vs_alone": results["forward_with_archive"] / results["forward_alone"],
    }
    assert list(tmp_path.iterdir()) == []
