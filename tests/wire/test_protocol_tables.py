"""The tables of docs/PROTOCOL.md agree with the code, so that neither changes without the other."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.wire.protocol_page import FLAGS, PAGE, VECTORS, read_table
from tests.wire.strategies import REASONS

from godwit import limits
from godwit.broker.settings import Settings
from godwit.errors import FINAL_CODES
from godwit.net.broker_figures import disk_figures, lag_figures, network_figures
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server
from godwit.store.memory import MemoryStore
from godwit.wire import batch as batches
from godwit.wire import packet as f
from godwit.wire import work
from godwit.wire.control import ClientInfo, ControlMessage, CursorInfo, GroupInfo, TopicInfo, Will, Work
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobInfo, JobSpec, TaskInfo, WorkerInfo
from godwit.wire.parameters import Parameters
from godwit.wire.relay import BridgeInfo
from godwit.wire.work import FromBroker, FromClient


def test_the_table_of_frames() -> None:
    rows = read_table("## 4 Frames")
    data_row = rows.pop()
    assert data_row[0] == "0x40` to `0x7f"
    assert {name: int(kind, 16) for kind, name, *_ in rows} == {
        name: value for name, value in vars(f).items() if name.isupper() and isinstance(value, int) and name in NAMES
    }
    for kind, name, size, *_ in rows:
        example = VECTORS.get("frame-" + name.lower().replace("_", "-"))
        if example is not None:
            least = int(size.split()[0])
            assert example[0][0] == int(kind, 16)
            assert len(example[0]) == least if size.isdigit() else len(example[0]) > least


NAMES = {
    "PADDING", "PING", "HELLO", "COOKIE", "CONNECT", "ACCEPT", "REFUSE", "ACK", "ACK_POSITION", "CONFIRM", "CREDIT",
    "BLOCKED", "PATH_PROBE", "PATH_RESPONSE", "CLOSE", "RESET", "CRYPTO", "TOKEN",
}  # fmt: skip


def test_the_table_of_data_flags() -> None:
    assert {name: int(flag, 16) for flag, name, _ in read_table("### DATA")} == FLAGS


def test_the_table_of_batch_flags() -> None:
    rows = {name: int(bits, 16) for bits, name, _ in read_table("## 14 Batches")}
    assert rows.pop("QoS") == 3 << batches.QOS_SHIFT
    assert rows == {
        "LONE": batches.LONE,
        "DELTAS": batches.HAS_DELTAS,
        "RETAIN": batches.RETAIN,
        "SEQUENCE": batches.HAS_SEQUENCE,
        "ROUTE": batches.HAS_ROUTE,
        "EXTENSION": batches.HAS_EXTENSION,
    }


def test_the_table_of_codes() -> None:
    found = {name: int(code) for code, name, *_ in read_table("## 23 Reason codes")}
    assert found == {code.name: code.value for code in Code}


def test_the_reactions_of_clients_to_codes() -> None:
    reactions = {Code[name]: reaction for _, name, _, reaction in read_table("## 23 Reason codes")}
    assert {code for code, text in reactions.items() if text.partition(":")[0] == "ends"} == FINAL_CODES
    conditional = {code for code, text in reactions.items() if text.startswith(("ends ", "ends,"))}
    assert conditional == {Code.NORMAL, Code.SEALING, Code.NAME_IN_USE}


def to_number(text: str) -> int:
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent) if exponent else int(base)


def test_the_table_of_parameters() -> None:
    (schema,) = msgspec.json.schema(Parameters)["$defs"].values()
    rows = {name: (span, default) for name, span, default, _ in read_table("### Parameters")}
    assert list(rows) == list(schema["properties"])
    for name, (span, default) in rows.items():
        field = schema["properties"][name]
        assert (default == "required") == (name in schema["required"]), name
        if "minimum" in field:
            low, high = map(to_number, span.split(" to "))
            assert (low, high) == (field["minimum"], field["maximum"]), name
        elif "enum" in field:
            assert sorted(re.findall(r"[a-z][a-z-]+", span)) == sorted(field["enum"])
    assert rows["arq"][1] == schema["properties"]["arq"]["default"]
    assert rows["arq_window"][1] == str(schema["properties"]["arq_window"]["default"])
    assert rows["application"][0] == f"up to {limits.MAX_HANDSHAKE_APPLICATION_BYTES} bytes"


TAGGED = [*get_args(ControlMessage), *get_args(FromClient), *get_args(FromBroker)]


@pytest.mark.parametrize("kind", [kind for kind in TAGGED if kind is not Work])
def test_the_tables_of_control_messages_and_groups(kind: type[msgspec.Struct]) -> None:
    rows = read_table(f"#### `{kind.__struct_config__.tag}`")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert {row[0] for row in rows} == set(fields)
    for name, _, default, _ in rows:
        assert (default == "required") == fields[name].required, name
        if default != "required":
            assert default == written(default_of(fields[name])), name


def test_the_message_that_has_no_table_has_no_fields() -> None:
    assert Work.__struct_fields__ == ()
    assert "It has no fields." in PAGE.split("\n#### `work`\n")[1].partition("\n```")[0]


def default_of(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def written(value: object) -> str:
    """A default as the page writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if value or value == 0 else "empty"


