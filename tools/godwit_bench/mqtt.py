"""`godwit bench mqtt`: the MQTT listener against Mosquitto, with the same load generator for both.

The generator is a small C program (mqtt_load.c), compiled for the run, because clients in Python would be slower than
either broker. Messages have 100 bytes, in MQTT 3.1.1; every published message must arrive. Rounds are interleaved,
every measurement has a fresh broker, and ratios are computed per round. Mosquitto keeps nothing on disk.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from godwit.errors import GodwitError
from godwit_bench import peers
from godwit_bench.processes import GIVE_UP_S, HOST, ProcessGroup, free_port, wait_for_listener
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.small_senders import allow_files, encode, publish_packet, text

SOURCE: Final = Path(__file__).parent / "mqtt_load.c"
COMPILERS: Final = ("cc", "gcc", "clang")
COMPILE_S: Final = 60
RESUME_FILTERS: Final = 500
RESUME_MESSAGES: Final = 2000
RESUME: Final = "resume_500_filters_s"
PUBLISH: Final = 3
PUBACK: Final = 4


class MqttLoad(msgspec.Struct, frozen=True):
    """A load on both brokers."""

    name: str
    unit: str
    words: tuple[str, ...]
    """Arguments of the generator, without port and seconds."""
    is_on_disk: bool = False
    """Whether Godwit has its log on disk."""


LOADS: Final = (
    MqttLoad("q0", "messages/s, QoS 0, one topic", ("pair", "0", "1000", "1")),
    MqttLoad("q1_disk", "messages/s, QoS 1, one topic, 100 in flight", ("pair", "1", "100", "1"), is_on_disk=True),
    MqttLoad("small_senders", "messages/s, QoS 1, 1,000 senders with one in flight", ("many", "1000")),
    MqttLoad("topics_1000", "messages/s, QoS 0, 1,000 topics in turn", ("pair", "0", "1000", "1000")),
)


def compile_generator(folder: Path) -> str:
    """Return the path of the compiled load generator. Raises GodwitError without a C compiler."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name)) is not None), None)
    if compiler is None:
        raise GodwitError("the benchmark compiles its load generator: install a C compiler, for example gcc")
    program = folder / "mqtt_load"
    done = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    if done.returncode != 0:
        raise GodwitError(f"{compiler} did not compile {SOURCE.name}: {done.stderr.strip()}")
    return str(program)


def start_godwit(processes: ProcessGroup, *, is_on_disk: bool) -> int:
    """Start a broker; return its port for MQTT."""
    port = free_port()
    storage = ("--data", str(processes.folder / "data")) if is_on_disk else ("--memory",)
    log = processes.run(
        sys.executable, "-m", "godwit", "broker", *storage, "--listen", f"{HOST}:0", "--archive", "none",
        "--mqtt", f"{HOST}:{port}", "--quiet",
    )  # fmt: skip
    wait_for_listener(port, log)
    return port


def start_mosquitto(program: str, processes: ProcessGroup) -> int:
    """Start Mosquitto without persistence and limits; return its port."""
    port = free_port()
    settings = processes.folder / "mosquitto.conf"
    settings.write_text(
        f"listener {port} {HOST}\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\nlog_dest none\n"
        "max_queued_messages 0\nmax_inflight_messages 0\n",  # 0: without limit
        encoding="utf-8",
    )
    wait_for_listener(port, processes.run(program, "-c", str(settings)))
    return port


def mosquitto_version(program: str) -> str:
    """Return the version that the program prints with its help."""
    done = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=10, check=False)
    words = done.stdout.split("\n", 1)[0].split()
    return words[2] if len(words) > 2 and words[:2] == ["mosquitto", "version"] else "unknown"


