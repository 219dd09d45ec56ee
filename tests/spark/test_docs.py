"""docs/SPARK.md agrees with the code: options and their defaults, columns, quantities, tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import decoder_docs
from tests.spark.session import columns, running_broker

import godwit
from godwit.pipeline.configuration import load_rules
from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.decoders.base import DecoderMessage
from godwit.pipeline.decoders.results import Decoded, Reading
from godwit.pipeline.decoders.selection import BUILT_IN, DecoderSet
from godwit.pipeline.lake import TableSpec
from godwit.spark.options import READING, WRITING, read_options, write_options
from godwit.spark.reader import PROPERTIES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "SPARK.md").read_text(encoding="utf-8")
GIVEN = {"archive": "localhost"}


def part(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def defaults(table: list[list[str]]) -> dict[str, str]:
    """Return the defaults that are literal values."""
    return {name.strip("`"): text.strip("`") for name, text, _ in table if re.fullmatch(r"`[^`]+`", text)}


def test_options_and_their_defaults() -> None:
    reading, writing = rows(part("read options")), rows(part("write options"))
    assert [row[0] for row in reading] == [f"`{name}`" for name in READING]
    assert [row[0] for row in writing] == [f"`{name}`" for name in WRITING]
    given = defaults(reading)
    assert given.keys() == {"archiveTimeout", "startingOffsets", "endingOffsets", "failOnDataLoss", "includeHeaders"}
    assert read_options(GIVEN | given, is_stream=False) == read_options(GIVEN, is_stream=False)
    given = defaults(writing)
    assert given.keys() == {"archiveTimeout", "publisher", "qos", "batch"}
    named = GIVEN | {"query": "q"}
    assert write_options(named | given) == write_options(named)


def test_columns_of_the_source() -> None:
    assert [row[:2] for row in rows(part("source columns"))] == [
        [one.name, one.dataType.simpleString()] for one in SCHEMA.fields
    ]
    assert [row[:2] for row in rows(part("property columns"))] == [
        [one.name, one.dataType.simpleString()] for one in PROPERTIES.fields
    ]


def section(spec: TableSpec) -> str:
    """Return the section of a table, as it must be in docs/SPARK.md."""
    lines = [f"| {one.name} | {one.type} | {one.doc} |".replace("|  |", "| |") for one in spec.columns]
    return "\n".join([f"#### {spec.name}", "", spec.grain, "", "| column | type | |", "|---|---|---|", *lines])


def test_tables() -> None:
    """The failure shows the text to copy into docs/SPARK.md."""
    expected = "\n\n".join(section(spec) for spec in ALL)
    assert part("tables").strip() == expected, f"replace the part between the comments 'tables' by:\n\n{expected}"


def test_parameters() -> None:
    assert f"**Windows** are {windows.LENGTHS_S[0]} s and {windows.LENGTHS_S[1]} s long" in PAGE
    assert f"more than {readings.MAX_AHEAD_US // 60_000_000} minutes after it was received" in PAGE


def test_decoders() -> None:
    """The failure is repaired by `python tests/decoder_docs.py`."""
    page = decoder_docs.PAGE.read_text(encoding="utf-8")
    assert page == decoder_docs.with_parts(page)
    assert {name for name, _ in re.findall(r"### (\w+)(\n)", page)} == {one.name for one in BUILT_IN}


def test_the_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    page = decoder_docs.PAGE.read_text(encoding="utf-8")
    file = tmp_path / "pipeline.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    first, second = load_rules(file)
    assert (first.decoder, second.decoder) == ("csv", "json")


def test_the_decoder_of_the_page_works() -> None:
    page = decoder_docs.PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    found, name = DecoderSet([names["PulseDecoder"]]).decode(DecoderMessage("meters/a/pulse", bytes([0, 0, 1, 0])))
    assert (found, name) == (Decoded([Reading("volume", 256.0, "L", unit_source="decoder")]), "pulse")


def test_the_programs_of_the_page_work(spark: SparkSession, tmp_path: Path) -> None:
    """They read a broker's log, write alerts to it, and write a batch once."""
    reading, alerting, in_batches = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with running_broker(tmp_path / "log") as broker:
        with godwit.sync.connect(broker.address) as client:
            for value in (21, 35):
                client.publish("home/attic", f"{value}")
        names: dict[str, Any] = {"spark": spark}

        def run(program: str) -> None:
            program = program.replace("localhost:50001", broker.archive.removeprefix("grpc://"))
            exec(program.replace("/data/alerts", str(tmp_path / "alerts")), names)

        run(reading)
        assert names["messages"].isStreaming
        assert names["past"].count() == 2
        names["readings"] = names["messages"].selectExpr("topic", "CAST(CAST(payload AS string) AS double) AS value")
        run(alerting)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        run(in_batches)
        rows = spark.createDataFrame([("alerts/night", "cold")], columns("topic string, payload string"))
        for _ in range(2):
            names["alert"](rows, 0)
        with godwit.sync.connect(broker.address) as client, client.subscribe("alerts/#", start="earliest") as messages:
            client.publish("alerts/end", "")
            found = [messages.get(timeout_s=120).topic for _ in range(3)]
        assert found == ["alerts/home/attic", "alerts/night", "alerts/end"]
