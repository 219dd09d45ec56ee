"""The generated parts of docs/DECODERS.md: decoders with their examples, quantities, and reasons.

python tests/decoder_docs.py    # write the parts into the page
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from godwit.pipeline.decoders.base import Decoder, DecoderExample
from godwit.pipeline.decoders.results import FORMS, REASONS, Reading
from godwit.pipeline.decoders.selection import BUILT_IN
from godwit.pipeline.quantities import ALIASES, GREATEST, QUANTITIES

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "DECODERS.md"
_PART: Final = re.compile(r"<!-- (decoders|examples|quantities|reasons) -->\n.*?<!-- /\1 -->", re.DOTALL)
MAX_SHOWN: Final = 200


def decoders() -> str:
    rows = []
    for one in BUILT_IN:
        rows.append(f"| `{one.name}` | {_cell(one.title)} | {_recognised(one)} | {_codes(one.option_names)} |")
    return "\n".join(["| decoder | format | asked for | options |", "|---|---|---|---|", *rows])


def _recognised(one: type[Decoder]) -> str:
    if not one.filters:
        return "configured topics only"
    topics = "any topic" if "#" in one.filters else "topics " + _codes(one.filters)
    if one.text_filters is not None:
        topics += f" (text: {_codes(one.text_filters)})"
    if one.definition_filters and "#" not in one.filters:
        topics += ", topics that its definitions name"
    forms = "" if one.forms == FORMS else ", payloads: " + ", ".join(sorted(one.forms))
    keys = "" if not one.keys else ", keys " + " or ".join(_codes(sorted(keys)) for keys in one.keys)
    types = "" if not one.content_types else "; content types " + _codes(one.content_types)
    return topics + forms + keys + types


def _codes(names: object) -> str:
    return " ".join(f"`{_cell(str(name))}`" for name in names)  # type: ignore[attr-defined]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def examples() -> str:
    return "\n\n".join(map(_section, BUILT_IN))


def _section(decoder: type[Decoder]) -> str:
    module = sys.modules[decoder.__module__]
    text = (inspect.getdoc(module if len(module.DECODERS) == 1 else decoder) or "").strip()
    shown = [_example(one) for one in module.DECODERS[decoder]]
    return "\n".join([f"### {decoder.name}", "", text, "", "```text", "\n\n".join(shown), "```"])


def _example(one: DecoderExample) -> str:
    lines = [f"{topic}  {_payload(payload)}" for topic, payload in one.definitions]
    if one.is_configured:
        options = "".join(f", {name} = {_toml(value)}" for name, value in one.options.items())
        lines.append(f"configured{options}")
    lines.append(f"{one.topic}  {_payload(one.payload)}")
    if one.reason:
        lines.append(f"  -> quarantine: {one.reason}")
    elif not one.readings:
        lines.append("  -> no readings")
    lines += [f"  -> {_reading(reading, one.time_us)}" for reading in one.readings]
    if one.note:
        lines.append(f"  ({one.note})")
    return "\n".join(lines)


def _payload(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    text = text.replace("\n", "\\n") if text else f"bytes {payload.hex()}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _reading(one: Reading, message_us: int | None) -> str:
    name = f" ({one.name})" if one.name else ""
    time_us = one.time_us if one.time_us is not None else message_us
    moment = "" if time_us is None else f" at {datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{one.quantity}{name} {one.value:.10g} {one.unit}".rstrip() + f"{moment}; unit from {one.unit_source}"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def quantities() -> str:
    rows = []
    for name, one in QUANTITIES.items():
        low, high = one.bounds
        bounds = "" if high >= GREATEST and low <= -GREATEST else f"{low:g} to {high:g}"
        default = "not assumed" if one.default is None else f"{one.default[0]:g} to {one.default[1]:g}"
        if one.default is not None and one.default[1] >= GREATEST:
            default = "any"
        rows.append(f"| {name} | {one.unit} | {bounds} | {default} | {', '.join(ALIASES.get(name, ()))} |")
    head = "| quantity | unit | bounds | without a stated unit | names of fields |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def reasons() -> str:
    return "\n".join(
        ["| reason | meaning |", "|---|---|", *[f"| `{name}` | {text} |" for name, text in REASONS.items()]]
    )


def with_parts(page: str) -> str:
    """Return the page with its parts made anew."""
    makers = {"decoders": decoders, "examples": examples, "quantities": quantities, "reasons": reasons}
    return _PART.sub(lambda match: f"<!-- {match[1]} -->\n{makers[match[1]]()}\n<!-- /{match[1]} -->", page)


if __name__ == "__main__":
    PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
