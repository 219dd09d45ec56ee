"""`godwit pipeline decode` and `quarantine`: without Spark, one payload or many lines."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.cli.real import godwit as run_godwit

from godwit.pipeline.configuration import load_rules
from godwit.pipeline.datasets import readings
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake


class Result(NamedTuple):
    """The result of a command, as text."""

    returncode: int
    stdout: str
    stderr: str


def godwit(*arguments: str, input: bytes = b"") -> Result:
    found = run_godwit(*arguments, input=input)
    return Result(found.returncode, found.stdout.decode(), " ".join(found.stderr.decode().split()))


def line(topic: str, payload: bytes, **more: str) -> str:
    return json.dumps({"topic": topic, "payload_base64": base64.b64encode(payload).decode(), **more})


def test_one_payload(tmp_path: Path) -> None:
    found = godwit("pipeline", "decode", "home/temperature", "70 deg F")
    assert found.returncode == 0
    assert "decoder number" in found.stdout
    assert "21.11111111" in found.stdout
    found = godwit("pipeline", "decode", "home/temperature", "21.5", "--content-type", "application/cbor")
    assert "the content type is application/cbor, and this is not of the format senml or binary_map" in found.stdout
    file = tmp_path / "payload"
    file.write_bytes(b'{"t": 21.5}')
    found = godwit("pipeline", "decode", "home/x", f"@{file}")
    assert "quarantine by the decoder json: no quantity" in found.stdout
    assert "[[pipeline.decoder]]" in found.stdout
    (tmp_path / "pipeline.toml").write_text(
        '[[pipeline.decoder]]\nfilter = "home/#"\ndecoder = "json"\nfields = { t = "temperature" }\n'
    )
    for option in (("--lake", str(tmp_path)), ("--config", str(tmp_path / "pipeline.toml"))):
        assert "temperature" in godwit("pipeline", "decode", "home/x", f"@{file}", *option).stdout


def test_many_lines() -> None:
    discovery = b'{"state_topic": "node/one", "unit_of_measurement": "\xc2\xb0F", "device_class": "temperature"}'
    text = "\n".join(
        [
            line("home/temperature", b"21.5"),
            line("home/x", b"ON"),
            line("homeassistant/sensor/one/config", discovery),
            line("node/one", b"50"),
            line("home/x", b'{"temperature": 21.5, "time": 1794744000}'),
            line("home/x", b'{"temperature": 21.5}', content_type="application/senml+json"),
        ]
    )
    found = godwit("pipeline", "decode", "--lines", input=text.encode())
    assert found.returncode == 0
    rows = [json.loads(one) for one in found.stdout.splitlines()]
    assert rows[0] == {
        "readings": [{"quantity": "temperature", "value": 21.5, "unit": "°C", "time": None}],
        "decoder": "number",
    }
    assert rows[1] == {"quarantine": "no number"}
    assert rows[2] == {"readings": [], "decoder": "home_assistant"}
    assert [(one["value"], one["unit"]) for one in rows[3]["readings"]] == [(10.0, "°C")]
    assert rows[4]["readings"][0]["time"] == "2026-11-15T12:00:00.000000Z"
    assert rows[5] == {"quarantine": "bad payload"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("decode",), "give TOPIC and PAYLOAD"),
        (("decode", "a"), "give TOPIC and PAYLOAD"),
        (("decode", "a", "b", "--lines"), "leave out TOPIC and PAYLOAD"),
        (("decode", "--lines", "--content-type", "text/csv"), "leave out --content-type"),
        (("decode", "a", "@/nowhere/at/all"), "cannot read the payload"),
        (("decode", "a", "1", "--config", "/nowhere/at/all"), "cannot read the configuration"),
    ],
)
def test_errors(arguments: tuple[str, ...], text: str) -> None:
    found = godwit("pipeline", *arguments)
    assert found.returncode != 0
    assert text in found.stderr


def test_a_line_that_is_not_a_message() -> None:
    found = godwit("pipeline", "decode", "--lines", input=b'{"topic": 5}\n')
    assert found.returncode != 0
    assert "line 1" in found.stderr


def test_no_spark_is_imported() -> None:
    code = (
        "import sys; from godwit.cli.pipeline_decode import load_decoders, show_decoded; "
        "show_decoded(load_decoders(None, 'nowhere'), 'a', '21.5'); "
        "print([name for name in ('pyspark', 'pint', 'pandas', 'deltalake', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[[pipeline.decoder]]\nfilter = 'a'", "lacks a filter or a decoder"),
        ("[pipeline]\ndecoder = 5", "is not a list of tables"),
        ("[[pipeline.decoder]]\nfilter = 'a/#/b'\ndecoder = 'json'", "is not a filter"),
        ("[[pipeline.decoder]]\nfilter = 'a'\ndecoder = 'jason'", "is unknown"),
        ("[pipeline.retentoin]\nbronze = '1d'", "line 1: pipeline.retentoin is unknown: did you mean retention"),
        ("# mine\n[[decoder]]\nfilter = 'a'", "line 2: decoder is unknown: choose from pipeline"),
        ("[[pipeline", "is not TOML"),
    ],
)
def test_invalid_configurations(content: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(content)
    with pytest.raises(PipelineError, match=text):
        load_rules(file)


def test_quarantine(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    (tmp_path / "lake").mkdir()
    assert "no message is in quarantine" in godwit("pipeline", "quarantine", "--lake", lake.address).stdout
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    payloads = [b"The Temp is 54 degree"] * 3 + [b"2026-11-15T12:00:00Z,21.5"]
    rows = [
        {"broker": "b", "offset": at, "topic": "r1/room", "publisher": "a", "published": now, "received": now,
         "reason": "no number", "detail": "x", "payload": payload, "schema_version": 2, "decoder": ""}
        for at, payload in enumerate(payloads)
    ]  # fmt: skip
    rows.append(rows[0] | {"offset": 9, "reason": "no quantity", "detail": "none of its fields is known (t, h): x"})
    table = pa.Table.from_pylist(rows, readings.QUARANTINE.schema)
    lake.table(readings.QUARANTINE).append_arrow(table, {"b": 10})
    found = godwit("pipeline", "quarantine", "--lake", lake.address, "--json")
    first, second = [json.loads(one) for one in found.stdout.splitlines()]
    assert (first["reason"], first["messages"], first["topics"]) == ("no number", 4, {"r1/room": 4})
    assert 'decoder = "csv"' in first["suggestion"]
    assert '"t" = "temperature"' in second["suggestion"]
    for one in (first, second):
        file = tmp_path / "pipeline.toml"
        file.write_text(one["suggestion"])
        assert load_rules(file)
    shown = godwit("pipeline", "quarantine", "--lake", lake.address).stdout
    assert "[[pipeline.decoder]]" in shown
