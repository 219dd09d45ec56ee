"""What the archives say before anything is begun: whether they are there, let us in, and which logs they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from godwit.pipeline.problems import PipelineError
from godwit.spark.archive import Archive, ArchiveError
from godwit.spark.options import OptionError, ReadOptions, read_options

CONTACT_S: Final = 10.0
"""Whoever starts something waits no longer for its first answer."""


@dataclass(frozen=True)
class Log:
    """The log of one broker."""

    id: str
    address: str
    next_offset: int


def look(source: Mapping[str, str], patience_s: float = CONTACT_S) -> list[Log]:
    """The logs of these options of format("godwit"). PipelineError if one cannot be read as they say."""
    options = checked(source)
    place = replace(options.place, timeout_s=min(options.place.timeout_s, patience_s))
    found: dict[str, Log] = {}
    for address in place.addresses:
        archive = Archive(address, place)
        try:
            info = archive.info()
            log = Log(info["log_id"], address, int(info["next_offset"]))
            archive.ask("measure", {"start": 0, "end": 0, "filters": list(options.topics)})  # are the filters right?
        except ArchiveError as error:
            raise PipelineError(str(error)) from None
        if log.id in found:
            raise PipelineError(f"the archives at {found[log.id].address} and {address} are of one broker: name one")
        found[log.id] = log
    return list(found.values())


def checked(source: Mapping[str, str]) -> ReadOptions:
    """PipelineError if the options are wrong."""
    try:
        return read_options(source, is_stream=True)
    except OptionError as error:
        raise PipelineError(str(error)) from None
