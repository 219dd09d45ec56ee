"""A client that counts rows: against a server whose rows are known."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe

import pyarrow as pa
import pytest

from godwit.errors import GodwitError
from godwit_bench.archive_bare import BareServer
from godwit_bench.archive_reading import read_for_ever, rows_per_s
from godwit_bench.stage import Stage, hear

ROWS = 1000


def serve(pipe: Pipe) -> None:
    server = BareServer("grpc://127.0.0.1:0", pa.table({"offset": list(range(ROWS))}))
    pipe.send(f"grpc://127.0.0.1:{server.port}")
    server.serve()


def test_rows_are_counted() -> None:
    with Stage() as stage:
        server = hear(stage.start(serve), str)
        assert rows_per_s(stage, server, 0.1, ROWS) > ROWS
        read_for_ever(stage, server, ROWS)


def test_missing_rows_are_an_error() -> None:
    with Stage() as stage:
        server = hear(stage.start(serve), str)
        with pytest.raises(GodwitError, match="1001 messages are in the log, and 1000 came"):
            rows_per_s(stage, server, 0.1, ROWS + 1)
        with pytest.raises(GodwitError, match="1001 messages are in the log, and 1000 came"):
            read_for_ever(stage, server, ROWS + 1)
