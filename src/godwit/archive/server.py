"""The Flight server: each call of the protocol to the part that answers it, our errors to those that clients know.

refused, whatever is tried again     FlightServerError, with `extra_info`: {"kind": "bad_request"}
gone or damaged                      FlightServerError, with `extra_info`: {"kind": "data_loss", "lost": [[begin, end]]}
an older copy of the log             FlightServerError, with `extra_info`: {"kind": "replaced", "same_below": offset}
trouble with the disk or the log     FlightServerError; what and where is told to those who run the broker
too much at once, or no room         FlightUnavailableError: try again later
no token, or a wrong one             FlightUnauthenticatedError
not allowed with this token          FlightUnauthorizedError
anything else                        FlightInternalError; as with the disk

Only errors of Flight's own reach a client as the sentence that they are: with all others, Flight sends the traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from traceback import format_exception
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from godwit.archive.actions import ACTIONS, Actions, CommitError, told
from godwit.archive.columns import schema_of
from godwit.archive.gate import BusyError, Gate
from godwit.archive.gathering import Gathering
from godwit.archive.losses import DataLossError, ReplacedLogError
from godwit.archive.readers import Readers
from godwit.archive.reading import FULL, LEAN, Piece, Reading, Sizes
from godwit.archive.requests import BadRequestError, ReadRequest, read_request, stage_request
from godwit.archive.stages import Stages, StagesFullError
from godwit.archive.staging import check_schema
from godwit.archive.tokens import MIDDLEWARE, TokenCheck, TokenFile, TokenRightsError, require, rights_of
from godwit.archive.uploads import Uploads
from godwit.errors import StorageError

MAX_STREAMS: Final = 128
"""Readings at once. Each has a thread, which a client that does not read holds on to."""
FULL_STREAMS: Final = 8
"""With more than these, each has small chunks and none is read ahead: memory stays bounded when nobody reads on."""
MAX_UPLOADS: Final = 32
MAX_FLIGHTS: Final = 10_000
"""Topics in a list of flights, which Flight holds in memory; the action `topics` gives any number."""
MAX_QUESTIONS: Final = 64
BAD_REQUEST: Final = b'{"kind": "bad_request"}'


class ArchiveServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens from its making on, until the process ends."""

    def __init__(
        self,
        location: str,
        *,
        readers: Readers,
        stages: Stages,
        actions: Actions,
        tell: Callable[[str], None],
        tokens: TokenFile | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`tell`: to those who run the broker. `certificate`: with its key, both PEM."""
        self._readers = readers
        self._stages = stages
        self._actions = actions
        self._tell = tell
        self._streams = Gate("readings", MAX_STREAMS)
        self._uploads = Uploads(MAX_UPLOADS)
        self._questions = Gate("requests", MAX_QUESTIONS)
        super().__init__(
            location,
            tls_certificates=None if certificate is None else [certificate],
            middleware=None if tokens is None else {MIDDLEWARE: TokenCheck(tokens)},
        )

    # -- the log's past -----------------------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with self._told(), self._questions.entered():
            for topic in self._actions.topics(criteria, rights_of(context))[:MAX_FLIGHTS]:
                request = msgspec.json.encode({"filters": [topic.name]})
                yield flight.FlightInfo(
                    schema_of(self._readers.log_id),
                    flight.FlightDescriptor.for_command(request),
                    [flight.FlightEndpoint(request, [])],
                    -1,
                    -1,
                    app_metadata=msgspec.json.encode(told(topic)),
                )

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._told(), self._questions.entered():
            request = read_request(_command(descriptor))
            require(rights_of(context).read_problem(request.filters))
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

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._told():
            request = read_request(ticket.ticket)
            require(rights_of(context).read_problem(request.filters))
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
                with self._told():
                    piece = (coming or self._begin(reading, sizes)).result()
                if piece is None:
                    return
                coming = self._begin(reading, sizes) if sizes is FULL else None
                yield piece.batch, pa.py_buffer(piece.metadata)

    def _begin(self, reading: Reading, sizes: Sizes) -> Future[Piece | None]:
        return self._readers.start(lambda reader: reading.next_piece(reader, sizes))

    # -- staged writes ------------------------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._told(), self._uploads.entered(context.peer()) as upload:
            request = stage_request(_command(descriptor))
            rights = rights_of(context)
            require(rights.staging_problem())
            # Only the broker knows which names have a secret: it looks when it appends the rows.
            require(rights.name_problem(request.publisher, has_secret=False))
            check_schema(reader.schema)
            with self._stages.begin(request) as stage:
                gathering = Gathering(stage, request.publisher, rights)
                for chunk in reader:
                    if chunk.data is not None:
                        gathering.add(chunk.data)
                        upload.move()
                if context.is_cancelled():  # a connection that broke ends the rows as well as their end does
                    raise flight.FlightCancelledError("the rows broke off: stage them again")
                gathering.finish()
            writer.write(pa.py_buffer(msgspec.json.encode({"rows": gathering.count})))

    def expire_uploads(self) -> int:
        """Ends connections whose uploads have not moved for very long; gives how many."""
        return self._uploads.expire()

    # -- everything else ----------------------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with self._told(), self._questions.entered():
            yield from self._actions.answer(action.type, action.body.to_pybytes(), rights_of(context))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Our errors as those that Flight carries to the client."""
        try:
            yield
        except flight.FlightError:
            raise
        except (BadRequestError, pa.ArrowInvalid) as error:
            raise flight.FlightServerError(str(error), BAD_REQUEST) from None
        except TokenRightsError as error:
            raise flight.FlightUnauthorizedError(str(error)) from None
        except (DataLossError, ReplacedLogError) as error:
            raise flight.FlightServerError(str(error), error.details) from None
        except (BusyError, StagesFullError) as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except CommitError as error:
            raise flight.FlightServerError(str(error)) from None
        except MemoryError:
            raise flight.FlightUnavailableError(
                "the archive has not enough memory for this now: send or ask for less at once, or try again in a while"
            ) from None
        except (StorageError, OSError) as error:
            self._tell(str(error))
            raise flight.FlightServerError(
                "the archive has trouble with its disk or the log: the messages of the broker say which"
            ) from None
        except Exception as error:
            self._tell("".join(format_exception(error)))
            raise flight.FlightInternalError(
                "the archive failed over this request: the messages of the broker say how"
            ) from None


def _command(descriptor: Any) -> bytes:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise BadRequestError("the descriptor is a path: give a command, which is JSON")
    command: bytes = descriptor.command
    return command