def generate(generator: str, port: int, words: Sequence[str], seconds: float) -> float:
    """Run the generator; return the messages per second. Raises GodwitError if one did not arrive."""
    command = [generator, str(port), *words, f"{seconds:g}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIVE_UP_S + seconds, check=False)
    if done.returncode != 0:
        raise GodwitError(f"the load generator failed: {done.stderr.strip()}")
    messages, elapsed_s = done.stdout.split()
    return int(messages) / float(elapsed_s)


def measure(
    start: Callable[[ProcessGroup], int], folder: Path, generator: str, words: Sequence[str], seconds: float
) -> float:
    """Return the messages per second of a fresh broker."""
    with ProcessGroup(folder) as processes:
        return generate(generator, start(processes), words, seconds)


# -- a session that resumes -------------------------------------------------------------------------------------------


class RawClient:
    """A blocking client of MQTT 3.1.1."""

    def __init__(self, port: int, client_id: str, *, is_clean: bool) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=GIVE_UP_S)
        self._buffer = b""
        self.socket.sendall(encode(0x10, text("MQTT") + bytes((4, 2 * is_clean, 0, 0)) + text(client_id)))
        self.is_resumed = self.read()[1][:1] == b"\x01"

    def read(self) -> tuple[int, bytes]:
        """Return the first byte and the body of the next packet."""
        while True:
            size = shift = 0
            for at, byte in enumerate(self._buffer[1:5], 2):
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    if len(self._buffer) >= at + size:
                        packet = self._buffer[0], self._buffer[at : at + size]
                        self._buffer = self._buffer[at + size :]
                        return packet
                    break
            data = self.socket.recv(1 << 18)
            if not data:
                raise GodwitError("the broker closed the connection of a client")
            self._buffer += data


def resume_s(folder: Path, filters: int = RESUME_FILTERS, messages: int = RESUME_MESSAGES) -> float:
    """Return how long a session with many filters takes from its CONNECT to the last pending message."""
    with ProcessGroup(folder) as processes:
        port = start_godwit(processes, is_on_disk=True)
        client = RawClient(port, "resumed", is_clean=False)
        wanted = b"".join([text(f"bench/{number}/+") + b"\x01" for number in range(filters)])
        client.socket.sendall(encode(0x82, b"\x00\x01" + wanted))
        granted = client.read()
        if granted[0] != 0x90 or set(granted[1][2:]) != {1}:
            raise GodwitError("the broker did not grant all subscriptions")
        client.socket.close()
        publisher = RawClient(port, "publisher", is_clean=True)
        for number in range(messages):
            publisher.socket.sendall(publish_packet(f"bench/{number % filters}/value", b"%06d" % number))
        for _ in range(messages):
            if publisher.read()[0] >> 4 != PUBACK:
                raise GodwitError("the broker did not acknowledge a message")
        publisher.socket.close()
        began = time.perf_counter()
        client = RawClient(port, "resumed", is_clean=False)
        found: set[bytes] = set()
        while len(found) < messages:
            first, body = client.read()
            if first >> 4 != PUBLISH:
                raise GodwitError(f"the broker sent a packet of type {first >> 4}")
            at = 2 + int.from_bytes(body[:2], "big")
            client.socket.sendall(b"\x40\x02" + body[at : at + 2])
            found.add(body[at + 2 :])
        elapsed_s = time.perf_counter() - began
        if not client.is_resumed:
            raise GodwitError("the session was not resumed")
        client.socket.close()
        return elapsed_s


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
    senders: int = 1000,
) -> Report:
    """Measure everything, interleaved, and return the medians. Raises GodwitError if a peer is missing."""
    program = peers.require(on_install, programs=("mosquitto",), modules=())["mosquitto"]
    allow_files(senders)
    against = f"Mosquitto {mosquitto_version(program)} without persistence"
    with ProcessGroup() as compiled:
        generator = compile_generator(compiled.folder)
        measures: dict[str, Callable[[], float]] = {}
        for load in LOADS:
            words = ("many", str(senders)) if load.words[0] == "many" else load.words
            ours = partial(start_godwit, is_on_disk=load.is_on_disk)
            theirs = partial(start_mosquitto, program)
            measures[load.name] = partial(measure, ours, folder, generator, words, seconds)
            measures[f"{load.name}_mosquitto"] = partial(measure, theirs, folder, generator, words, seconds)
        measures[RESUME] = partial(resume_s, folder)
        figures = interleaved(measures, rounds, on_round)
    units = {load.name: load.unit + (", log on disk" if load.is_on_disk else "") for load in LOADS}
    units |= {f"{load.name}_mosquitto": load.unit for load in LOADS}
    units[RESUME] = f"s until a session with {RESUME_FILTERS} filters has its {RESUME_MESSAGES:,} pending messages"
    results = [Result(name, statistics.median(values), units[name]) for name, values in figures.items()]
    ratios = [
        Ratio(f"{load.name}_vs_mosquitto", median_ratio(figures[load.name], figures[f"{load.name}_mosquitto"]), against)
        for load in LOADS
    ]
    return Report("mqtt", machine(), results, ratios)
