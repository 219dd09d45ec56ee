"""Why a streaming query failed, in one sentence, and whether trying again can help.

Spark wraps what happened into pages of text: tracebacks of Python inside messages of Java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MAX_SENTENCE: Final = 600
_OURS: Final = re.compile(r"^(?:Caused by: |\S+: )?godwit\.[\w.]+\.(\w+Error): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
FINAL: Final = frozenset(("OptionError", "DataLossError", "RefusedError"))
"""They say the same however often they are asked."""


@dataclass(frozen=True)
class Failure:
    sentence: str
    is_final: bool


def explained(text: str) -> Failure:
    """Of what Spark says of a query that failed."""
    ours = _OURS.findall(text)
    for name, sentence in ours:
        if name in FINAL:
            return Failure(_short(sentence), is_final=True)
    if ours:
        return Failure(_short(ours[-1][1]), is_final=False)
    if found := _PYTHON.findall(text):
        name, sentence = found[-1]
        return Failure(_short(f"{name}: {sentence}"), is_final=False)
    return Failure(_short(next((line for line in text.splitlines() if line.strip()), "no reason given")), False)


class Pauses:
    """How long to wait before a query is started again: longer each time, until it has done a batch."""

    def __init__(self) -> None:
        self.failures = 0

    def next_s(self) -> float:
        self.failures += 1
        return float(min(FIRST_PAUSE_S * 2 ** (self.failures - 1), LONGEST_PAUSE_S))

    def reset(self) -> None:
        self.failures = 0


def _short(sentence: str) -> str:
    sentence = " ".join(sentence.split()).removesuffix(".")
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."
