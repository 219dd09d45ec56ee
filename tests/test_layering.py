"""The architecture as a test: which layer may import which, what sans-IO layers must not use, and a little tidiness.

The tables below are the documentation; the rest of the file only reads the source with `ast` and compares.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
TOOLS = ROOT / "tools"

CORE = "errors limits wire transport"
MACHINES = f"{CORE} broker native mqtt store server client"

# Imports point down. A layer that is not in this table may not exist.
LAYERS: dict[str, tuple[str, str]] = {
    # layer: (what it may import of godwit, and which packages beside the standard library)
    "errors": ("", ""),
    "limits": ("", ""),
    "install": ("", ""),  # the name of the distribution
    "compiled_core": ("", "godwit_core"),  # finds the compiled form of the layers below
    "impairment": ("", ""),  # a bad network, for the relay and the simulator
    "metrics": ("errors", "msgspec prometheus_client"),  # the endpoint of any process, in a thread of its own
    "wire": ("errors limits", "cbor2 crc32c msgspec"),
    "transport": ("errors limits wire", "crc32c msgspec"),
    "capture": ("errors limits wire transport", "msgspec"),  # files and drawings of packets; bytes in, text out
    "broker": ("errors limits wire", "msgspec"),  # the core has ports: it knows no protocol, no transport, no store
    "native": (f"{CORE} broker", "msgspec"),  # the first protocol that uses these ports
    "mqtt": ("errors limits wire broker", "msgspec"),  # the second
    "store": (CORE, "apsw crc32c msgspec"),
    "server": (f"{CORE} broker native mqtt store", "msgspec"),  # joins transport, protocols, core and log
    "client": (f"{CORE} broker store", "msgspec"),
    "cluster": ("errors limits wire store", "crc32c msgspec"),  # the replicated log: knows no broker and no engine
    "net": (f"capture cluster install metrics {MACHINES}", "OpenSSL apsw asyncpg cryptography msgspec nats uvloop"),
    "archive": (MACHINES, "apsw msgspec numpy pyarrow"),
    "spark": ("", "pyarrow pyspark"),  # shipped to executors by value: nothing of godwit is there
    "pipeline": (
        "install metrics spark",
        "cbor2 datasketches deltalake duckdb google msgpack numpy pint py4j pyarrow pyspark",
    ),
    "console": ("__init__ errors install pipeline", "aiohttp msgspec"),  # the public API only
    "cli": (
        f"__init__ capture compiled_core install metrics {MACHINES} impairment net archive spark pipeline console",
        "apsw msgspec paho prompt_toolkit pyarrow rich typer uvloop",  # paho: the MQTT room of the demo, if installed
    ),
    "sync": ("net", ""),
    "__init__": (
        "client compiled_core errors install net spark sync transport wire",
        "",
    ),  # late: `import godwit` imports no layer
    "__main__": ("cli", ""),
    "pyspark_godwit": ("spark", "pyarrow"),  # found by PySpark through its name
    # Development tools, outside what users install: no layer above may import them.
    "godwit_sim": (f"{MACHINES} cluster impairment", "apsw msgspec"),  # drives the machines without net
    "godwit_bench": (
        f"{MACHINES} impairment net archive spark pipeline console godwit_sim",
        "aiohttp apsw crc32c greenstalk msgspec nats numpy paho pyarrow pyspark rich uvloop zenoh",
    ),
    "godwit_tools": ("__init__ broker cli errors server sync godwit_sim godwit_bench", "mkdocs msgspec rich typer"),
}

# Of godwit.wire the core uses values (entries, filters, changes, codes, epochs), never the native protocol's messages.
# A last will is a value that is defined beside these, because a login carries it.
NOT_IN_CORE = ("control", "packet", "parameters", "parts", "work", "cbor")
VALUES_IN_CORE = frozenset(("godwit.wire.control.Will",))

# Time, bytes and randomness come into these layers as arguments: the whole system runs in one process, from one seed.
SANS_IO = [
    "errors", "limits", "wire", "transport", "broker", "native", "mqtt", "store", "server", "client", "cluster",
    "impairment", "capture", "godwit_sim",
]  # fmt: skip
IMPURE: dict[str, str] = {
    "time": "a clock",
    "datetime.datetime.now": "a clock",
    "datetime.datetime.utcnow": "a clock",
    "datetime.datetime.today": "a clock",
    "datetime.date.today": "a clock",
    "sched": "a clock",
    "socket": "a socket",
    "socketserver": "a socket",
    "ssl": "a socket",
    "select": "a socket",
    "selectors": "a socket",
    "asyncio": "an event loop",
    "uvloop": "an event loop",
    "threading": "a thread",
    "_thread": "a thread",
    "concurrent": "a thread",
    "multiprocessing": "a process",
    "subprocess": "a process",
    "signal": "a process",
    "os.fork": "a process",
    "os.getpid": "a process",
    "os.urandom": "unseeded randomness",
    "os.getrandom": "unseeded randomness",
    "secrets": "unseeded randomness",
    "uuid": "unseeded randomness",
    "random": "the global random generator",
    "importlib": "imports that this test cannot see",
}
EXCEPTIONS: dict[str, set[str]] = {
    "client": {"random.Random"},  # seeded instances, handed down
    "impairment": {"random.Random"},
    "godwit_sim": {"random.Random"},
}

MAX_MODULE_LINES = 800


class Names(ast.NodeVisitor):
    """Every dotted name that a module takes from elsewhere, imported or used, as (line, name)."""

    def __init__(self, module: str, *, is_package: bool) -> None:
        self.package = module if is_package else module.rpartition(".")[0]
        self.origins: dict[str, str] = {}  # local name -> what it stands for
        self.imported: list[tuple[int, str]] = []
        self.used: list[tuple[int, str]] = []
        self.unseeded: list[int] = []

    def read(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):  # imports first: a function may use what is imported further down
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        self.visit(tree)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported.append((node.lineno, alias.name))
            if alias.asname:
                self.origins[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                self.origins[top] = top

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            self.imported.append((node.lineno, f"{base}.{alias.name}"))
            self.origins[alias.asname or alias.name] = f"{base}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (name := self._resolve(node)) is None:
            self.generic_visit(node)
        else:
            self.used.append((node.lineno, name))

    def visit_Name(self, node: ast.Name) -> None:
        if (name := self._resolve(node)) is not None:
            self.used.append((node.lineno, name))

    def visit_Call(self, node: ast.Call) -> None:
        if self._resolve(node.func) == "random.Random" and not node.args and not node.keywords:
            self.unseeded.append(node.lineno)
        self.generic_visit(node)

    def _resolve(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.origins:
            return None
        return ".".join([self.origins[node.id], *reversed(parts)])


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def layer_of(module: str) -> str:
    """Return the layer that a dotted name belongs to: `godwit.wire.packet` -> `wire`; the package is `__init__`."""
    parts = module.split(".")
    if parts[0] != "godwit":
        return parts[0]
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"


def is_message(name: str) -> bool:
    """Return whether a dotted name belongs to the native protocol's messages or packets."""
    return name not in VALUES_IN_CORE and any(within(name, f"godwit.wire.{module}") for module in NOT_IN_CORE)


