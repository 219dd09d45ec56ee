"""The built-in decoders in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Final

from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, installed

MODULES: Final[tuple[ModuleType, ...]] = (
    # recognised by topic
    # recognised by structure
    # generic
)
"""Each has DECODER, a subclass of Decoder, and EXAMPLES."""
BUILT_IN: Final = tuple(module.DECODER for module in MODULES)


def decoder_set(rules: Iterable[DecoderRule] = ()) -> DecoderSet:
    """Return all decoders, with the rules of the configuration. Raise PipelineError if it is invalid."""
    return DecoderSet([*installed(), *BUILT_IN], rules)
