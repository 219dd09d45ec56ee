"""The Flight server: each call of the protocol to the part that answers it, our errors to those that clients know.

refused, whatever is tried again     ArrowInvalid
gone or damaged                      FlightServerError, with `extra_info`: {"kind": "data_loss", "lost": [[begin, end]]}
too much at once, or no room         FlightUnavailableError: try again later
no token, or a wrong one             FlightUnauthenticatedError
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from godwit.archive.actions import ACTIONS, Actions
from godwit.archive.columns import schema_of
from godwit.archive.gate import BusyError, Gate
from godwit.archive.losses import DataLossError
from godwit.archive.readers import Readers
from godwit.archive.reading import FULL, LEAN, Piece, Reading, Sizes
from godwit.archive.requests import BadRequestError, ReadRequest, read_request, stage_request
from godwit.archive.stages import MAX_STAGE_BYTES, Stage, Stages, StagesFullError
from godwit.archive.staging import check_schema, staged_entries
from godwit.archive.tokens import TokenCheck, TokenFile
from godwit.errors import StorageError
from godwit.server.archive_pipe import join_blocks
from godwit.store.block import encode_blocks

MAX_STREAMS: Final = 128
"""Readings at once. Each has a thread, which a client that does not read holds on to."""
FULL_STREAMS: Final = 8
"""With more than these, each has small chunks and none is read ahead: memory stays bounded when nobody reads on."""
MAX_UPLOADS: Final = 32
MAX_FLIGHTS: Final = 10_000
"""Topics in a list of flights, which Flight holds in memory; the action `topics` gives any number."""
MAX_QUESTIONS: Final = 64
STAGE_ROWS: Final = 65_536
"""Rows of a stage that are worked on at once."""


class ArchiveServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens from its making on, until the process ends."""

    def __init__(
        self,
        location: str,
        *,
        readers: Readers,
        stages: Stages,
        actions: Actions,
        tokens: TokenFile | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`certificate`: with its key, both PEM."""
        self._readers = readers
        self._stages = stages
        self._actions = actions
        self._streams = Gate("readings", MAX_STREAMS)
        self._uploads = Gate("stages", MAX_UPLOADS)
        self._questions = Gate("requests", MAX_QUESTIONS)
        super().__init__(
            location,
            tls_certificates=None if certificate is None else [certificate],
            middleware=None if tokens is None else {"tokens": TokenCheck(tokens)},
        )

    # -- the log's past -----------------------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with _told(), self._questions.entered():
            for topic in self._actions.topics(criteria)[:MAX_FLIGHTS]:
                request = msgspec.json.encode({"filters": [topic.name]})
                yield flight.FlightInfo(
                    schema_of(self._readers.log_id),
                    flight.FlightDescriptor.for_command(request),
                    [flight.FlightEndpoint(request, [])],
                    -1,
                    -1,
                    app_metadata=msgspec.json.encode(topic),
                )

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with _told(), self._questions.entered():
            request = read_request(_command(descriptor))
            reading = self._readers.ask(lambda reader: Reading(request, reader))
            ticket = msgspec.structs.replace(
                request, start=reading.start, end=reading.end, gaps_known_below=reading.gaps_known_below
            )
            told = {
                "start": reading.start,
                "end": reading.end,
                "gaps_known_below": reading.gaps_known_below,
                "first_offset": reading.first_offset,
            }
            return flight.FlightInfo(
                reading.schema,
                descriptor,
                [flight.FlightEndpoint(msgspec.json.encode(ticket), [])],
                -1,
                -1,
                app_metadata=msgspec.json.encode(told),
            )

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with _told():
            return flight.SchemaResult(schema_of(self._readers.log_id, read_request(_command(descriptor)).columns))

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _told():
            request = read_request(ticket.ticket)
            stream = self._stream(request)
            schema = next(stream)  # what is wrong with the request is found before the stream begins
            return flight.GeneratorStream(schema, stream)

    def _stream(self, request: ReadRequest) -> Iterator[Any]:
        """The schema, and then the batches. While the client takes one, the next is made."""
        with self._streams.entered():
            reading = self._readers.ask(lambda reader: Reading(request, reader))
            yield reading.schema
            coming: Future[Piece | None] | None = None
            while True:
                sizes = FULL if self._streams.inside <= FULL_STREAMS else LEAN
                with _told():
                    piece = (coming or self._begin(reading, sizes)).result()
                if piece is None:
                    return
                coming = self._begin(reading, sizes) if sizes is FULL else None
                yield piece.batch, pa.py_buffer(piece.metadata)

    def _begin(self, reading: Reading, sizes: Sizes) -> Future[Piece | None]:
        return self._readers.start(lambda reader: reading.next_piece(reader, sizes))

    # -- staged writes ------------------------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _told(), self._uploads.entered():
            request = stage_request(_command(descriptor))
            check_schema(reader.schema)
            with self._stages.begin(request) as stage:
                count = 0
                for chunk in reader:
                    if chunk.data is not None:
                        count = _write(stage, chunk.data, request.publisher, count)
                if context.is_cancelled():  # a connection that broke ends the rows as well as their end does
                    raise flight.FlightCancelledError("the rows broke off: stage them again")
                stage.finish()
            writer.write(pa.py_buffer(msgspec.json.encode({"rows": count})))

    # -- everything else ----------------------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with _told(), self._questions.entered():
            yield from self._actions.answer(action.type, action.body.to_pybytes())


def _command(descriptor: Any) -> bytes:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise BadRequestError("the descriptor is a path: give a command, which is JSON")
    command: bytes = descriptor.command
    return command


def _write(stage: Stage, rows: pa.RecordBatch, publisher: str, count: int) -> int:
    """Adds rows to a stage that has so many; gives how many it has then."""
    if rows.get_total_buffer_size() > MAX_STAGE_BYTES:
        raise BadRequestError(
            f"a batch of rows is longer than the {MAX_STAGE_BYTES} bytes of a stage: send smaller ones"
        )
    for start in range(0, rows.num_rows, STAGE_ROWS):
        entries = staged_entries(rows.slice(start, STAGE_ROWS), publisher, time.time_ns() // 1000)
        stage.write(join_blocks([block.body for block in encode_blocks(entries, count)]))
        count += sum(entry.count for entry in entries)
    return count


@contextmanager
def _told() -> Iterator[None]:
    """Our errors as those that Flight carries to the client."""
    try:
        yield
    except BadRequestError as error:
        raise pa.ArrowInvalid(str(error)) from error
    except DataLossError as error:
        raise flight.FlightServerError(str(error), error.details) from error
    except (BusyError, StagesFullError) as error:
        raise flight.FlightUnavailableError(str(error)) from error
    except StorageError as error:
        raise flight.FlightServerError(str(error)) from error
