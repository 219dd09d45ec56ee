"""Every code block of the documents runs, or has a reason why it does not."""

from __future__ import annotations

import ast
import asyncio
import inspect
import shlex
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cli.real import needs_posix
from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, session
from tests.net.running import broker_in_thread

import godwit
from godwit.cli.main import COMMANDS, load_own_command
from godwit.pipeline.configuration import load_retention
from godwit.server.configuration import load_configuration

ELSEWHERE: Final = {
    ("docs/ARCHIVE.md", "python"): "tests/archive/test_guide.py",
    ("docs/DECODERS.md", "python"): "tests/spark/test_docs.py",
    ("docs/DECODERS.md", "toml"): "tests/spark/test_docs.py",
    ("docs/SPARK.md", "python"): "tests/spark/test_docs.py",
    ("docs/guides/mqtt.md", "javascript"): "tests/net/test_mqtt_clients.py",
    ("docs/guides/mqtt.md", "python"): "tests/net/test_mqtt.py",
    ("docs/PROTOCOL.md", "tested by the wire format"): "tests/wire/test_protocol_examples.py",
}
"""Blocks that tests of their own subject run."""
PYTHON: Final = (
    "README.md",
    "docs/API.md",
    "docs/GUIDE.md",
    "docs/guides/devices.md",
    "docs/guides/files.md",
    "docs/guides/jobs.md",
)
"""Pages whose programs run here."""
SESSIONS: Final[dict[str, tuple[str, ...]]] = {
    "README.md": (),
    "docs/ANOMALIES.md": (),
    "docs/ARCHIVE.md": (),
    "docs/GUIDE.md": ("seq 200 | godwit pub orders/1 --lines", "godwit pub camera/door picture", "touch desk.secret"),
    "docs/guides/captures.md": ("godwit pub home/x 21.5 --name sensor-1 --repeat 0 --interval 0.1 --quiet",),
    "docs/guides/cluster.md": (),
    "docs/guides/deployment.md": (),
    "docs/guides/devices.md": ("godwit pub plant/press-7/status online --retain",),
    "docs/guides/files.md": ("echo report > report.pdf",),
    "docs/guides/jobs.md": ("echo picture > photo.png",),
    "docs/guides/metrics.md": (),
    "docs/guides/mqtt.md": (),
    "docs/guides/operations.md": ("echo 'sys_interval_s = 5' > broker.toml",),
    "docs/guides/security.md": (),
}
"""Pages whose commands run here, and the commands that prepare their folder."""
TUTORIAL: Final = "docs/tutorial.md"
DEADLINE_S: Final = 120.0


def of_kind(page: str, kind: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.kind == kind and not block.not_run]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_by_a_test_or_has_a_reason(page: str) -> None:
    lost = []
    for block in blocks_of(page):
        tested = {
            "text": True,
            "python": page in (*PYTHON, TUTORIAL),
            "shell": page in (*SESSIONS, TUTORIAL),
            "toml": True,
        }.get(block.kind, False)
        if not (tested or block.not_run or (page, block.kind) in ELSEWHERE):
            lost.append(block.name)
    assert not lost, "add the page to a table of this file, or say why the block cannot run: <!-- not run: ... -->"


def test_the_tests_of_other_blocks_exist() -> None:
    for (page, kind), test in ELSEWHERE.items():
        assert of_kind(page, kind), page
        assert (ROOT / test).is_file()


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if any(one.kind == "shell" for one in blocks_of(page))])
def test_commands_and_their_options_exist(page: str) -> None:
    """This includes the commands that do not run."""
    for block in blocks_of(page):
        for command in block.commands() if block.kind == "shell" else ():
            for part in command.replace("&&", "|").split(" | "):
                words = shlex.split(part, comments=True)
                if words[:1] == ["godwit"] and words[1] in COMMANDS:
                    parse(words[1:], block)


def parse(words: list[str], block: Block) -> None:
    """Parse a command line without running it."""
    name, *arguments = words
    arguments = [word for word in arguments if word not in ("<", ">")]
    command = load_own_command(name)
    while hasattr(command, "commands") and arguments and arguments[0] in command.commands:
        name, *arguments = arguments
        command = command.commands[name]
    context = command.context_class(command, info_name=name)
    try:
        command.make_parser(context).parse_args(list(arguments))
    except Exception as error:
        raise AssertionError(f"{block.name}: {shlex.join(words)}: {error}") from error


@needs_posix
@pytest.mark.parametrize("page", SESSIONS)
def test_commands_run(page: str, tmp_path: Path) -> None:
    blocks = of_kind(page, "shell")
    assert blocks
    with session(tmp_path) as terminal:
        terminal.start_broker()
        for command in SESSIONS[page]:
            terminal.run(command)
        for block in blocks:
            for command in block.commands():
                terminal.run(command)


