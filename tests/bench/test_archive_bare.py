"""A Flight server that has everything ready: that it sends its table, batch for batch."""

from __future__ import annotations

import threading

import pyarrow as pa
from pyarrow import flight

from godwit_bench.archive_bare import BareServer
from godwit_bench.archive_reading import open_stream


def test_it_sends_what_it_has() -> None:
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
