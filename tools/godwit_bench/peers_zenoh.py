"""Zenoh as a system under test: its router over TCP, and its client for Python, both with their core in Rust."""

from __future__ import annotations

import json
import threading
import time
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Any

from godwit_bench.forward_pair import MESSAGE_BYTES, TOPIC, Pair, bursts, count_in_thread, rest
from godwit_bench.stage import HOST, READY, Stage, free_port, hear

if TYPE_CHECKING:
    import zenoh


def zenoh_pair() -> Pair:
    return Pair(_broker, _publish, _subscribe, may_lose=True)


def _broker(stage: Stage) -> str:
    address = f"tcp/{HOST}:{free_port()}"
    hear(stage.start(_route, address), str)
    return address


def _route(pipe: Pipe, address: str) -> None:
    """The router of Zenoh's Python package: no Python runs in it while it forwards."""
    import zenoh

    with zenoh.open(_config("router", "listen", address)):
        pipe.send(READY)
        threading.Event().wait()


def _subscribe(pipe: Pipe, address: str) -> None:
    import zenoh

    count = 0

    def on_sample(_: zenoh.Sample) -> None:
        nonlocal count
        count += 1

    with zenoh.open(_config("client", "connect", address)) as session:
        session.declare_subscriber(TOPIC, on_sample)
        count_in_thread(pipe, lambda: count)


def _publish(pipe: Pipe, address: str, seconds: float) -> None:
    import zenoh

    payload = bytes(MESSAGE_BYTES)
    messages = 0
    with zenoh.open(_config("client", "connect", address)) as session:
        # It waits where it would lose messages otherwise.
        publisher = session.declare_publisher(TOPIC, congestion_control=zenoh.CongestionControl.BLOCK)
        while not _is_wanted(publisher):
            time.sleep(0.001)
        for burst in bursts(seconds):
            for _ in burst:
                publisher.put(payload)
            messages += len(burst)
        rest(pipe, messages)


def _is_wanted(publisher: zenoh.Publisher) -> bool:
    """Whether the publisher knows of the subscriber already; it publishes nothing before that."""
    status: Any = publisher.matching_status  # not a bool, as its annotation says
    return bool(status.matching)


def _config(mode: str, side: str, address: str) -> zenoh.Config:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5(f"{side}/endpoints", json.dumps([address]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return config
