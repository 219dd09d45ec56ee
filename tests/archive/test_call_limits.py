"""Limits of concurrent calls, and ending the connection of a stalled upload."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from godwit.archive import call_limits
from godwit.archive.call_limits import BusyError, CallLimit, Uploads, cut_connection


def test_the_last_place_and_the_next_one() -> None:
    gate = CallLimit("readings", 2)
    with gate.enter(), gate.enter():
        assert gate.active == 2
        with pytest.raises(BusyError, match="2 readings are under way already: try again"), gate.enter():
            pass
        assert gate.active == 2
    assert gate.active == 0


def test_a_place_is_free_again_after_an_error() -> None:
    gate = CallLimit("readings", 1)
    with pytest.raises(ZeroDivisionError), gate.enter():
        raise ZeroDivisionError
    with gate.enter():
        assert gate.active == 1


def test_those_that_move_keep_their_places() -> None:
    cut: list[str] = []
    places = Uploads(2, cut.append)
    with places.enter("a"), places.enter("b"):
        with pytest.raises(BusyError, match="2 stages are under way already"), places.enter("c"):
            pass
        assert places.active == 2
        assert places.expire() == 0
    assert places.active == 0
    assert cut == []


def test_the_one_that_stood_stalled_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "STALLED_S", 0.0)
    leaving = {name: threading.Event() for name in "ab"}
    places = Uploads(2, lambda peer: leaving[peer].set())
    there = threading.Barrier(3)

    def upload(name: str) -> None:
        with places.enter(name) as one:
            if name == "a":
                there.wait()
            else:
                one.moved_at -= 100  # the other came first, and this one is still for longer
                there.wait()
            leaving[name].wait()

    threads = [threading.Thread(target=upload, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    there.wait()
    with places.enter("c"):
        assert [leaving[name].is_set() for name in "ab"] == [False, True]
        assert places.active == 2
    leaving["a"].set()
    for thread in threads:
        thread.join()


def test_one_that_does_not_end_when_it_is_cut_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is still there: places bound threads."""
    monkeypatch.setattr(call_limits, "STALLED_S", 0.0)
    monkeypatch.setattr(call_limits, "END_TIMEOUT_S", 0.01)
    cut: list[str] = []
    places = Uploads(1, cut.append)
    with places.enter("a"), pytest.raises(BusyError), places.enter("b"):
        pass
    assert cut == ["a"]


def test_very_old_ones_are_ended_although_nobody_waits() -> None:
    cut: list[str] = []
    places = Uploads(3, cut.append)
    with ExitStack() as inside:
        old, moved, _ = [inside.enter_context(places.enter(name)) for name in "abc"]
        for upload in (old, moved):
            upload.moved_at -= 2 * call_limits.EXPIRY_S
        moved.handle_rows()
        assert places.expire() == 1
    assert cut == ["a"]


def test_a_connection_with_an_upload_that_moves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []
    places = Uploads(2, cut.append)
    with places.enter("a") as still, places.enter("a"):
        still.moved_at -= 2 * call_limits.EXPIRY_S
        assert places.expire() == 0
        with pytest.raises(BusyError), places.enter("b"):
            pass
    assert cut == []


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")])
def test_only_the_connection_to_this_peer_is_cut(host: str, peer: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no address {host} here")
    port = listener.getsockname()[1]
    with listener, socket.create_connection((host, port)) as one, socket.create_connection((host, port)) as other:
        accepted = [listener.accept()[0] for _ in range(2)]
        assert cut_connection(peer.format(one.getsockname()[1]))
        one.settimeout(20)
        assert one.recv(1) == b""
        accepted[1].sendall(b"x")
        assert other.recv(1) == b"x"
        for connection in accepted:
            connection.close()


def test_a_socket_for_both_families() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no such sockets here")
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        one = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with one, accepted:
            assert cut_connection(f"ipv4:127.0.0.1:{one.getsockname()[1]}")
            one.settimeout(20)
            assert one.recv(1) == b""


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/tmp/x", "", "ipv4:", "nonsense"])
def test_a_peer_that_is_not_there(peer: str) -> None:
    files = Path("/dev/fd")
    before = len(list(files.iterdir()))
    assert not cut_connection(peer)
    assert len(list(files.iterdir())) == before  # it looked at copies of all, files and pipes too
