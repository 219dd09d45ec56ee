"""The public interface: its names and help texts, its reference page, its types, and the errors of wrong arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import godwit
from godwit import sync
from godwit_tools import api_reference
from tests.net.running import broker_and_client, broker_in_thread, run

ROOT = Path(__file__).resolve().parents[1]
CLASSES = [
    value
    for module in (godwit, sync)
    for name in module.__all__
    if name not in ("spark", "sync", "__version__") and isinstance(value := getattr(module, name), type)
]


# -- names and texts --------------------------------------------------------------------------------------------------


def test_every_public_name_exists_and_nothing_else_is_shown() -> None:
    for module in (godwit, sync):
        assert dir(module) == sorted(module.__all__)
        for name in module.__all__:
            if name != "spark":  # needs the extra of this name
                assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="module 'godwit' has no attribute 'Conect'"):
        _ = godwit.Conect  # type: ignore[attr-defined]


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_everything_public_is_explained(found: type) -> None:
    assert found.__doc__
    for name, member in inspect.getmembers(found):
        if name.startswith("_") or member is getattr(object, name, None):
            continue
        owner = next(one for one in found.__mro__ if name in vars(one))
        if owner.__module__.startswith("godwit.") and (inspect.isfunction(member) or isinstance(member, property)):
            assert member.__doc__, f"{found.__name__}.{name}"
            assert not member.__doc__.startswith("Internal"), f"{found.__name__}.{name}"


def test_types_that_programs_write_down_are_exported() -> None:
    """Every class of the package in a signature of a public class is public itself."""
    names = {
        *godwit.__all__,
        *sync.__all__,
        "Self",
        "Epoch",
        "AsyncSource",
        "Qos",
        "Arq",
        "What",
        "ViewState",
        "Parameters",
    }
    for found in CLASSES:
        for name, function in api_reference.methods_of(found):
            signature = inspect.signature(function)
            for annotation in (*(one.annotation for one in signature.parameters.values()), signature.return_annotation):
                for word in _names_in(str(annotation)):
                    assert word in names, f"{found.__name__}.{name}: {word}"


def _names_in(annotation: str) -> Iterator[str]:
    known = {
        "Any",
        "AsyncIterator",
        "Awaitable",
        "Callable",
        "Iterable",
        "Iterator",
        "Sequence",
        "None",
        "Literal",
        "Unpack",
        "PathLike",
    }
    for word in inspect.cleandoc(annotation).replace("[", " ").replace("]", " ").replace(",", " ").split():
        name = word.rpartition(".")[2].strip("'\"|")
        if name[:1].isupper() and name not in known | {"F", "T"}:
            yield name


def test_the_reference_is_current() -> None:
    """`python -m godwit_tools.api_reference` writes it."""
    assert api_reference.PAGE.read_text(encoding="utf-8") == api_reference.page()


def test_mypy_accepts_the_usage_and_finds_the_mistakes() -> None:
    """A comment about an error that mypy does not find is an error, too."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "tests/typing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# -- texts of objects -------------------------------------------------------------------------------------------------


def test_objects_describe_themselves() -> None:
    async def test() -> None:
        async with broker_and_client("anna") as (broker, client):
            port = broker.addresses[0][1]
            assert repr(client) == f"<AsyncClient 'anna' of the broker at 127.0.0.1 port {port}, online>"
            assert repr(godwit.connect("a:1,b:2")).startswith("<Connecting to a port 1, b port 2: use it with")
            subscription = client.subscribe("a/#", "b", cursor="c")
            assert "not begun" in repr(subscription)
            async with subscription as messages:
                assert repr(messages) == "<AsyncSubscription to 'a/#', 'b', at offset 0>"
                publisher = client.publisher("b")
                publisher.send(b"x" * 100)
                assert repr(publisher) == "<AsyncPublisher to 'b', QoS 1, 1 message unconfirmed>"
                text = repr(await anext(messages))
                shown = repr(b"x" * 60)
                assert text == f"<Message on 'b': {shown}... (100 bytes), from 'anna', QoS 1, offset 0>"
            assert repr(messages) == "<AsyncSubscription to 'a/#', 'b', ended>"
            files = client.receive_files("f/#", folder="in")
            assert repr(files) == "<FileReceiver into 'in' from 'f/#'>"
        assert repr(client).endswith(", closed>")
        worker = godwit.Worker(name="bert", capacity=2)
        assert repr(worker) == "<Worker bert, no kinds yet, capacity 2, not running>"
        worker.handles("count", command=["wc"])
        assert repr(worker) == "<Worker bert, 'count', capacity 2, not running>"
        assert repr(godwit.TaskResult(0, "anna", b"5")) == "<TaskResult of task 0 by 'anna': b'5'>"

    run(test)


