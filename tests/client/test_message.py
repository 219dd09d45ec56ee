"""Messages and bookmarks: their times, and their text."""

from __future__ import annotations

import gc
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.client.message import MAX_EPOCHS, Bookmark, Message, make_bookmark
from godwit.errors import PayloadError, UsageError
from godwit.wire.epochs import Epoch


def test_times_are_exact_to_the_microsecond() -> None:
    message = Message("a", b"x", "p", 1_700_000_000_123_457, 1_700_000_000_999_999, 1, False, 5)
    assert message.published == datetime(2023, 11, 14, 22, 13, 20, 123_457, tzinfo=UTC)
    assert message.received.microsecond == 999_999
    assert message.received.tzinfo is UTC


def test_far_times_do_not_break() -> None:
    message = Message("a", b"", "p", 0, 253_402_300_799_999_999, 1, False, 5)
    assert message.published == datetime(1970, 1, 1, tzinfo=UTC)
    assert message.received == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_times_beyond_the_calendar_are_its_last_moment() -> None:
    """A publisher's clock may be wrong."""
    assert Message("a", b"", "p", 2**64 - 1, 0, 1, False, 5).published == datetime.max.replace(tzinfo=UTC)


def test_garbage_collector_does_not_look_at_messages() -> None:
    """Millions of them would make every collection slow."""
    assert not gc.is_tracked(Message("a", b"x", "p", 1, 2, 1, False, 5))


OFFSETS = st.integers(0, 2**63 - 1)
EPOCHS = st.builds(Epoch, st.binary(min_size=8, max_size=8), OFFSETS)


@given(OFFSETS, st.binary(min_size=16, max_size=16), st.lists(EPOCHS, max_size=MAX_EPOCHS))
def test_a_text_becomes_the_same_bookmark(offset: int, log: bytes, epochs: list[Epoch]) -> None:
    bookmark = Bookmark(offset, log, tuple(epochs))
    assert Bookmark.parse(str(bookmark)) == bookmark


def test_it_has_the_newest_epochs_before_its_offset() -> None:
    epochs = [Epoch(bytes([number]) * 8, 10 * number) for number in range(8)]
    assert make_bookmark(60, bytes(16), epochs).epochs == tuple(epochs[2:6])
    assert make_bookmark(61, bytes(16), epochs).epochs == tuple(epochs[3:7])
    assert make_bookmark(5, bytes(16), epochs).epochs == (epochs[0],)
    assert make_bookmark(0, bytes(16), epochs) == Bookmark(0, bytes(16), ())


GOOD = f"12@{'0f' * 16}/{'ab' * 8}:3"


@pytest.mark.parametrize(
    "text", ["", "12", "earliest", GOOD[:-1], f"{GOOD}/", f" {GOOD}", GOOD.upper(), GOOD + f"/{'ab' * 8}:4" * 4,
             GOOD.replace(":3", f":{2**63}"), GOOD.replace("12@", f"{2**63}@"), GOOD.replace("12@", "-1@")]
)  # fmt: skip
def test_invalid_texts(text: str) -> None:
    Bookmark.parse(GOOD)
    with pytest.raises(UsageError, match="is not a bookmark"):
        Bookmark.parse(text)


# -- payloads ---------------------------------------------------------------------------------------------------------


def message(payload: bytes) -> Message:
    return Message("home/room1", payload, "sensor-1", 1, 2, 1, False, 7)


def test_a_payload_as_a_text_and_as_json() -> None:
    assert message("21,5 °C".encode()).text == "21,5 °C"
    assert message(b'{"t": [21.5, null, true]}').json() == {"t": [21.5, None, True]}
    assert message(str(2**80).encode()).json() == 2**80
    assert message(b"").text == ""


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", r"the payload of a message on 'home/room1' is not JSON \(it is empty\): b''"),
        (b"21,5", r"is not JSON \(.*\): b'21,5'"),
        (b'{"t": NaN}', "is not JSON"),
        (b'"\xff"', "is not JSON"),
        (b"[" * 100_000, r"is not JSON .*\.\.\. \(100000 bytes\)"),
        (b"\xff\x00", "is not JSON"),
    ],
)
def test_a_payload_that_is_not_json(payload: bytes, text: str) -> None:
    with pytest.raises(PayloadError, match=text) as caught:
        message(payload).json()
    assert isinstance(caught.value, ValueError)


def test_a_payload_that_is_not_a_text() -> None:
    with pytest.raises(PayloadError, match=r"is not a text in UTF-8 \(invalid start byte at byte 1\): use the bytes"):
        _ = message(b"a\xff").text


def test_a_message_shows_the_beginning_of_its_payload() -> None:
    assert repr(message(b"21.5")) == "<Message on 'home/room1': b'21.5', from 'sensor-1', QoS 1, offset 7>"
    assert repr(message(bytes(1000))).endswith("... (1000 bytes), from 'sensor-1', QoS 1, offset 7>")
