"""Public judges of MQTT brokers: the packet sequences of eclipse-mosquitto/mosquitto (test/broker/data/*.json), and the
interoperability suite of eclipse-paho/paho.mqtt.testing.

They are never part of this repository. MOSQUITTO_SRC and PAHO_TESTING name checkouts; without them the tests clone the
repositories, and are skipped where that is not possible.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

URL = "https://github.com/eclipse-mosquitto/mosquitto"
PAHO_URL = "https://github.com/eclipse-paho/paho.mqtt.testing"
CLONE_TIMEOUT_S = 60


class Sequence(msgspec.Struct):
    """Bytes to send and bytes to expect, in order."""

    name: str
    version: int
    has_connect: bool
    """Whether an accepted CONNECT comes first, which is not in `steps`."""
    ends: bool
    """Whether the server closes the connection at the end."""
    steps: list[dict[str, Any]]


def checkout(cache: Path) -> Path:
    """Return a folder with the sequences; skips the test without one."""
    return checkout_of(cache, "mosquitto", "MOSQUITTO_SRC", URL)


def paho_checkout(cache: Path) -> Path:
    """Return the folder of Paho's interoperability suite; skips the test without one."""
    return checkout_of(cache, "paho", "PAHO_TESTING", PAHO_URL) / "interoperability"


def checkout_of(cache: Path, name: str, variable: str, url: str) -> Path:
    """Return the checkout that an environment variable names, or one in the cache; skips the test without one."""
    if variable in os.environ:
        return Path(os.environ[variable])
    folder = cache / name
    if not folder.exists():
        with TemporaryDirectory(dir=cache) as place:  # other tests see a complete checkout, or none
            clone = Path(place) / name
            command = ["git", "clone", "--quiet", "--depth=1", "--filter=blob:none", url, str(clone)]
            try:
                subprocess.run(command, check=True, timeout=CLONE_TIMEOUT_S, capture_output=True)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"a checkout of {url} is not available, nor {variable}: {error}")
            with suppress(OSError):  # another test was faster
                clone.rename(folder)
    return folder


def load_sequences(folder: Path) -> list[Sequence]:
    found: list[Sequence] = []
    for file in sorted((folder / "test/broker/data").glob("*.json")):
        for group in json.loads(file.read_text()):
            if group.get("disable"):
                continue
            for test in group["tests"]:
                both = {**group, **test}
                name = f"{file.stem}: {group['group']} {test['name']}"
                steps = [_step(step) for step in test["msgs"]]
                version, ends = both.get("ver", 4), both.get("expect_disconnect", True)
                found.append(Sequence(name, version, both.get("connect", True), ends, steps))
    assert len(found) > 1000, f"{folder} has only {len(found)} packet sequences"
    return found


def _step(step: dict[str, Any]) -> dict[str, Any]:
    return {**step, "payload": parse(step["payload"])} if step["type"] in ("send", "recv") else step


def parse(text: str) -> bytes:
    """Return the bytes of a step: hex, 'text', and numbers with a letter for their width."""
    data = b""
    words = text.split(" ")
    while words:
        word = words.pop(0)
        if not word:
            continue
        kind, rest = word[0], word[1:]
        if kind == "'":
            while not rest.endswith("'"):
                rest += " " + words.pop(0)
            data += rest[:-1].encode()
        elif kind in "vr":
            value = int(rest)
            while value >= 128:
                data += bytes((value % 128 | 128,))
                value //= 128
            data += bytes((value,))
        elif kind in "iHkmsL":
            data += int(rest).to_bytes({"i": 1, "L": 4}.get(kind, 2), "big")
        else:
            data += bytes.fromhex(word)
    return data
