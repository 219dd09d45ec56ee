"""The built-in decoders in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Final

from godwit.pipeline.decoders import (
    binary_map,
    chirpstack,
    cloudevents,
    csv_columns,
    flat_json,
    home_assistant,
    influx,
    nested_json,
    number,
    openmetrics,
    owntracks,
    rtl_433,
    senml,
    sentence,
    shelly_gen1,
    shelly_gen2,
    sparkplug,
    tasmota,
    thethingsnetwork,
    zigbee2mqtt,
)
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, installed

MODULES: Final[tuple[ModuleType, ...]] = (
    # recognised by topic
    zigbee2mqtt,
    tasmota,
    sparkplug,
    shelly_gen2,
    shelly_gen1,
    # recognised by topic or structure
    rtl_433,
    owntracks,
    thethingsnetwork,
    chirpstack,
    # recognised by an earlier message
    home_assistant,
    # recognised by structure
    senml,
    cloudevents,
    influx,
    openmetrics,
    # generic
    binary_map,
    flat_json,
    nested_json,
    number,
    # only if configured
    csv_columns,
    sentence,
)
"""Each has DECODER, a subclass of Decoder, and EXAMPLES."""
BUILT_IN: Final = tuple(module.DECODER for module in MODULES)


def decoder_set(rules: Iterable[DecoderRule] = ()) -> DecoderSet:
    """Return all decoders, with the rules of the configuration. Raise PipelineError if it is invalid."""
    return DecoderSet([*installed(), *BUILT_IN], rules)
