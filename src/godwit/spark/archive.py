"""A client of one archive over Arrow Flight, for drivers and executors.

Transient errors (a restart of the archive, a broken connection, too many concurrent reads) are retried until the
timeout. Other errors are raised at once, with the archive's own text.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from godwit.spark.options import ArchiveAccess

ACTION_TIMEOUT_S: Final = 30.0
"""Time limit for one attempt at an action."""
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 2.0
_TRANSIENT: Final = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
_KEEPALIVE: Final = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]
"""Reads have no time limit; this detects an archive that stops during one."""
T = TypeVar("T")


class ArchiveError(Exception):
    """The archive refused a request, or did not answer in time."""


class UnreachableError(ArchiveError):
    """The archive did not answer in time."""


class RefusedError(ArchiveError):
    """The token is unknown to the archive, or does not allow the request."""


class DataLossError(ArchiveError):
    """Messages of the range are lost."""


class Archive:
    """A client of one archive. It connects on first use, and again after a failure."""

    def __init__(self, address: str, access: ArchiveAccess) -> None:
        self.address = address
        self._access = access
        self._client: flight.FlightClient | None = None
        headers = [] if access.token is None else [(b"authorization", b"Bearer " + access.token.encode())]
        self._action_options = flight.FlightCallOptions(
            timeout=min(access.timeout_s, ACTION_TIMEOUT_S), headers=headers
        )
        self._stream_options = flight.FlightCallOptions(headers=headers)
        self._headers = headers

    def info(self) -> dict[str, Any]:
        """Return log_id, first_offset, next_offset, marks and epochs of the archive's log."""
        return self.ask("info", {})

    def accepting(self) -> Archive:
        """Return the archive to write to: this one."""
        return self

    def ask(
        self, kind: str, request: dict[str, Any], *, timeout_s: float | None = None, attempt_s: float | None = None
    ) -> dict[str, Any]:
        """Return the answer to an action. Transient errors are retried for `timeout_s`, by default the access's own.

        One attempt takes at most `attempt_s`, by default ACTION_TIMEOUT_S.
        """
        options = self._action_options
        if attempt_s is not None:
            options = flight.FlightCallOptions(timeout=attempt_s, headers=self._headers)

        def once() -> dict[str, Any]:
            action = flight.Action(kind, json.dumps(request).encode())
            (result,) = self._connect().do_action(action, options)
            answer: dict[str, Any] = json.loads(result.body.to_pybytes())
            return answer

        return self._retry(once, self._access.timeout_s if timeout_s is None else timeout_s)

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
        """Yield the rows of a range of this log. After a broken connection, reading resumes at the next row."""
        for batch, _ in self.read_steps(
            log,
            start,
            end,
            topics=topics,
            columns=columns,
            fails_on_data_loss=fails_on_data_loss,
            gaps_known_below=gaps_known_below,
            epochs=epochs,
        ):
            if batch.num_rows:
                yield batch

    def read_steps(
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
        timeout_s: float | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows of a range of this log, each batch with the offset behind it; batches may be empty."""
        at = start
        timeout_s = self._access.timeout_s if timeout_s is None else timeout_s
        gives_up_at = time.monotonic() + timeout_s
        pause_s = FIRST_PAUSE_S
        while at < end:
            request: dict[str, Any] = {
                "filters": list(topics),
                "start": at,
                "end": end,
                "columns": list(columns),
                "fail_on_data_loss": fails_on_data_loss,
                "gaps_known_below": gaps_known_below,
            }
            if epochs:  # an archive of an older version does not know the field
                request["epochs"] = list(epochs)
            try:
                for batch, reached in self._stream(log, request):
                    yield batch, reached
                    at = reached
                    gives_up_at = time.monotonic() + timeout_s
                    pause_s = FIRST_PAUSE_S
                return
            except _TRANSIENT as error:
                self._disconnect()
                if time.monotonic() + pause_s > gives_up_at:
                    raise self._unreachable(error) from None
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            except pa.ArrowException as error:
                raise self._refusal(error) from None

    def _stream(self, log: str, request: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        reader = self._connect().do_get(flight.Ticket(json.dumps(request).encode()), self._stream_options)
        try:
            found = (reader.schema.metadata or {}).get(b"godwit.log_id", b"").decode()
            if found != log:
                raise DataLossError(
                    f"the archive at {self.address} has the log {found or '?'} now, and log {log} was asked for: "
                    "the broker's data folder was replaced"
                )
            for chunk in reader:
                yield chunk.data, int(json.loads(chunk.app_metadata.to_pybytes())["next"])
        finally:
            reader.cancel()  # for a task that was stopped during the read; no effect after the end

    def stage(self, name: dict[str, Any], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        """Stage rows under this name, and return their number. It is not retried, because the iterator is consumed."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(name).encode())
        count = 0
        try:
            writer, answer = self._connect().do_put(descriptor, schema, self._stream_options)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                    count += batch.num_rows
                writer.done_writing()
                reply = answer.read()
        except _TRANSIENT as error:
            raise self._unreachable(error) from None
        except pa.ArrowException as error:
            raise self._refusal(error) from None
        if reply is None or json.loads(reply.to_pybytes())["rows"] != count:
            raise ArchiveError(f"the archive at {self.address} did not store all {count} rows")
        return count

    # -- small parts --------------------------------------------------------------------------------------------------

    def _retry(self, once: Callable[[], T], timeout_s: float) -> T:
        gives_up_at = time.monotonic() + timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return once()
            except _TRANSIENT as error:
                self._disconnect()
                if time.monotonic() + pause_s > gives_up_at:
                    raise self._unreachable(error) from None
            except pa.ArrowException as error:
                raise self._refusal(error) from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _connect(self) -> flight.FlightClient:
        if self._client is None:
            certificate = self._access.certificate
            more = {} if certificate is None else {"tls_root_certs": certificate}
            self._client = flight.connect(self.address, generic_options=_KEEPALIVE, **more)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"the archive at {self.address} did not answer within {self._access.timeout_s:g} s ({_first_line(error)}): "
            "is the broker running there, with a data folder, and can this machine reach it?"
        )

    def _refusal(self, error: pa.ArrowException) -> ArchiveError:
        if isinstance(error, flight.FlightUnauthenticatedError):
            return RefusedError(
                f"the archive at {self.address} requires a valid token ({_first_line(error)}): "
                "give the option token or tokenFile"
            )
        if isinstance(error, flight.FlightUnauthorizedError):
            return RefusedError(f"the archive at {self.address}: {_first_line(error)}")
        if _kind(error) == "data_loss":
            return DataLossError(
                f"messages are lost in the archive at {self.address}: {_first_line(error)}. "
                "To continue without them set the option failOnDataLoss to false"
            )
        if _kind(error) == "replaced":
            return DataLossError(
                f"the archive at {self.address}: {_first_line(error)}, and its new messages have offsets that others "
                "had. Start with a new checkpoint and new tables"
            )
        return ArchiveError(f"the archive at {self.address}: {_first_line(error)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the connection."""
        return type(self), (self.address, self._access)


def _kind(error: pa.ArrowException) -> str:
    """Return the kind of error that the archive adds to its text."""
    try:
        extra = json.loads(getattr(error, "extra_info", b"") or b"{}")
    except ValueError:
        return ""
    return str(extra.get("kind", "")) if isinstance(extra, dict) else ""


def _first_line(error: Exception) -> str:
    """Return the archive's text, without the additions of Flight."""
    text = str(error).split("\n", 1)[0]
    return text.split(". Detail: ", 1)[0].removesuffix(".")
