"""The options of `format("godwit")`: parsed from Spark's strings, with errors that show the valid form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from godwit.spark.offsets import EARLIEST, LATEST, Offsets, parse

DEFAULT_PORT: Final = 50001
REPLICA_SEPARATOR: Final = "|"
TOKEN_VARIABLE: Final = "GODWIT_ARCHIVE_TOKEN"
DEFAULT_TIMEOUT_S: Final = 60.0
MAX_FILTERS: Final = 64
LAST_BATCH: Final = 2**40

_COMMON: Final = ("archive", "token", "tokenFile", "certificateFile", "archiveTimeout")
READING: Final = (
    *_COMMON, "topics", "startingOffsets", "endingOffsets", "startingTime", "endingTime", "maxRowsPerTrigger",
    "maxBytesPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders",
)  # fmt: skip
WRITING: Final = (*_COMMON, "publisher", "topic", "qos", "query", "batch")
_WITHOUT_RIGHTS: Final = re.compile(r"^(\S+)\s+\{.*\}$")
"""A line of the broker's own token file may have the token's rights after the token."""
_SPARKS_OWN: Final = frozenset(("path", "checkpointlocation"))


class OptionError(ValueError):
    """An option is missing, unknown or invalid."""


@dataclass(frozen=True)
class ArchiveAccess:
    """Addresses and credentials of archives."""

    addresses: tuple[str, ...]
    """Of each log. Replicas of one log are separated by REPLICA_SEPARATOR."""
    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S

    def plain_token_warning(self) -> str:
        """Return a warning if the token would be sent unencrypted to another machine, else an empty string."""
        single = [each for address in self.addresses for each in address.split(REPLICA_SEPARATOR)]
        exposed = [] if self.token is None else [each for each in single if _is_plain_elsewhere(each)]
        if not exposed:
            return ""
        return (
            f"the token for the archive at {', '.join(exposed)} is sent without encryption, and can be read and used "
            "by anyone on the way: give the archive a certificate and use grpc+tls://, or reach it through a tunnel"
        )


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reader."""

    access: ArchiveAccess
    topics: tuple[str, ...] = ()
    """Topic filters; empty for all topics."""
    starting: str | Offsets = EARLIEST
    ending: str | Offsets = LATEST
    starting_time_us: int | None = None
    ending_time_us: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fails_on_data_loss: bool = True


@dataclass(frozen=True)
class WriteOptions:
    """The options of a writer."""

    access: ArchiveAccess
    publisher: str = "spark"
    topic: str | None = None
    """For rows without a topic."""
    qos: int = 1
    query: str | None = None
    """The name under which the broker stores the last batch; None for the id of the query."""
    batch: int = 0
    """The number of the batch, for a write in foreachBatch: a repeated write of the same batch does nothing."""


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a reader. Raise OptionError if they are invalid."""
    options = _known(given, READING, "read")
    starting = _positions(options, "startingOffsets", EARLIEST)
    ending = _positions(options, "endingOffsets", LATEST)
    starting_time_us = _time_us(options, "startingTime")
    ending_time_us = _time_us(options, "endingTime")
    if starting_time_us is not None and "startingoffsets" in options:
        raise OptionError("startingTime and startingOffsets exclude each other: give one of them")
    if ending_time_us is not None and "endingoffsets" in options:
        raise OptionError("endingTime and endingOffsets exclude each other: give one of them")
    if is_stream and (ending_time_us is not None or "endingoffsets" in options):
        raise OptionError("a stream has no end: endingOffsets and endingTime are for spark.read")
    if not is_stream and starting == LATEST:
        raise OptionError(
            "startingOffsets is 'latest', where spark.read would find nothing: choose another, or a stream"
        )
    if ending == EARLIEST:
        raise OptionError("endingOffsets is 'earliest', where spark.read would find nothing: choose another")
    _flag(options, "includeHeaders", default=False)
    topics = tuple(text.strip() for text in options.get("topics", "").split(",") if text.strip())
    if len(topics) > MAX_FILTERS:
        raise OptionError(f"topics has {len(topics)} filters: at most {MAX_FILTERS}")
    return ReadOptions(
        access=_access(options),
        topics=topics,
        starting=starting,
        ending=ending,
        starting_time_us=starting_time_us,
        ending_time_us=ending_time_us,
        max_rows=_count(options, "maxRowsPerTrigger"),
        max_bytes=_count(options, "maxBytesPerTrigger"),
        min_partitions=_count(options, "minPartitions"),
        fails_on_data_loss=_flag(options, "failOnDataLoss", default=True),
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """Return whether the properties of messages are among the columns. Raise OptionError if the option is invalid."""
    return _flag(_known(given, READING, "read"), "includeHeaders", default=False)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer. Raise OptionError if they are invalid."""
    options = _known(given, WRITING, "write")
    access = _access(options)
    if len(access.addresses) > 1:
        raise OptionError(
            f"archive names {len(access.addresses)} archives: rows are written to one. Replicas of one log are "
            f"separated by {REPLICA_SEPARATOR}"
        )
    qos = options.get("qos", "1")
    if qos not in ("1", "2"):
        raise OptionError(f"qos is {qos!r}: rows are written to the log, choose 1 or 2")
    return WriteOptions(
        access=access,
        publisher=options.get("publisher", "spark"),
        topic=options.get("topic"),
        qos=int(qos),
        query=options.get("query"),
        batch=_batch(options),
    )


