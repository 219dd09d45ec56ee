"""The errors of the pipeline: the one that ends a command, and failures of streaming queries in one sentence.

Spark reports a failed query as pages of text, with Python tracebacks inside Java messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_SENTENCE: Final = 600
"""Characters of a failure's sentence."""
FINAL: Final = frozenset(("OptionError", "DataLossError", "RefusedError"))
"""Errors of godwit.spark that a retry cannot fix."""
_OURS: Final = re.compile(r"^(?:Caused by: |\S+: )?godwit\.[\w.]+\.(\w+Error): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


class PipelineError(Exception):
    """End a command. The text states what happened, to what, and what to do; it is shown without a traceback."""


@dataclass(frozen=True)
class QueryFailure:
    """The reason why a streaming query failed."""

    sentence: str
    is_final: bool
    """Whether the same error would follow each retry."""


def explained(text: str) -> QueryFailure:
    """Return the cause of a failure from the text of Spark's exception.

    An error of Godwit takes precedence over errors that followed from it; then the last Python or Java exception in
    the text; then its first line.
    """
    ours = _OURS.findall(text)
    for name, sentence in ours:
        if name in FINAL:
            return QueryFailure(_shortened(sentence), is_final=True)
    if ours:
        return QueryFailure(_shortened(ours[-1][1]), is_final=False)
    if found := _PYTHON.findall(text):
        name, sentence = found[-1]
        return QueryFailure(_shortened(f"{name}: {sentence}"), is_final=False)
    first_line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return QueryFailure(_shortened(first_line), is_final=False)


def _shortened(sentence: str) -> str:
    sentence = " ".join(sentence.split()).removesuffix(".")
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."