def test_blocking_objects_describe_themselves() -> None:
    with broker_in_thread() as url, sync.connect(url, name="anna") as client:
        assert repr(client).startswith("<BlockingClient 'anna' of the broker at 127.0.0.1 port ")
        assert repr(client.publisher("a")) == "<BlockingPublisher to 'a', QoS 1, 0 messages unconfirmed>"
        with client.subscribe("a") as messages:
            assert repr(messages) == "<BlockingSubscription to 'a', at offset 0>"
        assert repr(client.receive_files("f", folder="in")) == "<BlockingFiles into 'in' from 'f'>"
        assert repr(client.submit("k")) == "<BlockingJob 1, 'k', waiting>"


# -- wrong arguments --------------------------------------------------------------------------------------------------


WRONG: list[Any] = [5, -1, 2.5, "x/#/y", "", b"x", None, [], [5], {}, {"a": object()}, object(), True, "\ud800", "x\0"]
"""Values of every type: each is wrong for most arguments."""


def outcomes(function: Callable[..., Any], *arguments: Any, **options: Any) -> object:
    """Call a function with wrong arguments: it may work, or raise an error of Godwit, and no other."""
    with suppress(godwit.GodwitError):
        return function(*arguments, **options)
    return None


async def await_outcome(call: Awaitable[object]) -> None:
    with suppress(godwit.GodwitError):
        await call


@pytest.mark.parametrize(
    "option",
    [
        "name",
        "secret",
        "will",
        "timeout_s",
        "session_expiry_s",
        "fresh",
        "send_buffer_bytes",
        "on_state",
        "endpoint",
        "security",
    ],
)
@pytest.mark.parametrize("function", [godwit.connect, godwit.Worker], ids=["connect", "Worker"])
def test_wrong_options(function: Callable[..., Any], option: str) -> None:
    for wrong in WRONG:
        outcomes(function, "localhost", **{option: wrong})
        outcomes(function, wrong)


def test_wrong_arguments_of_workers() -> None:
    for wrong in WRONG:
        outcomes(godwit.Worker, capacity=wrong)
        outcomes(godwit.Worker().handles, wrong)
        outcomes(godwit.Worker().handles, "k", command=wrong)
        decorate = godwit.Worker().handles("k")
        outcomes(decorate, wrong)
        outcomes(godwit.Bookmark.parse, wrong)


@pytest.mark.parametrize("option", ["seal", "fingerprint", "ca", "known_brokers", "trust_new"])
def test_wrong_arguments_of_security(option: str) -> None:
    for wrong in WRONG:
        security = outcomes(godwit.Security, **{option: wrong})
        if isinstance(security, godwit.Security):
            outcomes(godwit.connect, "udps://localhost", security=security)


