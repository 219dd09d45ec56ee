"""The messages in quarantine by reason, each with a suggestion for the configuration. It works without Spark."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.pipeline.datasets import readings
from godwit.pipeline.decoders.results import REASONS
from godwit.pipeline.lake import Lake

MAX_TOPICS: Final = 10_000
"""Topics that are counted for each reason; messages of further ones are counted, too, but not by topic."""
_SENTENCE: Final = re.compile(r"(?:the )?\w+ is [-+.\d]+", re.IGNORECASE)
_SEPARATED: Final = re.compile(r"[^,;\t]+(?:([,;\t])[^,;\t]*)+")
_NAMES: Final = re.compile(r"none of its fields is known \(([^)]*)\)")


@dataclass
class RejectionSummary:
    """A reason, with the number of its messages."""

    reason: str
    meaning: str
    messages: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    """Messages by topic."""
    detail: str = ""
    """Of the last message of the most frequent topic."""
    suggestion: str = ""
    """A configuration that may help, or ""."""
    _examples: dict[str, tuple[str, bytes]] = field(default_factory=dict, repr=False)


def summarize(lake: Lake) -> list[RejectionSummary]:
    """Return the reasons, the most frequent first."""
    found: dict[str, RejectionSummary] = {}
    for rows in lake.table(readings.QUARANTINE).scan(["reason", "topic", "detail", "payload"]):
        for row in rows.to_pylist():
            _count(found, row)
    for one in found.values():
        if one.topics:
            topic = one.topics.most_common(1)[0][0]
            one.detail, payload = one._examples[topic]
            one.suggestion = suggestion(one.reason, topic, one.detail, payload)
    return sorted(found.values(), key=lambda one: (-one.messages, one.reason))


def _count(found: dict[str, RejectionSummary], row: dict[str, Any]) -> None:
    reason = row["reason"]
    one = found.setdefault(reason, RejectionSummary(reason, REASONS.get(reason, "a reason of an older version")))
    one.messages += 1
    topic = row["topic"]
    if topic in one.topics or len(one.topics) < MAX_TOPICS:
        one.topics[topic] += 1
        one._examples[topic] = (row["detail"] or "", row["payload"] or b"")


def suggestion(reason: str, topic: str, detail: str, payload: bytes) -> str:
    """Return lines of TOML that may teach the pipeline to read such messages, or ""."""
    head = f'[[pipeline.decoder]]\nfilter = "{_quoted(topic)}"\n'
    text = payload[:200].decode(errors="replace").strip()
    if reason == "no number":
        if _SENTENCE.match(text):
            return f'{head}decoder = "sentence"'
        if (cells := _SEPARATED.fullmatch(text.splitlines()[0] if text else "")) is not None:
            count = len(re.split(r"[,;\t]", text.splitlines()[0]))
            columns = ", ".join(['"time"', '"temperature"', *['"-"'] * count][:count])
            separator = "" if cells[1] == "," else f'\nseparator = "{_quoted(cells[1])}"'
            return f'{head}decoder = "csv"\ncolumns = [{columns}]{separator}'
        return ""
    if reason == "no quantity":
        if (names := _NAMES.search(detail)) is not None:
            fields = ", ".join(f'"{_quoted(name)}" = "temperature"' for name in names[1].split(", ")[:3] if name)
            return f'{head}decoder = "json"\nfields = {{ {fields} }}'
        return f'{head}decoder = "number"\nquantity = "temperature"'
    if reason == "ambiguous":
        if text[:1] == "{":
            name = detail.partition(" ")[0].rpartition(".")[2] or "pressure"
            return f'{head}decoder = "json"\nunits = {{ {name} = "..." }}'
        return f'{head}decoder = "number"\nquantity = "temperature"\nunit = "°C"'
    return ""


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\n", "\\n")
