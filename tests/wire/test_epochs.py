"""Epochs: how far two histories of a log are the same, compared with logs that remember every message."""

from __future__ import annotations

from random import Random

import pytest

from godwit.wire.epochs import MAX_EPOCHS_TOLD, Epoch, same_below

A, B, C, D = (bytes([letter]) * 8 for letter in b"ABCD")


@pytest.mark.parametrize(
    ("known", "epochs", "next_offset", "expected"),
    [
        # The same process, and a restart: everything that was there is.
        ([Epoch(A, 0)], [Epoch(A, 0)], 100, 100),
        ([Epoch(A, 0)], [Epoch(A, 0), Epoch(B, 100)], 120, 100),
        ([Epoch(A, 0), Epoch(B, 100)], [Epoch(A, 0), Epoch(C, 100)], 120, 100),
        # A backup from the middle of the newest epoch, of an older one, and from before the end that the reader knows.
        ([Epoch(A, 0), Epoch(B, 100)], [Epoch(A, 0), Epoch(B, 100), Epoch(C, 150)], 900, 150),
        ([Epoch(A, 0), Epoch(B, 100)], [Epoch(A, 0), Epoch(C, 60)], 900, 60),
        ([Epoch(A, 0), Epoch(B, 40)], [Epoch(A, 0), Epoch(C, 60)], 900, 40),
        # Only older ones are known.
        ([Epoch(B, 100)], [Epoch(A, 0), Epoch(B, 100), Epoch(C, 150), Epoch(D, 170)], 900, 150),
        # Nothing in common; the same id at another place is another epoch.
        ([Epoch(A, 0)], [Epoch(B, 0)], 900, 0),
        ([Epoch(A, 10)], [Epoch(A, 0)], 900, 0),
        ([], [Epoch(A, 0)], 900, 0),
        ([Epoch(A, 0)], [], 900, 0),
    ],
)
def test_where_histories_part(known: list[Epoch], epochs: list[Epoch], next_offset: int, expected: int) -> None:
    assert same_below(known, epochs, next_offset) == expected


class Log:
    """A log that can be copied, and that knows its messages."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.epochs: list[Epoch] = []

    def copy(self) -> Log:
        other = Log()
        other.messages, other.epochs = self.messages[:], self.epochs[:]
        return other

    def told(self, own: Epoch | None) -> list[Epoch]:
        """All epochs, with that of a process that has not appended anything yet."""
        return [*self.epochs, own] if own is not None and own not in self.epochs else self.epochs


@pytest.mark.parametrize("seed", range(300))
def test_random_copies(seed: int) -> None:
    """Whatever was copied and put back: below the answer all is the same. With all epochs known it is exact."""
    rng = Random(seed)
    log, backups, serial = Log(), [Log()], 0
    position, known, seen = 0, list[Epoch](), list[int]()
    for _ in range(60):
        match rng.randrange(5):
            case 0:
                backups.append(log.copy())
            case 1 if rng.random() < 0.3:
                log = rng.choice(backups).copy()
            case _:
                pass
        own = Epoch(rng.randbytes(8), len(log.messages))  # each round is one run of a broker
        told = log.told(own)
        below = same_below(known, told, len(log.messages))
        common = 0
        while common < min(position, len(log.messages)) and seen[common] == log.messages[common]:
            common += 1
        if known:
            assert min(below, position) <= common
            if len(known) < MAX_EPOCHS_TOLD:
                assert min(below, position) == common
        position = min(position, below)
        count = rng.choice((0, 0, 1, 5))
        if count:
            log.epochs = told
            for _ in range(count):
                serial += 1
                log.messages.append(serial)
        if rng.random() < 0.7:  # the reader is there
            known = log.told(own)[-MAX_EPOCHS_TOLD:]
            position = rng.randint(position, len(log.messages))
            seen = log.messages[:position]
        else:
            position = len(seen)
