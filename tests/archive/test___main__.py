"""The archive's program: what Ctrl-C in a terminal, and the end of its broker, are to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.archive import logs
from tests.archive.running import archive_of, log_in


def test_it_ends_with_its_broker_whatever_its_clients_do(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        for _ in range(30):
            store.append([logs.make_entry(payloads=[bytes(10_000)] * 100)])
        with archive_of(tmp_path) as (process, client):
            assert next(client.read()).num_rows  # it goes on reading, and nobody takes it
            os.kill(process.pid, signal.SIGINT)  # Ctrl-C in a terminal goes to all processes in it
            assert client.info()["next_offset"] == 3000
            assert process.leave() == 0