def test_flags_are_true_or_false() -> None:
    with pytest.raises(godwit.UsageError, match="fresh is 'no', of the type str: give True or False"):
        godwit.connect(fresh="no")  # type: ignore[arg-type]
    with pytest.raises(godwit.UsageError, match="trust_new is 'no', of the type str: give True or False"):
        godwit.Security(trust_new="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["topic", "payload", "qos", "retain", "delay_s", "headers", "expires_s", "reply_to"])
def test_wrong_arguments_of_wills(option: str) -> None:
    for wrong in WRONG:
        outcomes(godwit.make_will, **{"topic": "t", "payload": b"x", option: wrong})


CALLS: dict[str, Callable[[godwit.AsyncClient, Any], Awaitable[object]]] = {
    "publish topic": lambda client, wrong: client.publish(wrong, b"x"),
    "publish payload": lambda client, wrong: client.publish("t", wrong),
    "publish qos": lambda client, wrong: client.publish("t", b"x", qos=wrong),
    "publish retain": lambda client, wrong: client.publish("t", b"x", retain=wrong),
    "publish headers": lambda client, wrong: client.publish("t", b"x", headers=wrong),
    "publish content_type": lambda client, wrong: client.publish("t", b"x", content_type=wrong),
    "publish reply_to": lambda client, wrong: client.publish("t", b"x", reply_to=wrong),
    "publish correlation": lambda client, wrong: client.publish("t", b"x", correlation=wrong),
    "publish timeout_s": lambda client, wrong: client.publish("t", b"x", timeout_s=wrong or 5),
    "submit kind": lambda client, wrong: client.submit(wrong),
    "submit payload": lambda client, wrong: client.submit("k", wrong),
    "submit key": lambda client, wrong: client.submit("k", key=wrong),
    "submit workers": lambda client, wrong: client.submit("k", workers=wrong),
    "submit priority": lambda client, wrong: client.submit("k", priority=wrong),
    "submit delay_s": lambda client, wrong: client.submit("k", delay_s=wrong),
    "submit_many": lambda client, wrong: client.submit_many(wrong),
    "submit_many jobs": lambda client, wrong: client.submit_many([wrong]),
    "job": lambda client, wrong: client.job(wrong),
    "jobs kind": lambda client, wrong: client.jobs(kind=wrong),
    "jobs controller": lambda client, wrong: client.jobs(controller=wrong),
    "jobs states": lambda client, wrong: client.jobs(states=wrong),
    "jobs limit": lambda client, wrong: client.jobs(limit=wrong),
    "job_info": lambda client, wrong: client.job_info(wrong),
    "cancel_job": lambda client, wrong: client.cancel_job(wrong),
    "cancel_job reason": lambda client, wrong: client.cancel_job(1, wrong),
    "request topic": lambda client, wrong: client.request(wrong, timeout_s=0.01),
    "request payload": lambda client, wrong: client.request("t", wrong, timeout_s=0.01),
    "request qos": lambda client, wrong: client.request("t", qos=wrong, timeout_s=0.01),
    "request headers": lambda client, wrong: client.request("t", headers=wrong, timeout_s=0.01),
    "request timeout_s": lambda client, wrong: client.request("t", timeout_s=wrong),
    "request_many replies": lambda client, wrong: client.request_many("t", replies=wrong, timeout_s=0.01),
    "topics": lambda client, wrong: client.topics(wrong),
    "create_topic": lambda client, wrong: client.create_topic(wrong),
    "delete_topic": lambda client, wrong: client.delete_topic(wrong),
    "cursors": lambda client, wrong: client.cursors(wrong),
    "delete_group": lambda client, wrong: client.delete_group(wrong),
    "retry_job": lambda client, wrong: client.retry_job(wrong),
    "kick": lambda client, wrong: client.kick(wrong),
    "kick filters": lambda client, wrong: client.kick("x", wrong),
    "kick reason": lambda client, wrong: client.kick("x", reason=wrong),
    "ping": lambda client, wrong: client.ping(timeout_s=wrong or 5),
    "send_file topic": lambda client, wrong: client.send_file(wrong, __file__),
    "send_file path": lambda client, wrong: client.send_file("t", wrong),
    "send_file name": lambda client, wrong: client.send_file("t", __file__, name=wrong),
}


def test_wrong_arguments_of_calls() -> None:
    async def test() -> None:
        async with broker_and_client("anna") as (_, client):
            for name, call in CALLS.items():
                for wrong in WRONG:
                    try:
                        await await_outcome(call(client, wrong))
                    except Exception as error:
                        raise AssertionError(f"{name} with {wrong!r}") from error

    run(test)


def test_wrong_arguments_of_subscriptions_publishers_and_files() -> None:
    async def subscribe(client: godwit.AsyncClient, *filters: Any, **options: Any) -> None:
        async with client.subscribe(*filters, **options):
            pass

    async def test() -> None:
        async with broker_and_client("anna") as (_, client):
            for wrong in WRONG:
                await await_outcome(subscribe(client, wrong))
                for option in ("start", "since", "cursor", "on_gap", "keep", "retained", "no_local"):
                    await await_outcome(subscribe(client, "t", **{option: wrong}))
                await await_outcome(subscribe(client, "t", group=wrong))
                for option in ("group_expiry_s", "max_in_flight"):
                    await await_outcome(subscribe(client, "t", group="g", **{option: wrong}))
                outcomes(client.publisher, wrong)
                for option in ("qos", "identity", "epoch", "sequence"):
                    outcomes(client.publisher, "t", **{"identity": "me", "epoch": 1, option: wrong})
                outcomes(client.publisher, "t", retain=wrong)
                outcomes(client.publisher("t").send, wrong)
                for option in ("folder", "progress", "on_problem", "max_file_bytes", "max_total_bytes"):
                    outcomes(client.receive_files, "t", **{"folder": "in", option: wrong})
            async with client.subscribe("t", cursor="c") as messages:
                for wrong in WRONG:
                    await await_outcome(messages.commit(wrong))
                    if wrong != 5 and wrong is not None:
                        await await_outcome(messages.close(wrong))
                assert "at offset" in repr(messages)

    run(test)


def test_wrong_arguments_of_blocking_calls() -> None:
    with broker_in_thread() as url, sync.connect(url, name="anna") as client:
        publisher = client.publisher("t")
        for wrong in WRONG:
            outcomes(client.publish, wrong, b"x")
            outcomes(client.publish, "t", wrong)
            outcomes(client.submit, "k", wrong)
            outcomes(client.submit_many, wrong)
            outcomes(client.subscribe, "t", timeout_s=wrong)
            outcomes(client.subscribe, "t", since=wrong)
            outcomes(publisher.send, wrong)
            outcomes(publisher.flush, wrong or 5)
            outcomes(client.receive_files, "t", folder=wrong)
