"""bronze/messages: the messages of the brokers' logs, unchanged."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from godwit.pipeline.lake import TIMESTAMP, TableColumn, TableSpec

SPEC: Final = TableSpec(
    "bronze/messages",
    "one row per message of a broker's log: (broker, offset)",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("topic", pa.string()),
        TableColumn("publisher", pa.string()),
        TableColumn("published", TIMESTAMP),
        TableColumn("received", TIMESTAMP),
        TableColumn("qos", pa.int8()),
        TableColumn("retained", pa.bool_()),
        TableColumn("payload", pa.binary(), "unchanged"),
        TableColumn("headers", pa.map_(pa.string(), pa.string()), "of a repeated name the last value"),
        TableColumn("content_type", pa.string()),
        TableColumn("reply_to", pa.string(), "the topic for replies to it"),
        TableColumn("correlation", pa.binary(), "by which a requester recognises the reply"),
        TableColumn("expires", TIMESTAMP, "by the broker's clock; no subscriber gets it from then on"),
        TableColumn("origin_log", pa.string(), "the log from which a bridge brought it; null without a bridge"),
        TableColumn("origin_offset", pa.int64(), "its offset in that log"),
    ),
    keys=("broker", "offset"),
    expires_by="received",
    checks={
        "it has a topic and a payload": "topic != '' AND payload IS NOT NULL",
        "its offset counts from 0, and its time received is known": "offset >= 0 AND received IS NOT NULL",
        "its QoS is 0, 1 or 2": "qos IN (0, 1, 2)",
    },
)
