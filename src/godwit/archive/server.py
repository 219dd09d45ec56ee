"""The Flight server: the calls of the protocol, and the translation of errors to those of Flight.

an invalid request                FlightServerError, with `extra_info`: {"kind": "bad_request"}
lost messages                     FlightServerError, with `extra_info`: {"kind": "data_loss", "lost": [[begin, end]]}
an older copy of the log          FlightServerError, with `extra_info`: {"kind": "replaced", "same_below": offset}
a failure of the disk or the log  FlightServerError; the details are in the broker's log
too many calls, or no room        FlightUnavailableError: try again later
no token, or an unknown one       FlightUnauthenticatedError
not allowed with this token       FlightUnauthorizedError
anything else                     FlightInternalError; the details are in the broker's log

Only Flight's own errors reach a client as a sentence: for all others Flight sends the traceback.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from traceback import format_exception
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from godwit.archive.actions import ACTIONS, Actions, CommitError, topic_info
from godwit.archive.call_limits import BusyError, CallLimit, Uploads
from godwit.archive.columns import schema_of
from godwit.archive.range_reader import (
    FULL,
    LEAN,
    LostMessagesError,
    RangePiece,
    RangeReader,
    ReaderPool,
    ReplacedLogError,
    StreamSizes,
)
from godwit.archive.requests import BadRequestError, ReadRequest, read_request, stage_request
from godwit.archive.staged_rows import StageWriter, check_schema
from godwit.archive.stages import Stages, StagesFullError
from godwit.archive.tokens import MIDDLEWARE, TokenCheck, TokenFile, TokenRightsError, require, rights_of
from godwit.errors import StorageError
from godwit.server.archive_pipe import CallCounts

MAX_STREAMS: Final = 128
"""Limit of concurrent reads. Each has a thread for as long as its client takes."""
FULL_STREAMS: Final = 8
"""With more reads, each uses small chunks and does not read ahead, so that memory is limited with slow clients."""
MAX_UPLOADS: Final = 32
MAX_FLIGHTS: Final = 10_000
"""Limit of topics in a list of flights, which Flight holds in memory; the action `topics` returns any number."""
MAX_ACTIONS: Final = 64
"""Limit of concurrent actions and requests for information."""
BAD_REQUEST: Final = b'{"kind": "bad_request"}'


class ArchiveServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves from its construction until the process ends."""

    def __init__(
        self,
        location: str,
        *,
        readers: ReaderPool,
        stages: Stages,
        actions: Actions,
        warn: Callable[[str], None],
        tokens: TokenFile | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Start to serve.

        Args:
            location: Address, such as grpc://127.0.0.1:50001.
            readers: Read the log.
            stages: The folder of staged writes.
            actions: Executes actions.
            warn: Called with warnings for the broker's log.
            tokens: Required tokens; None if every client may read and write.
            certificate: Certificate and key for TLS, PEM.
        """
        self._readers = readers
        self._stages = stages
        self._actions = actions
        self._warn = warn
        self._streams = CallLimit("reads", MAX_STREAMS)
        self._uploads = Uploads(MAX_UPLOADS)
        self._action_limit = CallLimit("requests", MAX_ACTIONS)
        self._counting = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        super().__init__(
            location,
            tls_certificates=None if certificate is None else [certificate],
            middleware=None if tokens is None else {MIDDLEWARE: TokenCheck(tokens)},
        )

    # -- the log's past -----------------------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with self._counted("list"), self._action_limit.enter():
            for topic in self._actions.topics(criteria, rights_of(context))[:MAX_FLIGHTS]:
                request = msgspec.json.encode({"filters": [topic.name]})
                yield flight.FlightInfo(
                    schema_of(self._readers.log_id),
                    flight.FlightDescriptor.for_command(request),
                    [flight.FlightEndpoint(request, [])],
                    -1,
                    -1,
                    app_metadata=msgspec.json.encode(topic_info(topic)),
                )

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._counted("info"), self._action_limit.enter():
            request = read_request(_command(descriptor))
            require(rights_of(context).read_problem(request.filters))
            reading = self._readers.ask(lambda reader: RangeReader(request, reader))
            ticket = msgspec.structs.replace(
                request, start=reading.start, end=reading.end, gaps_known_below=reading.gaps_known_below
            )
            info = {
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
                app_metadata=msgspec.json.encode(info),
            )

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._counted("get"):
            request = read_request(ticket.ticket)
            require(rights_of(context).read_problem(request.filters))
            stream = self._stream(request)
            schema = next(stream)  # raises errors of the request before the stream begins
            return flight.GeneratorStream(schema, stream)

    def _stream(self, request: ReadRequest) -> Iterator[Any]:
        """Yield the schema, and then the batches. While one is sent, the next is made."""
        with self._streams.enter():
            reading = self._readers.ask(lambda reader: RangeReader(request, reader))
            yield reading.schema
            coming: Future[RangePiece | None] | None = None
            while True:
                sizes = FULL if self._streams.active <= FULL_STREAMS else LEAN
                with self._translate_errors("get"):
                    piece = (coming or self._begin(reading, sizes)).result()
                if piece is None:
                    return
                coming = self._begin(reading, sizes) if sizes is FULL else None
                yield piece.batch, pa.py_buffer(piece.metadata)

    def _begin(self, reading: RangeReader, sizes: StreamSizes) -> Future[RangePiece | None]:
        return self._readers.start(lambda reader: reading.next_piece(reader, sizes))

    # -- staged writes ------------------------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._counted("put"), self._uploads.enter(context.peer()) as upload:
            request = stage_request(_command(descriptor))
            rights = rights_of(context)
            require(rights.staging_problem())
            # Only the broker knows which names have a secret: it checks them when it appends the rows.
            require(rights.name_problem(request.publisher, has_secret=False))
            check_schema(reader.schema)
            with self._stages.begin(request) as stage:
                writing = StageWriter(stage, request.publisher, rights)
                for chunk in reader:
                    if chunk.data is not None:
                        writing.add(chunk.data)
                        upload.handle_rows()
                if context.is_cancelled():  # a broken connection ends the rows like a complete upload
                    raise flight.FlightCancelledError("the upload was interrupted: stage the rows again")
                writing.finish()
            writer.write(pa.py_buffer(msgspec.json.encode({"rows": writing.count})))

    def expire_uploads(self) -> int:
        """End connections whose uploads have been stalled for very long, and return their number."""
        return self._uploads.expire()

    # -- everything else ----------------------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with self._counted("action"), self._action_limit.enter():
            yield from self._actions.answer(action.type, action.body.to_pybytes(), rights_of(context))

    def counts(self) -> CallCounts:
        """Return the calls of clients so far."""
        with self._counting:
            return CallCounts(dict(self._calls), dict(self._failed), self._streams.active + self._uploads.active)

    def _counted(self, call: str) -> AbstractContextManager[None]:
        """Count a call, and raise its errors as those of Flight."""
        with self._counting:
            self._calls[call] += 1
        return self._translate_errors(call)

    @contextmanager
    def _translate_errors(self, call: str) -> Iterator[None]:
        """Raise errors as those that Flight sends to the client, and count them."""
        try:
            with self._translated():
                yield
        except flight.FlightError:
            with self._counting:
                self._failed[call] += 1
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightError:
            raise
        except (BadRequestError, pa.ArrowInvalid) as error:
            raise flight.FlightServerError(str(error), BAD_REQUEST) from None
        except TokenRightsError as error:
            raise flight.FlightUnauthorizedError(str(error)) from None
        except (LostMessagesError, ReplacedLogError) as error:
            raise flight.FlightServerError(str(error), error.details) from None
        except (BusyError, StagesFullError) as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except CommitError as error:
            raise flight.FlightServerError(str(error)) from None
        except MemoryError:
            raise flight.FlightUnavailableError(
                "the archive does not have enough memory for this request: send or request less, or try again later"
            ) from None
        except (StorageError, OSError) as error:
            self._warn(str(error))
            raise flight.FlightServerError(
                "the disk or the log of the archive failed: the broker's log has the details"
            ) from None
        except Exception as error:
            self._warn("".join(format_exception(error)))
            raise flight.FlightInternalError(
                "the archive failed to execute this request: the broker's log has the details"
            ) from None


def _command(descriptor: Any) -> bytes:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise BadRequestError("the descriptor is a path: give a command, which is JSON")
    command: bytes = descriptor.command
    return command
