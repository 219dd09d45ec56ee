"""The archive process: start, end, pipes to the broker, memory."""

from __future__ import annotations

import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.archive.running import PATIENCE_S, Appender, archive_of, log_in, process_in

from godwit.archive.process import MAX_MEMORY_BYTES, NICENESS, BrokerPipe
from godwit.broker.access import TokenRights
from godwit.limits import MIB
from godwit.server.archive_pipe import (
    Commit,
    CommitDone,
    FromArchive,
    LogLine,
    PipeReader,
    Ready,
    decode_from_archive,
    encode_message,
)

CERTIFICATES = Path(__file__).parent / "certificates"


def test_stages_outlive_the_process(tmp_path: Path) -> None:
    rows = pa.table({"topic": ["a"], "payload": [b"x"]})
    with log_in(tmp_path) as store:
        with archive_of(tmp_path) as (_, client):
            client.stage(rows, query="q", batch=0, partition=0, attempt=0, publisher="p")
        with archive_of(tmp_path) as (process, client):
            process.appender = Appender(store, tmp_path / "stages")
            assert client.commit("q", 0, [(0, 0)])["count"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads of another process in /proc")
def test_all_threads_have_a_low_priority(tmp_path: Path) -> None:
    with log_in(tmp_path), archive_of(tmp_path) as (process, client):
        client.info()
        threads = [int(one.name) for one in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) > 3
        assert {os.getpriority(os.PRIO_PROCESS, one) for one in threads} == {NICENESS}


def test_token_and_certificate_from_files(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n", encoding="utf-8")
    certificate = CERTIFICATES / "certificate.pem"
    arguments = ["--token-file", str(tmp_path / "tokens"), "--certificate", str(certificate)]
    arguments += ["--key", str(CERTIFICATES / "key.pem")]
    with log_in(tmp_path), process_in(tmp_path, *arguments) as process:
        url = process.url()
        assert url.startswith("grpc+tls://127.0.0.1:")
        with ArchiveClient(url, "secret", certificate.read_bytes()) as client:
            assert client.info()["log_id"] == logs.LOG_ID.hex()
        with (
            ArchiveClient(url, None, certificate.read_bytes()) as client,
            pytest.raises(flight.FlightUnauthenticatedError, match="wants a token"),
        ):
            client.info()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "nowhere"], "'nowhere' is not an address: give HOST:PORT"),
        (["--listen", "127.0.0.1:{taken}"], "cannot listen on grpc://127.0.0.1:{taken}"),
        (["--token-file", "{folder}/missing"], "cannot read the tokens in {folder}/missing"),
        (["--certificate", "{folder}/log.sqlite"], "give both or none"),
        (["--certificate", "{folder}/missing", "--key", "{folder}/missing"], "No such file or directory"),
        (["--certificate", "{folder}/tokens", "--key", "{folder}/tokens"], "cannot listen on grpc+tls://"),
        (["--log", "{folder}/missing"], "the log {folder}/missing cannot be opened"),
    ],
)
def test_a_start_that_cannot_work_is_explained(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "tokens").write_text("secret\n", encoding="utf-8")
    with log_in(tmp_path), socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"folder": str(tmp_path), "taken": str(taken.getsockname()[1])}
        with process_in(tmp_path, *[argument.format(**words) for argument in arguments]) as process:
            line = process.heard.get(timeout=PATIENCE_S)
            assert isinstance(line, LogLine)
            assert line.level == "warning"
            assert complaint.format(**words) in line.text
            assert process.wait() == 1