@needs_posix
@pytest.mark.java
def test_the_tutorial_ends_with_a_chart(tmp_path: Path) -> None:
    """The readings are as many as in the page, in less time."""
    with session(tmp_path) as terminal:
        for block in blocks_of(TUTORIAL):
            if block.kind == "python":
                terminal.python(block.text)
            elif block.kind == "shell" and not block.not_run:
                for command in block.commands():
                    terminal.run(command.replace("--rate 20", "--rate 400").replace("--duration 120", "--duration 6"))
    assert "<svg" in (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert "<svg" in (tmp_path / "godwit-report.html").read_text(encoding="utf-8")


# -- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in of_kind(page, "toml") if (page, "toml") not in ELSEWHERE],
    ids=lambda block: block.name,
)
def test_configurations_are_valid(block: Block, tmp_path: Path) -> None:
    if "pipeline" in tomllib.loads(block.text):
        file = tmp_path / "pipeline.toml"
        file.write_text(block.text, encoding="utf-8")
        assert load_retention(file)
    else:
        load_configuration(block.text, read_secret=lambda _: b"secret")


# -- programs ---------------------------------------------------------------------------------------------------------


class OneRound(ast.NodeTransformer):
    """End loops over messages and files after their first round: they would wait for more."""

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.iter) != "job":
            node.body.append(ast.Break())
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.iter) == "messages":
            node.body.append(ast.Break())
        return node


async def run_program(block: Block, names: dict[str, Any], address: str) -> None:
    """Run a block as a program with `await` outside of functions; without any, in a thread of its own."""
    tree = OneRound().visit(ast.parse(block.text.replace('"localhost"', repr(address))))
    ast.fix_missing_locations(tree)
    code = compile(tree, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    async with asyncio.timeout(DEADLINE_S):
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, names)
        else:
            names["client"] = names["blocking"]
            await asyncio.to_thread(exec, code, names)


@asynccontextmanager
async def surroundings(address: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the names that programs of the pages use: a client, messages that arrive, a worker, functions of theirs."""
    worker = godwit.Worker(address, name="resizer", capacity=8)

    @worker.handles("resize")
    async def resize(task: Any) -> Any:
        task.progress(0.5)
        return task.payload[:1]

    async def publish(client: Any) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            for topic in ("home/room1/temperature", "orders/1"):
                await client.publish(topic, "21.5")
            Path("photo").write_text(str(number), encoding="utf-8")
            await client.send_file("reports/photo", "photo")
            await asyncio.sleep(0.01)

    stored: list[Any] = []
    ended = asyncio.Event()
    async with godwit.connect(address, name="reader") as client, godwit.connect(address, name="sender") as sender:
        blocking = await asyncio.to_thread(godwit.sync.connect, address, name="blocking")
        working, publishing = asyncio.create_task(worker.run()), asyncio.create_task(publish(sender))
        async with client.subscribe("home/#") as messages:
            async for _ in messages:
                break
            bookmark = str(messages.bookmark)
        while not await client.workers():
            await asyncio.sleep(0.01)
        try:
            yield {
                "godwit": godwit,
                "client": client,
                "blocking": blocking,
                "payload": b"a picture",
                "picture": b"a picture",
                "payloads": [b"1", b"2"],
                "publisher": client.publisher("home/room1/temperature"),
                "stored": bookmark,
                "store": lambda *values: stored.append(values),
                "smaller": lambda picture: picture[:1],
                "make_report": lambda payload: payload,
                "print": lambda *_, **__: None,
            }
        finally:
            ended.set()
            await publishing
            worker.stop()
            await working
            await asyncio.to_thread(blocking.close)


@pytest.mark.parametrize("page", PYTHON)
def test_programs_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.pdf").write_bytes(b"a report")
    blocks = of_kind(page, "python")
    assert blocks

    async def main(address: str) -> None:
        async with surroundings(address) as names:
            known = dict(names)
            for block in blocks:
                await run_program(block, names, address)
                names |= known  # a program may have closed a client of that name
            if page == "docs/guides/devices.md":
                await devices(names, address)

    with broker_in_thread() as url:
        monkeypatch.setattr(
            godwit.Worker, "run_forever", lambda worker: asyncio.run(do_a_job_of_each_kind(worker, url))
        )
        asyncio.run(main(url))


async def devices(names: dict[str, Any], address: str) -> None:
    """Call the functions that the page on devices defines."""
    async with asyncio.timeout(DEADLINE_S), godwit.connect(address) as client:
        async with client.subscribe("plant/press-7/#") as messages:
            await names["sensor"](address, 3)
            found = [await anext(aiter(messages)) for _ in range(4)]
            assert [one.text for one in found] == ["online", "21.5", "21.5", "21.5"]
            commanded = asyncio.create_task(names["commands"](address))
            while not commanded.done():
                await client.publish("plant/press-7/command", "calibrate")
        await commanded
        await names["stop"](client)


async def do_a_job_of_each_kind(worker: Any, address: str) -> None:
    """Stand in for `run_forever`, which a test cannot interrupt: run the worker until each handler has done a job."""
    running = asyncio.create_task(worker.run())
    await worker.ready()
    async with godwit.connect(address) as client:
        for kind in worker._handlers.by_kind:
            job = await client.submit(kind, b"work")
            assert await job.results()
    worker.stop()
    await running
