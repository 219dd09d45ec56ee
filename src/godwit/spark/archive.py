"""One archive over Arrow Flight, for drivers and executors: pyarrow and the standard library alone.

What may pass (the archive is being restarted, a connection broke, too many read at once) is tried again until the
time-out; what cannot get better is an error at once, with the archive's own sentence.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from godwit.spark.options import Place

ANSWER_S: Final = 30.0
"""A short question is answered by then, or asked again."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_PASSING: Final = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
_KEEPALIVE: Final = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000)]
"""A read has no time limit, so that somebody must notice when the archive has stopped in the middle of one."""
T = TypeVar("T")


class ArchiveError(Exception):
    """The archive said no, or did not answer in time."""


class UnreachableError(ArchiveError):
    """It did not answer in time."""


class RefusedError(ArchiveError):
    """The archive does not know this token, or the token does not allow the request."""


class DataLossError(ArchiveError):
    """Messages of the range are gone."""


class Archive:
    """A connection to one archive, made when it is first needed, and again when it broke."""

    def __init__(self, address: str, place: Place) -> None:
        self.address = address
        self._place = place
        self._client: flight.FlightClient | None = None
        headers = [] if place.token is None else [(b"authorization", b"Bearer " + place.token.encode())]
        self._brief = flight.FlightCallOptions(timeout=min(place.timeout_s, ANSWER_S), headers=headers)
        self._long = flight.FlightCallOptions(headers=headers)

    def info(self) -> dict[str, Any]:
        """log_id, first_offset, next_offset, marks, epochs."""
        return self.ask("info", {})

    def ask(self, kind: str, request: dict[str, Any], *, patience_s: float | None = None) -> dict[str, Any]:
        """The answer to an action. `patience_s`: so long it is tried again, else for the time-out."""

        def once() -> dict[str, Any]:
            action = flight.Action(kind, json.dumps(request).encode())
            (result,) = self._connected().do_action(action, self._brief)
            answer: dict[str, Any] = json.loads(result.body.to_pybytes())
            return answer

        return self._patiently(once, self._place.timeout_s if patience_s is None else patience_s)

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
        """The rows of a range of this log. A connection that breaks is made again, and it goes on where it was."""
        at = start
        gave_up_at = time.monotonic() + self._place.timeout_s
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
            if epochs:  # else the archive may be of a version that does not know them
                request["epochs"] = list(epochs)
            try:
                for batch, reached in self._stream(log, request):
                    if batch.num_rows:
                        yield batch
                    at = reached
                    gave_up_at = time.monotonic() + self._place.timeout_s
                    pause_s = FIRST_PAUSE_S
                return
            except _PASSING as error:
                self._drop()
                if time.monotonic() + pause_s > gave_up_at:
                    raise self._unreachable(error) from None
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except pa.ArrowException as error:
                raise self._refusal(error) from None

    def _stream(self, log: str, request: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        reader = self._connected().do_get(flight.Ticket(json.dumps(request).encode()), self._long)
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
            reader.cancel()  # of a task that was stopped in the middle; nothing after the end

    def stage(self, name: dict[str, Any], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        """Puts rows aside under this name; gives how many. Not tried again: the rows are gone by then."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(name).encode())
        count = 0
        try:
            writer, answer = self._connected().do_put(descriptor, schema, self._long)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                    count += batch.num_rows
                writer.done_writing()
                told = answer.read()
        except _PASSING as error:
            raise self._unreachable(error) from None
        except pa.ArrowException as error:
            raise self._refusal(error) from None
        if told is None or json.loads(told.to_pybytes())["rows"] != count:
            raise ArchiveError(f"the archive at {self.address} has not taken all {count} rows")
        return count

    # -- small parts --------------------------------------------------------------------------------------------------

    def _patiently(self, once: Callable[[], T], patience_s: float) -> T:
        gives_up_at = time.monotonic() + patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return once()
            except _PASSING as error:
                self._drop()
                if time.monotonic() + pause_s > gives_up_at:
                    raise self._unreachable(error) from None
            except pa.ArrowException as error:
                raise self._refusal(error) from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            certificate = self._place.certificate
            more = {} if certificate is None else {"tls_root_certs": certificate}
            self._client = flight.connect(self.address, generic_options=_KEEPALIVE, **more)
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"the archive at {self.address} did not answer within {self._place.timeout_s:g} s ({_first_line(error)}): "
            "is the broker running there, with a data folder, and can this machine reach it?"
        )

    def _refusal(self, error: pa.ArrowException) -> ArchiveError:
        if isinstance(error, flight.FlightUnauthenticatedError):
            return RefusedError(
                f"the archive at {self.address} wants a token, or another one ({_first_line(error)}): "
                "give the option token or tokenFile"
            )
        if isinstance(error, flight.FlightUnauthorizedError):
            return RefusedError(f"the archive at {self.address}: {_first_line(error)}")
        if _kind(error) == "data_loss":
            return DataLossError(
                f"messages are gone from the archive at {self.address}: {_first_line(error)}. "
                "To go on without them set the option failOnDataLoss to false"
            )
        if _kind(error) == "replaced":
            return DataLossError(
                f"the archive at {self.address}: {_first_line(error)}, and its new messages have offsets that others "
                "had. Begin with a new checkpoint and new tables"
            )
        return ArchiveError(f"the archive at {self.address}: {_first_line(error)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to executors without its connection."""
        return type(self), (self.address, self._place)


def _kind(error: pa.ArrowException) -> str:
    """What the archive says of the error beside its sentence."""
    try:
        told = json.loads(getattr(error, "extra_info", b"") or b"{}")
    except ValueError:
        return ""
    return str(told.get("kind", "")) if isinstance(told, dict) else ""


def _first_line(error: Exception) -> str:
    """The archive's sentence, without what Flight adds to it."""
    text = str(error).split("\n", 1)[0]
    return text.split(". Detail: ", 1)[0].removesuffix(".")
