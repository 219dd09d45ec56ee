"""Fork with an open client: the child is refused clearly and at once, ends without a hang, and disturbs no parent."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
from tests.net.running import broker_in_thread

from godwit.errors import ForkedError, UsageError
from godwit.net import loop
from godwit.net.blocking import connect

DEADLINE_S = 120.0

PREAMBLE = """
import asyncio, gc, os, sys, threading, godwit
from godwit.errors import ForkedError

def in_child(work):
    '''Fork, run `work` in the child, and return the parent's view of its end.'''
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print("child:", type(error).__name__, error, flush=True)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def refused(call):
    '''Whether a call is refused as it should be.'''
    try:
        call()
    except ForkedError as error:
        assert "connect again in the child" in str(error) and str(os.getppid()) in str(error), error
        return True
    return False
"""


def run(program: str, *arguments: str) -> list[str]:
    """The lines that a program with a fork prints. Newer Pythons warn of forks in programs with threads."""
    result = subprocess.run(
        [sys.executable, "-W", "always", "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + program, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return result.stdout.splitlines()


def test_the_owner_is_notified_in_the_child_only() -> None:
    class Owner:
        is_inherited = False

        def _on_forked(self) -> None:
            self.is_inherited = True

    owner = Owner()
    loop.disown_in_children(owner)
    loop._on_forked()
    assert owner.is_inherited
    reference = weakref.ref(owner)
    loop.disown_in_children(owner)
    del owner
    assert reference() is None
    assert isinstance(loop.forked_error(), UsageError)


EVERY_METHOD = """
client = godwit.sync.connect(sys.argv[1], name="me")
publisher = client.publisher("a")
messages = client.subscribe("a", timeout_s=20).__enter__()
files = client.receive_files("f", folder=sys.argv[2]).__enter__()
job = client.submit("kind")
client.publish("a", b"1")
for number in range(20):
    publisher.send(str(number))
publisher.flush()
looping = iter(messages)
listing = messages.batches()
next(looping)

calls = {
    "publish": lambda: client.publish("a", b"x"),
    "publisher": lambda: client.publisher("a"),
    "subscribe": lambda: client.subscribe("b"),
    "receive_files": lambda: client.receive_files("b", folder=sys.argv[2]),
    "submit": lambda: client.submit("kind"),
    "submit_many": lambda: client.submit_many([("kind", b"")]),
    "job": lambda: client.job(1),
    "jobs": client.jobs,
    "job_info": lambda: client.job_info(1),
    "cancel_job": lambda: client.cancel_job(1),
    "retry_job": lambda: client.retry_job(1),
    "topics": client.topics,
    "create_topic": lambda: client.create_topic("new"),
    "clients": client.clients,
    "kick": lambda: client.kick("me"),
    "ping": client.ping,
    "send_file": lambda: client.send_file("f", __file__ if "__file__" in globals() else sys.executable),
    "close": client.close,
    "exit": lambda: client.__exit__(None, None, None),
    "messages.get": lambda: messages.get(20),
    "messages.next": lambda: next(messages),
    "messages.iter": lambda: list(messages),
    "messages.resumed": lambda: next(looping),
    "messages.batches": lambda: next(listing),
    "messages.commit": messages.commit,
    "messages.close": messages.close,
    "messages.exit": lambda: messages.__exit__(None, None, None),
    "files.next": lambda: next(files),
    "files.exit": lambda: files.__exit__(None, None, None),
    "job.results": lambda: job.results(20),
    "job.cancel": job.cancel,
    "job.iter": lambda: list(job),
    "publisher.send": lambda: publisher.send(b"x"),
    "publisher.ready": publisher.ready,
    "publisher.flush": publisher.flush,
}

def work():
    # A lock that a thread of the parent holds at the fork is locked for ever here.
    for name, call in calls.items():
        assert refused(call), name
    assert client.state == "closed" and client.name == "me"
    for exit in (client.__exit__, messages.__exit__, files.__exit__):
        assert exit(ValueError, ValueError("of the program"), None) is None  # that one is not hidden

held = publisher._lock, client._thread._lock
for lock in held:
    lock.acquire()
try:
    in_child(work)
finally:
    for lock in held:
        lock.release()

rest = [message.payload for message in (next(looping) for _ in range(20))]
assert rest == [str(number).encode() for number in range(20)], rest
assert client.publish("a", b"still there") == 1 and client.state == "online"
job.cancel()
files.__exit__(None, None, None)
messages.__exit__(None, None, None)
assert client.close()
print("done")
"""


def test_every_method_is_refused_and_the_parent_goes_on(tmp_path: object) -> None:
    with broker_in_thread() as url:
        assert run(EVERY_METHOD, url, str(tmp_path)) == ["done"]


NORMAL_EXIT = """
from contextlib import ExitStack
blocks = ExitStack()
will = godwit.Will(topic="wills", payload=b"gone")
client = blocks.enter_context(godwit.sync.connect(sys.argv[1], name="me", will=will))
dropped = godwit.sync.connect(sys.argv[1])
way = sys.argv[2]
messages = blocks.enter_context(client.subscribe("a"))
pid = os.fork()
if pid == 0:
    del dropped
    gc.collect()
    print("child", flush=True)
    if way == "end":
        sys.exit(0)  # with atexit handlers, joined threads and everything else at a program's end
    if way == "unwind":
        with blocks:
            sys.exit(0)
    with godwit.sync.connect(sys.argv[1], name="child") as own:  # a client of its own
        own.publish("b", b"from the child")
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
client.publish("a", b"x")
assert messages.get(100).payload == b"x"
assert dropped.ping() > 0
assert client.statistics.packets_lost == 0
print("parent")
"""


@pytest.mark.parametrize("way", ["end", "unwind", "connect"])
def test_a_child_ends_as_any_program_and_sends_no_close(way: str) -> None:
    with broker_in_thread() as url, connect(url) as watcher, watcher.subscribe("wills", "b", "end") as messages:
        assert run(NORMAL_EXIT, url, way) == ["child", "parent"]
        watcher.publish("end", b"")
        expected = ["b", "end"] if way == "connect" else ["end"]
        assert [messages.get(DEADLINE_S).topic for _ in expected] == expected  # and no will


MULTIPROCESSING = """
import multiprocessing