def impurity(layer: str, name: str, *, is_import: bool) -> str | None:
    allowed = EXCEPTIONS.get(layer, set())
    if any(within(name, exception) for exception in allowed):
        return None
    if is_import and any(within(exception, name) for exception in allowed):
        return None  # `import random`: what is used of it is looked at by itself
    return next((what for prefix, what in IMPURE.items() if within(name, prefix)), None)


def violations(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """What this source, as that module, does against the tables."""
    package, _, rest = module.partition(".")
    layer = rest.partition(".")[0] or "__init__" if package == "godwit" else package
    if layer not in LAYERS:
        yield f"{module}: the layer {layer!r} is not in the table LAYERS"
        return
    names = Names(module, is_package=is_package)
    names.read(ast.parse(source))
    below, packages = (set(column.split()) for column in LAYERS[layer])
    for line, name in names.imported:
        top = name.partition(".")[0]
        if top == "godwit" or top in LAYERS:
            if layer == "broker" and is_message(name):
                yield f"{module}:{line}: the core may not import messages of the native protocol ({name})"
            if (target := layer_of(name)) != layer and target not in below:
                yield f"{module}:{line}: {layer} may not import {target} ({name})"
        elif top not in packages and top not in sys.stdlib_module_names:
            yield f"{module}:{line}: {layer} may not use the package {top}"
    if layer in SANS_IO:
        for is_import, found in ((True, names.imported), (False, names.used)):
            for line, name in found:
                if what := impurity(layer, name, is_import=is_import):
                    yield f"{module}:{line}: {layer} is sans-IO and may not use {what} ({name})"
        for line in names.unseeded:
            yield f"{module}:{line}: random.Random() without a seed"


def source_files() -> list[Path]:
    return sorted([*SOURCE.rglob("*.py"), *TOOLS.rglob("*.py")])


def dotted(path: Path) -> str:
    parts = path.relative_to(TOOLS if path.is_relative_to(TOOLS) else SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def report(lines: list[str]) -> str:
    return "\n" + "\n".join(lines)


# -- the source -------------------------------------------------------------------------------------------------------


def test_imports_point_down_and_sans_io_layers_are_pure() -> None:
    found = [
        violation
        for path in source_files()
        for violation in violations(
            dotted(path), path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"
        )
    ]
    assert not found, report(found)


def test_modules_are_short() -> None:
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MAX_MODULE_LINES]
    assert not long, report(long)


def test_modules_say_what_they_are_for() -> None:
    silent = [
        short(path) for path in source_files() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent, report(silent)


def test_the_table_of_layers_has_no_circle() -> None:
    def reachable(layer: str, path: tuple[str, ...]) -> None:
        assert layer not in path, " -> ".join([*path, layer])
        for below in LAYERS[layer][0].split():
            reachable(below, (*path, layer))

    for layer in LAYERS:
        reachable(layer, ())


# -- the checker itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("godwit.wire.packet", "from godwit.transport import endpoint", "wire may not import transport"),
        ("godwit.wire.packet", "import godwit.net.udp", "wire may not import net"),
        ("godwit.wire.packet", "from godwit import net", "wire may not import net"),
        ("godwit.wire.packet", "from ..transport import endpoint", "wire may not import transport"),
        ("godwit.wire.packet", "from .. import transport", "wire may not import transport"),
        ("godwit.wire.packet", "import godwit", "wire may not import __init__"),
        ("godwit.wire.packet", "def f():\n    from godwit_sim import disk", "wire may not import godwit_sim"),
        ("godwit.wire.packet", "if TYPE_CHECKING:\n    from godwit_sim import disk", "wire may not import godwit_sim"),
        ("godwit.limits", "from godwit.wire import packet", "limits may not import wire"),
        ("godwit.broker.routing", "from godwit.store import memory", "broker may not import store"),
        ("godwit.broker.routing", "from godwit.transport import endpoint", "broker may not import transport"),
        ("godwit.broker.routing", "from godwit.native import peer", "broker may not import native"),
        ("godwit.broker.routing", "from godwit.wire.control import Login", "messages of the native protocol"),
        ("godwit.broker.routing", "from godwit.wire import control", "messages of the native protocol"),
        ("godwit.store.memory", "from godwit.broker import routing", "store may not import broker"),
        ("godwit.server.machine", "import godwit.client", "server may not import client"),
        ("godwit.net.relay", "from godwit_sim.network import Network", "net may not import godwit_sim"),
        ("godwit_sim.world", "from godwit.net import udp", "godwit_sim may not import net"),
        ("godwit.spark.source", "from godwit.errors import GodwitError", "spark may not import errors"),
        ("godwit.spark.source", "import msgspec", "spark may not use the package msgspec"),
        ("godwit.transport.send_channels", "import numpy as np", "transport may not use the package numpy"),
        ("godwit_bench.run", "from godwit.cli import main", "godwit_bench may not import cli"),
        ("godwit.plumbing.pipe", "", "the layer 'plumbing' is not in the table"),
        ("godwit", "from godwit_sim import disk", "__init__ may not import godwit_sim"),
        ("godwit.wire.packet", "import time", "may not use a clock (time)"),
        ("godwit.wire.packet", "from time import monotonic", "a clock (time.monotonic)"),
        ("godwit.broker.delivery", "import datetime as d\nd.datetime.now()", ":2: broker is sans-IO"),
        ("godwit.broker.delivery", "from datetime import datetime\nx = datetime.utcnow", "datetime.datetime.utcnow"),
        ("godwit.transport.endpoint", "import socket", "a socket"),
        ("godwit.transport.endpoint", "import asyncio.events", "an event loop"),
        ("godwit.transport.endpoint", "from os import urandom", "os.urandom"),
        ("godwit.transport.endpoint", "import os as o\nclass A:\n    e = o.urandom", ":3: transport is sans-IO"),
        ("godwit.transport.endpoint", "def f():\n    os.urandom(8)\nimport os", ":2: transport is sans-IO"),
        ("godwit.transport.endpoint", "import secrets", "unseeded randomness"),
        ("godwit.transport.endpoint", "import uuid", "unseeded randomness"),
        ("godwit.transport.endpoint", "import random", "the global random generator"),
        ("godwit.transport.endpoint", "import importlib", "cannot see"),
        ("godwit.store.writer", "from concurrent.futures import Future", "a thread"),
        ("godwit_sim.world", "import random\nrandom.shuffle([])", "(random.shuffle)"),
        ("godwit_sim.world", "from random import choice", "(random.choice)"),
        ("godwit_sim.world", "from random import *", "(random.*)"),
        ("godwit_sim.world", "import random\nrng = random", "(random)"),
        ("godwit_sim.world", "import random\nrng = random.SystemRandom()", "(random.SystemRandom)"),
        ("godwit_sim.world", "from random import Random\nrng = Random()", "without a seed"),
    ],
)
def test_checker_finds(module: str, source: str, complaint: str) -> None:
    found = list(violations(module, source))
    assert len(found) == 1, report(found)
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "godwit.wire.packet",
            "import struct\nimport msgspec\nfrom godwit.limits import KIB\nfrom .frames import Frame",
        ),
        ("godwit.transport.endpoint", "def f(time, random):\n    return time.monotonic() + random.random()"),
        ("godwit.transport.endpoint", "import os.path\nos.path.join('a')"),
        ("godwit.broker.jobs", "from datetime import datetime, timedelta\ndatetime.fromtimestamp(0)"),
        ("godwit_sim.world", "import random\ndef f(seed: int) -> random.Random:\n    return random.Random(seed)"),
        ("godwit_sim.world", "from random import Random\nfrom godwit.client import publisher"),
        ("godwit.net.udp", "import socket, time, asyncio, os\nos.urandom(16)"),
        ("godwit.cli.main", "import godwit\nimport typer\nfrom godwit.impairment import LinkSettings"),
    ],
)
def test_checker_accepts(module: str, source: str) -> None:
    assert list(violations(module, source)) == []


def test_checker_knows_relative_imports_of_a_package() -> None:
    assert list(violations("godwit.wire", "from .packet import Packet", is_package=True)) == []
    assert len(list(violations("godwit.wire", "from ..net import udp", is_package=True))) == 1