def write_while_read(folder: Path, payload_bytes: int, rounds: int) -> tuple[int, int]:
    """Blocks of a megabyte, a slow client that takes one batch a round; gives the longest WAL and the rows."""
    entry = logs.make_entry(payloads=[bytes(payload_bytes)] * (MIB // payload_bytes))
    longest = rows = 0
    with log_in(folder) as store, archive_of(folder) as (_, client):
        for _ in range(64):
            store.append([entry])
        store.checkpoint(truncate=True)
        reading = client.read()
        for _ in range(rounds):
            batch = next(reading, None)
            rows += 0 if batch is None else batch.num_rows
            for _ in range(8):
                store.append([entry])
            longest = max(longest, store.wal_bytes)
            deadline = time.monotonic() + PATIENCE_S
            store.checkpoint(truncate=True)
            while store.wal_bytes and time.monotonic() < deadline:  # a read may be under way, but it ends by itself
                time.sleep(0.001)
                store.checkpoint(truncate=True)
        rows += sum(batch.num_rows for batch in reading)
        assert rows == 64 * entry.count
    return longest, rows


def test_the_wal_does_not_grow_because_a_client_is_slow(tmp_path: Path) -> None:
    """The archive reads ahead and waits for its client with nothing open, so every checkpoint comes to its end."""
    longest, _ = write_while_read(tmp_path, 8192, rounds=12)
    assert longest < 12 * MIB  # eight blocks and what SQLite needs around them


def test_memory_is_bounded_when_nobody_reads_on(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        for _ in range(64):
            store.append([logs.make_entry(payloads=[bytes(8192)] * 128)])
        with archive_of(tmp_path) as (process, client):
            next(client.read(end=1))
            before = resident_bytes(process.pid)
            readings = [client.read() for _ in range(40)]
            for reading in readings:
                assert next(reading).num_rows
            assert resident_bytes(process.pid) - before < 40 * 10 * MIB
            assert sum(batch.num_rows for batch in client.read()) == 64 * 128


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def repeating(kind: pa.DataType, rows: int, payload: bytes) -> pa.Table:
    """Rows that say the same payload over and over."""
    if pa.types.is_dictionary(kind):
        values = pa.array([payload], pa.binary())
        column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), values)
    else:
        view = struct.pack("<I4sII", len(payload), payload[:4], 0, 0)  # length, first bytes, buffer, place in it
        buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(payload)]
        column = pa.Array.from_buffers(kind, rows, buffers)
    return pa.table({"topic": ["a"] * rows, "payload": column})


def put(client: flight.FlightClient, rows: pa.Table, options: flight.FlightCallOptions | None) -> None:
    name = b'{"query": "q", "batch": 0, "partition": 0, "attempt": 0, "publisher": "p"}'
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(name), rows.schema, options)
    with writer:
        writer.write_table(rows)
        writer.done_writing()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("how", ["dictionary", "view", "zstd"])
def test_a_few_kilobytes_that_become_gigabytes_are_refused(tmp_path: Path, how: str) -> None:
    """Seen from outside: the most memory that the process ever had."""
    options = None
    if how == "zstd":
        rows = pa.table({"topic": ["a"], "payload": pa.array([bytes(900 * MIB)], pa.binary())})
        options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    else:
        kind = pa.dictionary(pa.int8(), pa.binary()) if how == "dictionary" else pa.binary_view()
        rows = repeating(kind, 65_536, bytes(16_000))
    complaint = "memory" if how == "zstd" else "without a dictionary or views"
    bound_bytes = 600 * MIB
    with log_in(tmp_path), process_in(tmp_path) as process:
        url = process.url()
        own_bounds = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        assert own_bounds[0] == MAX_MEMORY_BYTES
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (bound_bytes, own_bounds[1]))  # a test has less to spare
        with flight.connect(url) as client:
            with pytest.raises(flight.FlightError, match=complaint):
                put(client, rows, options)
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            peak_kib = int(status.partition("VmHWM:")[2].split()[0])
            print(f"{how}: at most {peak_kib} KiB")
            assert peak_kib * 1024 < bound_bytes / 2
        with ArchiveClient(url) as client:  # it goes on
            assert client.info()["next_offset"] == 0
            client.stage(
                pa.table({"topic": ["a"], "payload": [b"x"]}), query="q", batch=0, partition=0, attempt=0, publisher="p"
            )


RIGHTS = TokenRights(names=("p",))


