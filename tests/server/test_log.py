"""Every log has what the server asks of one."""

from __future__ import annotations

from functools import partial

import pytest
from tests.net.log_stands import DiskReader, DiskStore

from godwit.net.durable_log import ThreadedLog
from godwit.net.log_writer import LogWriter
from godwit.server.direct_log import DirectLog
from godwit.server.log import Log
from godwit.server.memory_log import MemoryLog
from godwit.store.memory import MemoryStore

ASKED = {name for name in vars(Log) if not name.startswith("_")}


def threaded() -> Log:
    store = DiskStore()
    return ThreadedLog(store, DiskReader(store), partial(LogWriter, store), wake=lambda: None, on_notice=print)


@pytest.mark.parametrize(
    "log", [DirectLog(MemoryStore(log_id=b"id")), MemoryLog(MemoryStore(log_id=b"id")), threaded()], ids=type
)
def test_a_log_has_all_that_is_asked_of_it(log: Log) -> None:
    assert {name for name in ASKED if not hasattr(log, name)} == set()
    assert (log.log_id, log.first_offset, log.next_offset, log.held_bytes, log.due_us) == (b"id", 0, 0, 0, None)


def test_only_a_log_in_memory_forgets_what_stands_beside_it() -> None:
    assert not MemoryLog(MemoryStore(log_id=b"id")).keeps_state
    assert DirectLog(MemoryStore(log_id=b"id")).keeps_state
    assert threaded().keeps_state
