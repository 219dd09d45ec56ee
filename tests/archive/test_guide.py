"""The examples of docs/ARCHIVE.md, one after the other, against a real archive."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.archive import logs
from tests.archive.running import Appender, log_in, process_in

from godwit.archive import call_limits, process, range_reader, requests, server, stages
from godwit.archive.columns import COLUMNS
from godwit.limits import MIB
from godwit.server.archive_pipe import MAX_COMMIT_BATCHES

GUIDE = (Path(__file__).parents[2] / "docs" / "ARCHIVE.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
ADDRESS = "grpc://127.0.0.1:50001"


def test_the_examples_work(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n", encoding="utf-8")
    reading, staging, access = EXAMPLES
    names: dict[str, Any] = {"token": "secret"}
    with log_in(tmp_path) as store:
        store.append([logs.make_entry("home/a", [b"1", b"2"]), logs.make_entry("other", [b"3"])])
        with process_in(tmp_path) as process:
            process.appender = Appender(store, tmp_path / "stages")
            url = process.url()
            exec(reading.replace(ADDRESS, url), names)
            assert names["table"].num_rows == 3
            assert names["table"].column_names == list(COLUMNS)
            assert names["rows"].column("payload").to_pylist() == [b"1", b"2"]
            assert names["news"].num_rows == 0
            exec(staging, names)
            assert names["done"] == {"first_offset": 3, "count": 2, "was_known": False}
            names["archive"].close()
        with process_in(tmp_path, "--token-file", str(tmp_path / "tokens")) as process:
            exec(reading.partition("\n# ")[0].replace(ADDRESS, process.url()), names)
            exec(access, names)
            assert names["table"].num_rows == 5
            names["archive"].close()


def test_the_limits_are_those_of_the_code() -> None:
    for limit in (
        f"{requests.MAX_REQUEST_BYTES // 1024} KiB; a commit {requests.MAX_COMMIT_REQUEST_BYTES // MIB} MiB, "
        f"{requests.MAX_PARTS} parts",
        f"at once | {server.MAX_STREAMS}; with more than {server.FULL_STREAMS} each",
        f"at once | {server.MAX_UPLOADS}. When",
        f"stood still for {call_limits.STALLED_S:.0f} s loses",
        f"after {call_limits.EXPIRY_S / 60:.0f} minutes",
        f"a commit | {stages.MAX_STAGE_BYTES // MIB} MiB and {MAX_COMMIT_BATCHES:,} batches each",
        f"process | {process.MAX_MEMORY_BYTES // (1024 * MIB)} GiB",
        f"longer than\n{range_reader.LONG_WAL_BYTES // MIB} MiB",
        f"together | {stages.MAX_STAGED_BYTES // (1024 * MIB)} GiB, {stages.MAX_STAGES} files",
        f"at most {server.MAX_FLIGHTS:,}",
    ):
        assert limit in GUIDE
    assert stages.MAX_STAGE_BYTES == stages.MAX_COMMIT_BYTES