class Broker:
    """The other ends."""

    def __init__(self) -> None:
        archive_reads, self.writes_fd = os.pipe()
        self.reads_fd, archive_writes = os.pipe()
        self.ended = threading.Event()
        self.pipe = BrokerPipe(archive_reads, archive_writes, self.ended.set)
        self.pipe.start()
        self._reader = PipeReader()
        self._heard: list[FromArchive] = []

    def hear(self) -> FromArchive:
        while not self._heard:
            self._heard += map(decode_from_archive, self._reader.feed(os.read(self.reads_fd, 65536)))
        return self._heard.pop(0)

    def say(self, data: bytes) -> None:
        os.write(self.writes_fd, data)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    if not broker.ended.is_set():
        os.close(broker.writes_fd)
        assert broker.ended.wait(PATIENCE_S)


def test_what_it_says(broker: Broker) -> None:
    broker.pipe.ready("grpc://127.0.0.1:7")
    broker.pipe.log("warning", "it is hot")
    assert broker.hear() == Ready("grpc://127.0.0.1:7")
    assert broker.hear() == LogLine("warning", "it is hot")


def test_each_commit_gets_its_own_answer(broker: Broker) -> None:
    answers: dict[str, CommitDone | None] = {}

    def ask(query: str) -> None:
        answers[query] = broker.pipe.commit(query, 7, ["file"], RIGHTS, PATIENCE_S)

    threads = [threading.Thread(target=ask, args=(query,)) for query in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    keys = {}
    for _ in threads:
        commit = broker.hear()
        assert isinstance(commit, Commit)
        assert (commit.batch, commit.files, commit.rights) == (7, ["file"], RIGHTS)
        keys[commit.query] = commit.key
    said = b"".join(
        encode_message(CommitDone(keys[query], first_offset=number))
        for number, query in enumerate(("three", "one", "two"))
    )
    broker.say(said[:5])  # however it is cut
    broker.say(said[5:])
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {query: done and done.first_offset for query, done in answers.items()} == {"three": 0, "one": 1, "two": 2}


def test_no_answer_in_time(broker: Broker) -> None:
    assert broker.pipe.commit("q", 1, [], RIGHTS, 0.01) is None
    late = broker.hear()
    assert isinstance(late, Commit)
    broker.say(encode_message(CommitDone(late.key)))  # its caller has given up
    broker.pipe.ready("still there")
    assert broker.hear() == Ready("still there")


def test_the_end_of_the_pipe_is_the_end(broker: Broker) -> None:
    os.close(broker.writes_fd)
    assert broker.ended.wait(PATIENCE_S)
    os.close(broker.reads_fd)
    broker.pipe.log("info", "too late")  # not an error


def test_a_broker_that_talks_nonsense_is_no_broker(broker: Broker) -> None:
    broker.say(b"\x00\x00\x00\x01?")
    assert broker.ended.wait(PATIENCE_S)


FAULTS = """
import resource, sys
from random import Random
from godwit.archive.process import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
rng = Random(1)
def work():
    return len([b"x" * rng.randrange(100_000, 1_000_000) for _ in range(16)])
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_pages_are_used_again() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("kept", "default")
    }
    print(faults)
    assert faults["kept"] < faults["default"] / 10


BOUNDED = """
from godwit.archive.process import limit_memory
limit_memory(500 * 2**20)
held = bytearray(100 * 2**20)
try:
    bytearray(500 * 2**20)
except MemoryError:
    print("refused")
limit_memory(200 * 2**20)
try:
    bytearray(300 * 2**20)
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the bound is not about mapped memory")
def test_more_than_the_bound_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["refused"] * 2


def test_it_ends_with_its_broker_whatever_its_clients_do(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        for _ in range(30):
            store.append([logs.make_entry(payloads=[bytes(10_000)] * 100)])
        with archive_of(tmp_path) as (process, client):
            assert next(client.read()).num_rows  # the archive reads ahead, and the client does not
            os.kill(process.pid, signal.SIGINT)  # Ctrl-C in a terminal goes to all processes in it
            assert client.info()["next_offset"] == 3000
            assert process.leave() == 0
