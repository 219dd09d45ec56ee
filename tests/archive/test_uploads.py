"""Places for uploads: kept while rows come, given up by those that stand still."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from godwit.archive import uploads
from godwit.archive.gate import BusyError
from godwit.archive.uploads import Uploads


def test_those_that_move_keep_their_places() -> None:
    cut: list[str] = []
    places = Uploads(2, cut.append)
    with places.entered("a"), places.entered("b"):
        with pytest.raises(BusyError, match="2 stages are under way already"), places.entered("c"):
            pass
        assert places.inside == 2
        assert places.expire() == 0
    assert places.inside == 0
    assert cut == []


def test_the_one_that_stood_still_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "STILL_S", 0.0)
    leaving = {name: threading.Event() for name in "ab"}
    places = Uploads(2, lambda peer: leaving[peer].set())
    there = threading.Barrier(3)

    def upload(name: str) -> None:
        with places.entered(name) as one:
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
    with places.entered("c"):
        assert [leaving[name].is_set() for name in "ab"] == [False, True]
        assert places.inside == 2
    leaving["a"].set()
    for thread in threads:
        thread.join()


def test_one_that_does_not_end_when_it_is_cut_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is still there: places bound threads."""
    monkeypatch.setattr(uploads, "STILL_S", 0.0)
    monkeypatch.setattr(uploads, "GIVE_WAY_S", 0.01)
    cut: list[str] = []
    places = Uploads(1, cut.append)
    with places.entered("a"), pytest.raises(BusyError), places.entered("b"):
        pass
    assert cut == ["a"]


def test_very_old_ones_are_ended_although_nobody_waits() -> None:
    cut: list[str] = []
    places = Uploads(3, cut.append)
    with ExitStack() as inside:
        old, moved, _ = [inside.enter_context(places.entered(name)) for name in "abc"]
        for upload in (old, moved):
            upload.moved_at -= 2 * uploads.EXPIRY_S
        moved.move()
        assert places.expire() == 1
    assert cut == ["a"]


def test_a_connection_with_an_upload_that_moves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []
    places = Uploads(2, cut.append)
    with places.entered("a") as still, places.entered("a"):
        still.moved_at -= 2 * uploads.EXPIRY_S
        assert places.expire() == 0
        with pytest.raises(BusyError), places.entered("b"):
            pass
    assert cut == []
