"""`godwit pipeline decode`: the readings of a payload, or the reason why it has none. No Spark is started."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from godwit.cli.streams import discard_output
from godwit.cli.tables import Column, show_table
from godwit.cli.text import iso_time, safe
from godwit.errors import GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.pipeline.decoders.results import Decoded, Rejected
    from godwit.pipeline.decoders.selection import DecoderSet

_LINE_FORM: Final = '{"topic": "...", "payload_base64": "..."}'


class _Line(msgspec.Struct):
    """A line of input."""

    topic: str
    payload_base64: str
    content_type: str | None = None


def load_decoders(config: Path | None, lake: str) -> DecoderSet:
    """Return the decoders with their configuration.

    Raises:
        GodwitError: The configuration is unreadable or invalid.
    """
    from godwit.pipeline.configuration import find_configuration, load_rules
    from godwit.pipeline.decoders.selection import decoder_set
    from godwit.pipeline.errors import PipelineError, explained_store

    try:
        return decoder_set(load_rules(find_configuration(config, lake)))
    except PipelineError as error:
        raise GodwitError(str(error)) from error
    except OSError as error:  # of an object store
        raise GodwitError(f"reading the configuration failed: {explained_store(str(error))}") from error


def show_decoded(decoders: DecoderSet, topic: str, payload: str, content_type: str | None = None) -> None:
    """Print the readings of one payload, the text itself or @FILE."""
    from godwit.pipeline.decoders.base import DecoderMessage
    from godwit.pipeline.decoders.results import REASONS, Rejected

    found, decoder = decoders.decode(DecoderMessage(topic, _payload(payload), content_type))
    if isinstance(found, Rejected):
        by = f" by the decoder {decoder}" if decoder else ""
        typer.echo(safe(f"quarantine{by}: {found.reason} ({REASONS.get(found.reason, 'a reason of the decoder')})"))
        typer.echo(safe(found.detail))
        return
    typer.echo(safe(f"decoder {decoder}: {decoders.title(decoder)}"))
    if not found.readings:
        typer.echo("no readings: a definition or a status, which is neither a reading nor an error")
        return
    show_table(
        [
            Column("quantity", is_name=True),
            Column("value", right=True),
            Column("unit"),
            Column("name", least_width=12),
            Column("time"),
            Column("unit from", drop=1),
        ],
        [
            (one.quantity, f"{one.value:.10g}", one.unit, one.name, _time(found, one) or "", one.unit_source)
            for one in found.readings
        ],
    )
    if found.device is not None:
        typer.echo(safe(f"device: {found.device}"))
    if found.extra is not None:
        typer.echo(safe(f"other fields: {found.extra}"))


def decode_lines(decoders: DecoderSet) -> None:
    """Decode the messages on standard input, one JSON object a line, and print one JSON object a line.

    The lines are messages of one log: a definition applies to the lines after it.
    """
    from godwit.pipeline.decoders.base import DecoderMessage

    parser = msgspec.json.Decoder(_Line)
    try:
        for number, line in enumerate(sys.stdin.buffer):
            if not line.strip():
                continue
            try:
                found = parser.decode(line)
                payload = base64.b64decode(found.payload_base64, validate=True)
            except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
                raise UsageError(f"line {number + 1} is not of the form {_LINE_FORM}: {error}") from error
            message = DecoderMessage(found.topic, payload, found.content_type, offset=number)
            result, decoder = decoders.decode(message)
            decoders.add_definitions(decoders.define(message))
            sys.stdout.buffer.write(msgspec.json.encode(line_of(result, decoder)) + b"\n")
            sys.stdout.buffer.flush()  # a program may wait for the answer before it sends the next line
    except BrokenPipeError:  # the reader closed the pipe
        discard_output()


def line_of(found: Decoded | Rejected, decoder: str) -> dict[str, Any]:
    """Return the object that is printed for a message."""
    from godwit.pipeline.decoders.results import Rejected

    if isinstance(found, Rejected):
        return {"quarantine": found.reason}
    readings = [
        {"quantity": one.quantity, "value": one.value, "unit": one.unit, "time": _time(found, one)}
        for one in found.readings
    ]
    return {"readings": readings, "decoder": decoder}


def _time(found: Decoded, reading: Any) -> str | None:
    time_us = reading.time_us if reading.time_us is not None else found.time_us
    return None if time_us is None else iso_time(time_us)


def _payload(text: str) -> bytes:
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise GodwitError(f"cannot read the payload {text[1:]}: {error.strerror}; check its path") from error
