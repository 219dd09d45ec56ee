"""A client of the archive that uses each of its calls once and without retries, for tests.

with ArchiveClient("grpc://127.0.0.1:50001") as archive:
    for batch in archive.read(["home/#"]):
        ...
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight


class ReceivedPiece(NamedTuple):
    """Rows of the log and their metadata."""

    batch: pa.RecordBatch
    next_offset: int
    """Where to continue after these rows."""
    lost: list[tuple[int, int]]
    """Ranges of offsets, begin and end, that were skipped because their messages are lost."""


class ArchiveClient:
    """One connection to one archive. Errors are those of pyarrow."""

    def __init__(
        self, url: str, token: str | None = None, certificates: bytes | None = None, timeout_s: float = 120.0
    ) -> None:
        """`certificates`: trusted with grpc+tls, PEM. `timeout_s`: for short requests, not for reading."""
        self._client = flight.connect(url, **({} if certificates is None else {"tls_root_certs": certificates}))
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self._brief = flight.FlightCallOptions(timeout=timeout_s, headers=headers)
        self._long = flight.FlightCallOptions(headers=headers)

    def info(self) -> dict[str, Any]:
        """Return log_id, first_offset, next_offset, marks (retention floors) and epochs."""
        return self._ask("info", {})

    def offset_for_time(self, time_us: int) -> int:
        """Return the first offset received at or after a time, or the next one."""
        return int(self._ask("offset_for_time", {"time_us": time_us})["offset"])

    def measure(self, start: int, end: int, filters: Sequence[str] = (), **limits: int) -> dict[str, int]:
        """Return the end of a range with max_rows or max_bytes: offset, and rows and bytes before it."""
        return self._ask("measure", {"start": start, "end": end, "filters": list(filters), **limits})

    def topics(self, filters: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield name, messages, payload_bytes and last_us of each topic."""
        action = flight.Action("topics", json.dumps({"filters": list(filters)}).encode())
        for result in self._client.do_action(action, self._brief):
            yield from json.loads(result.body.to_pybytes())["topics"]

    def read(
        self, filters: Sequence[str] = (), start: int | None = None, end: int | None = None, **more: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. `more`: further fields of the request."""
        for piece in self.pieces(filters, start, end, **more):
            if piece.batch.num_rows:
                yield piece.batch

    def pieces(
        self, filters: Sequence[str] = (), start: int | None = None, end: int | None = None, **more: Any
    ) -> Iterator[ReceivedPiece]:
        """Yield the rows of a range with their metadata."""
        request = {"filters": list(filters), "start": start, "end": end, **more}
        reader = self._client.do_get(flight.Ticket(json.dumps(request).encode()), self._long)
        try:
            for chunk in reader:
                metadata = json.loads(chunk.app_metadata.to_pybytes())
                yield ReceivedPiece(
                    chunk.data, metadata["next"], [(begin, stop) for begin, stop in metadata.get("lost", [])]
                )
        finally:
            reader.cancel()  # for a caller that stops early; does nothing at the end

    def stage(
        self,
        rows: pa.Table | Iterable[pa.RecordBatch],
        *,
        query: str,
        batch: int,
        partition: int,
        attempt: int,
        publisher: str,
    ) -> None:
        """Stage rows under this name."""
        name = {"query": query, "batch": batch, "partition": partition, "attempt": attempt, "publisher": publisher}
        batches = iter(rows.to_batches() if isinstance(rows, pa.Table) else rows)
        first = next(batches, None)
        schema = rows.schema if isinstance(rows, pa.Table) else None if first is None else first.schema
        if schema is None:
            schema = pa.schema([("topic", pa.string()), ("payload", pa.binary())])
        descriptor = flight.FlightDescriptor.for_command(json.dumps(name).encode())
        writer, answer = self._client.do_put(descriptor, schema, self._long)
        count = 0
        with writer:
            while first is not None:
                writer.write_batch(first)
                count += first.num_rows
                first = next(batches, None)
            writer.done_writing()
            reply = answer.read()
        if reply is None or json.loads(reply.to_pybytes())["rows"] != count:
            raise flight.FlightServerError(f"the archive did not accept all {count} rows")

    def commit(self, query: str, batch: int, parts: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Append stages, (partition, attempt) each, and return first_offset, count and was_known."""
        named = [{"partition": partition, "attempt": attempt} for partition, attempt in parts]
        return self._ask("stage_commit", {"query": query, "batch": batch, "parts": named})

    def abort(self, query: str, batch: int) -> int:
        """Delete the stages of a batch, and return their number."""
        return int(self._ask("stage_abort", {"query": query, "batch": batch})["removed"])

    def _ask(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        (result,) = self._client.do_action(flight.Action(kind, json.dumps(request).encode()), self._brief)
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> ArchiveClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
