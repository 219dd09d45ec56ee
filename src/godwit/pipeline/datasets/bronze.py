"""bronze/messages: what the brokers' logs have, as it came."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from godwit.pipeline.lake import TableSpec

_TIME: Final = pa.timestamp("us", tz="UTC")

SPEC: Final = TableSpec(
    "bronze/messages",
    "one row per message of a broker's log: (broker, offset)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("offset", pa.int64()),
            ("topic", pa.string()),
            ("publisher", pa.string()),
            ("published", _TIME),
            ("received", _TIME),
            ("qos", pa.int8()),
            ("retained", pa.bool_()),
            ("payload", pa.binary()),
        ]
    ),
    keys=("broker", "offset"),
    checks={
        "it has a topic and a payload": "topic != '' AND payload IS NOT NULL",
        "its offset counts from 0, and its time received is known": "offset >= 0 AND received IS NOT NULL",
        "its QoS is 0, 1 or 2": "qos IN (0, 1, 2)",
    },
)
