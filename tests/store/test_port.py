"""The port is small, and what is behind it fits."""

from __future__ import annotations

import msgspec

from godwit.store.memory import MemoryStore
from godwit.store.port import Slice, Store


def test_every_store_has_what_the_port_asks_for() -> None:
    wanted = {name for name in vars(Store) if not name.startswith("_")}
    assert wanted == {"append", "first_offset", "floor_after", "log_id", "next_offset", "offset_at", "read"}
    assert wanted <= set(dir(MemoryStore))


def test_a_slice_says_where_to_read_on() -> None:
    assert msgspec.structs.astuple(Slice([], 3)) == ([], 3)