def work(url, inherited, number):
    assert refused(lambda: inherited.publish("a", b"x"))
    with godwit.sync.connect(url, name=f"child-{number}") as own, own.subscribe(f"to/{number}") as messages:
        own.publish(f"to/{number}", b"1")
        assert messages.get(100).payload == b"1"

client = godwit.sync.connect(sys.argv[1])
context = multiprocessing.get_context("fork")
processes = [context.Process(target=work, args=(sys.argv[1], client, number)) for number in range(3)]
for process in processes:
    process.start()
for process in processes:
    process.join(100)
assert [process.exitcode for process in processes] == [0, 0, 0]
with context.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
assert client.publish("a", b"x") == 0
client.close()
print("done")
"""


def test_multiprocessing_with_fork_works_beside_an_open_client() -> None:
    with broker_in_thread() as url:
        assert run(MULTIPROCESSING, url) == ["done"]


ASYNCIO = """
async def refused_soon(call):
    try:
        async with asyncio.timeout(20):
            await call()
    except ForkedError as error:
        assert "connect again in the child" in str(error), error
        return True
    return False

async def main(url):
    async with godwit.connect(url, name="me") as client, client.subscribe("a") as messages:
        publisher = client.publisher("a")
        for number in range(20):
            publisher.send(str(number).encode())
        await publisher.flush()
        assert (await anext(messages)).payload == b"0"
        publisher.send(b"20")  # a batch is open, and the quick way of send with it
        job = await client.submit("kind")
        looping = aiter(messages)
        await anext(looping)

        async def in_a_loop_of_its_own():
            calls = {
                "publish": lambda: client.publish("a", b"x"),
                "ping": client.ping,
                "close": client.close,
                "exit": lambda: client.__aexit__(None, None, None),
                "messages": lambda: anext(messages),
                "resumed": lambda: anext(looping),
                "results": job.results,
                "cancel": job.cancel,
                "submit": lambda: client.submit("kind"),
                "send_file": lambda: client.send_file("f", sys.executable),
            }
            for name, call in calls.items():
                assert await refused_soon(call), name
            assert refused(lambda: publisher.send(b"x"))
            assert refused(lambda: client.subscribe("b"))
            assert client.state == "closed"
            await messages.__aexit__(ValueError, ValueError(), None)
            await client.__aexit__(ValueError, ValueError(), None)
            async with godwit.connect(url, name="child") as own:
                assert await own.publish("b", b"x") == 0

        def work():
            with asyncio.Runner() as runner:
                runner.run(in_a_loop_of_its_own())

        publisher.send(b"21")
        in_child(work)
        got = [(await anext(messages)).payload for _ in range(20)]
        assert got == [str(number).encode() for number in range(2, 22)], got
        assert await client.publish("c", b"x") == 0
        await job.cancel()
        assert client.statistics.packets_lost == 0

(godwit.run if sys.argv[2] == "uvloop" else asyncio.run)(main(sys.argv[1]))
print("done")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_asyncio_client_is_refused_in_the_child_too(loop: str) -> None:
    with broker_in_thread() as url:
        assert run(ASYNCIO, url, loop) == ["done"]


INHERITED_LOOP = """
async def main(url):
    async with godwit.connect(url, name="me") as client, client.subscribe("a") as messages:
        loop = asyncio.get_running_loop()
        pid = os.fork()
        if pid == 0:
            # The child runs on in the loop of its parent, with the parent's socket in it.
            try:
                await client.publish("a", b"from the child")
            except ForkedError:
                passed = loop.create_future()
                loop.call_later(0.05, passed.set_result, None)
                await passed  # what the socket has to read meanwhile is not for the child
                os._exit(0)
            os._exit(1)
        for number in range(100):
            await client.publish("a", str(number))
        assert [int((await anext(messages)).payload) for _ in range(100)] == list(range(100))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await client.ping()

asyncio.run(main(sys.argv[1]))
print("done")
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on a child leaves its parent's loop")
def test_a_child_that_runs_on_in_the_same_loop_reads_and_sends_nothing() -> None:
    with broker_in_thread() as url:
        assert run(INHERITED_LOOP, url) == ["done"]


def test_a_client_of_the_parent_is_not_concerned_by_children_of_others() -> None:
    with broker_in_thread() as url, connect(url) as client:
        subprocess.run([sys.executable, "-c", "pass"], check=True, preexec_fn=lambda: None)
        assert client.ping() > 0
        with pytest.raises(ForkedError):
            raise loop.forked_error()