def _known(given: Mapping[str, str], names: tuple[str, ...], verb: str) -> dict[str, str]:
    """Return the options by lower-case name, as Spark ignores case. Raise OptionError if one is unknown."""
    known = {name.lower() for name in names}
    for name in given:
        if name.lower() not in known | _SPARKS_OWN:
            raise OptionError(f"format('godwit') has no option {name!r} to {verb}: choose from {', '.join(names)}")
    return {name.lower(): text for name, text in given.items()}


def _access(options: Mapping[str, str]) -> ArchiveAccess:
    groups = [
        [_address(text.strip()) for text in group.split(REPLICA_SEPARATOR) if text.strip()]
        for group in options.get("archive", "").split(",")
    ]
    addresses = tuple(REPLICA_SEPARATOR.join(group) for group in groups if group)
    if not addresses:
        raise OptionError(
            "the option archive is missing: give the address of a broker's archive, "
            f"as in .option('archive', 'localhost:{DEFAULT_PORT}'); several are separated by commas"
        )
    single = [address for group in groups for address in group]
    if len(set(single)) < len(single):
        raise OptionError("archive names the same address twice")
    return ArchiveAccess(addresses, _token(options), _certificate(options), _seconds(options, "archiveTimeout"))


def _address(text: str) -> str:
    """Return an address in the form of Flight, with scheme and port."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "grpc", text
    if scheme not in ("grpc", "grpc+tcp", "grpc+tls"):
        raise OptionError(f"archive is {text!r}: its scheme is grpc or grpc+tls, and may be left out")
    host, colon, port = rest.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = rest, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"archive is {text!r}: give HOST or HOST:PORT, as in localhost:{DEFAULT_PORT}")
    return f"{scheme}://{host}:{port}"


def _is_plain_elsewhere(address: str) -> bool:
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if scheme == "grpc+tls" or host == "localhost":
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:  # a name, which may belong to any machine
        return True


def _token(options: Mapping[str, str]) -> str | None:
    if "token" in options and "tokenfile" in options:
        raise OptionError("token and tokenFile exclude each other: give one of them")
    if "token" in options:
        return options["token"]
    if "tokenfile" in options:
        path = options["tokenfile"]
        lines = [line.strip() for line in _read(path, "tokenFile").decode(errors="replace").splitlines()]
        found = next((_WITHOUT_RIGHTS.sub(r"\1", line) for line in lines if line), None)
        if found is None:
            raise OptionError(f"tokenFile: {path} has no token in it")
        return found
    return os.environ.get(TOKEN_VARIABLE) or None


def _certificate(options: Mapping[str, str]) -> bytes | None:
    path = options.get("certificatefile")
    return None if path is None else _read(path, "certificateFile")


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"{name}: cannot read {path} ({error.strerror or error}) on the driver") from None


def _positions(options: Mapping[str, str], name: str, default: str) -> str | Offsets:
    try:
        return parse(name, options.get(name.lower(), default))
    except ValueError as error:
        raise OptionError(str(error)) from None


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"{name} is {text!r}: give a whole number above 0")
    return int(text)


def _batch(options: Mapping[str, str]) -> int:
    text = options.get("batch", "0").strip()
    if not text.isdecimal() or int(text) > LAST_BATCH:
        raise OptionError(f"batch is {text!r}: give a whole number from 0 to {LAST_BATCH}")
    if "batch" in options and "query" not in options:
        raise OptionError("batch counts the batches of a query: give its name as the option query")
    return int(text)


def _seconds(options: Mapping[str, str], name: str) -> float:
    text = options.get(name.lower())
    if text is None:
        return DEFAULT_TIMEOUT_S
    number = text.strip().lower().removesuffix("s")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise OptionError(f"{name} is {text!r}: give seconds, as in 60 or 2.5")
    return value


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is {text!r}: give true or false")
    return text == "true"


def _time_us(options: Mapping[str, str], name: str) -> int | None:
    """Parse a time: ISO 8601 (UTC without a zone), or milliseconds since 1970."""
    text = options.get(name.lower())
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}: give a time as in 2026-11-15T12:00:00Z, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1e6)