PARTS = [
    # heading, which table below it, what it describes
    ("### Wills", 0, Will),
    ("#### `topic_list`", 1, TopicInfo),
    ("#### `client_list`", 1, ClientInfo),
    ("#### `cursor_list`", 1, CursorInfo),
    ("#### `group_list`", 1, GroupInfo),
    ("#### `bridge_list`", 1, BridgeInfo),
    ("#### `job_list`", 1, JobInfo),
    ("#### `job_shown`", 1, TaskInfo),
    ("#### `worker_list`", 1, WorkerInfo),
    ("#### `submit`", 1, JobSpec),
    ("#### `report`", 1, work.TaskOutcome),
    ("#### `report`", 2, work.ProgressReport),
    ("#### `taken`", 1, work.SubmitReply),
    ("#### `lease`", 1, work.LeasedTask),
    ("#### `update`", 1, work.JobUpdate),
    ("#### `update`", 2, work.TaskUpdate),
]


@pytest.mark.parametrize(("heading", "place", "kind"), PARTS)
def test_the_tables_of_what_stands_in_messages_and_groups(heading: str, place: int, kind: type[msgspec.Struct]) -> None:
    rows = read_table(heading, skip=place)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert [row[0] for row in rows] == list(fields)
    for name, _, default, _ in rows:
        assert default == ("required" if fields[name].required else written(default_of(fields[name]))), name


def bounds_of(field: dict[str, Any]) -> tuple[int, int] | None:
    """Of a number, also of one that may be null."""
    for option in field.get("anyOf", [field]):
        if "minimum" in option:
            return option["minimum"], option["maximum"]
    return None


def test_numbers_have_the_bounds_that_the_page_says() -> None:
    seen = 0
    for heading, place, kind in PARTS:
        fields = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
        for name, span, *_ in read_table(heading, skip=place):
            if found := re.match(r"(-?[\d,]+) to (-?[\d,]+)", span):
                low, high = (int(bound.replace(",", "")) for bound in found.groups())
                assert bounds_of(fields[name]) == (low, high), name
                seen += 1
    assert seen > 10


def test_every_part_of_a_group_has_its_table() -> None:
    described = {kind for _, _, kind in PARTS}
    parts = {
        kind for kind in vars(work).values() if isinstance(kind, type) and issubclass(kind, work.GroupItem | JobSpec)
    }
    assert parts - {work.GroupItem} <= described


def test_the_index_of_groups() -> None:
    rows = {kind: side for kind, side, _ in read_table("### Groups")}
    sides = (("client", FromClient), ("broker", FromBroker))
    assert rows == {kind.__struct_config__.tag: side for side, union in sides for kind in get_args(union)}


def test_the_index_of_control_messages() -> None:
    rows = {row[0]: row[4] for row in read_table("## 15 Control messages")}
    assert set(rows) == {kind.__struct_config__.tag for kind in get_args(ControlMessage)}
    for kind, section in rows.items():
        above = PAGE.split(f"\n#### `{kind}`\n")[0]
        assert re.findall(r"^## (\d+) ", above, re.MULTILINE)[-1] == section, kind


def test_the_table_of_figures(tmp_path: Path) -> None:
    store = MemoryStore(log_id=b"")
    server = Server(Settings(), MemoryLog(store), entropy=bytes, now=0.0, epoch_us=0)
    named = {row[0] for row in read_table("### Figures of the broker")}
    sockets = {"", "/kernel", "/packet/<reason>", "/socket/<reason>"}  # added by the process that has the sockets
    network = {f"$sys/network/dropped{name}" for name in sockets}
    log = "writable commits commit_us/p99 commit_us/total deleted retention"  # of a log on disk
    process = {
        *asyncio.run(network_figures(server)),
        *asyncio.run(lag_figures(server)),
        *disk_figures(tmp_path),
        *(f"log/{name}" for name in log.split()),
    }
    assert named == {f"$sys/{name}" for name in (*server.broker.figures(), *process)} | network


def marked_as_protocol() -> set[str]:
    """The limits that limits.py says both sides must agree on."""
    body = ast.parse(inspect.getsource(limits)).body
    return {
        node.target.id
        for node, behind in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
        if "*protocol*" in str(behind.value.value)
    }


@pytest.mark.parametrize("heading", ["### Limits of the protocol", "### Values of the reference"])
def test_the_tables_of_limits(heading: str) -> None:
    rows = read_table(heading)
    assert len(rows) > 10
    for name, value, _ in rows:
        assert float(value.replace(",", "")) == getattr(limits, name), name


def test_every_limit_of_the_protocol_is_in_its_table() -> None:
    named = {row[0] for row in read_table("### Limits of the protocol")}
    assert marked_as_protocol() <= named
    assert not named & {row[0] for row in read_table("### Values of the reference")}


def words_of_the_code() -> set[str]:
    """Every word that something dropped is counted under."""
    words = set()
    for path in (Path(limits.__file__).parent / "transport").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        words |= set(re.findall(r'dropped\["(\w+)"\]', source)) | set(re.findall(r'DecodeError\("(\w+)"', source))
        if path.stem in ("endpoint", "dial"):
            words |= set(re.findall(r'return "(\w+)"', source))
    return words


def test_the_table_of_what_is_dropped() -> None:
    named = {row[0] for row in read_table("## 27 Dropped packets")}
    assert len(words_of_the_code()) > 15
    assert words_of_the_code() <= named
    assert named >= REASONS


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(#([^)]*)\)", PAGE):
        assert target in anchors, target
