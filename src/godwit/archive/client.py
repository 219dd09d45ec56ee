"""A thin client of the archive: all that it can do, with pyarrow and the standard library alone. Tests use it.

with ArchiveClient("grpc://127.0.0.1:50001") as archive:
    for batch in archive.read(["home/#"]):
        ...
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight


class Piece(NamedTuple):
    """Rows of the log, and what the archive says about them."""

    batch: pa.RecordBatch
    next_offset: int
    """Where to read on after these rows."""
    lost: list[tuple[int, int]]
    """Ranges of offsets, begin and end, that were passed over because they are gone."""


class ArchiveClient:
    """One connection to one archive. What the archive refuses is an exception of pyarrow with its sentence."""

    def __init__(
        self, url: str, token: str | None = None, certificates: bytes | None = None, timeout_s: float = 60.0
    ) -> None:
        """`certificates`: those to trust with grpc+tls, as PEM. `timeout_s`: for short requests, not for reading."""
        if token is not None and not (url.startswith(("grpc+tls:", "grpc+unix:")) or _is_here(url)):
            warnings.warn(
                f"the token for the archive at {url} is sent without encryption, and can be read and used by anyone on "
                "the way: give the archive a certificate and use grpc+tls://, or reach it through a tunnel",
                stacklevel=2,
            )
        self._client = flight.connect(url, **({} if certificates is None else {"tls_root_certs": certificates}))
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self._brief = flight.FlightCallOptions(timeout=timeout_s, headers=headers)
        self._long = flight.FlightCallOptions(headers=headers)

    def info(self) -> dict[str, Any]:
        """log_id, first_offset, next_offset, and marks: up to where messages of which filters were deleted."""
        return self._ask("info", {})

    def offset_for_time(self, time_us: int) -> int:
        """The first offset that was received at or after a time, the next one to come if none was."""
        return int(self._ask("offset_for_time", {"time_us": time_us})["offset"])

    def measure(self, start: int, end: int, filters: Sequence[str] = (), **limits: int) -> dict[str, int]:
        """How far from `start` on until max_rows or max_bytes: offset, and rows and bytes before it."""
        return self._ask("measure", {"start": start, "end": end, "filters": list(filters), **limits})

    def topics(self, filters: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """name, messages, payload_bytes and last_us of each topic."""
        action = flight.Action("topics", json.dumps({"filters": list(filters)}).encode())
        for result in self._client.do_action(action, self._brief):
            yield from json.loads(result.body.to_pybytes())["topics"]

    def read(
        self, filters: Sequence[str] = (), start: int | None = None, end: int | None = None, **more: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range. `more`: columns, fail_on_data_loss, gaps_known_below, as the archive's guide says."""
        for piece in self.pieces(filters, start, end, **more):
            if piece.batch.num_rows:
                yield piece.batch

    def pieces(
        self, filters: Sequence[str] = (), start: int | None = None, end: int | None = None, **more: Any
    ) -> Iterator[Piece]:
        """As read, with what the archive says about each batch."""
        request = {"filters": list(filters), "start": start, "end": end, **more}
        reader = self._client.do_get(flight.Ticket(json.dumps(request).encode()), self._long)
        try:
            for chunk in reader:
                told = json.loads(chunk.app_metadata.to_pybytes())
                yield Piece(chunk.data, told["next"], [(begin, stop) for begin, stop in told.get("lost", [])])
        finally:
            reader.cancel()  # a program that stops in the middle; nothing after the end

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
        """Put rows aside under this name. They are safe, and nobody sees them, until they are committed."""
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
            told = answer.read()
        if told is None or json.loads(told.to_pybytes())["rows"] != count:
            raise flight.FlightServerError(f"the archive has not taken all {count} rows: stage them again")

    def commit(self, query: str, batch: int, parts: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Append what was staged, (partition, attempt) each; once, however often it is asked.

        Gives first_offset, count, and was_known if this batch or a later one had been committed before.
        """
        named = [{"partition": partition, "attempt": attempt} for partition, attempt in parts]
        return self._ask("stage_commit", {"query": query, "batch": batch, "parts": named})

    def abort(self, query: str, batch: int) -> int:
        """Remove what was staged for a batch; gives how many stages there were."""
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


def _is_here(url: str) -> bool:
    """Return whether the host is certainly this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name, which may be any machine's
        return False
