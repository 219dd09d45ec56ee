"""Packing a batch gives exactly what godwit.wire.batch describes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.client.packing import HEAD_BYTES, LENGTH_BYTES, pack_batch
from godwit.wire.batch import LONE, Batch, decode_batches, encode_batch

PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
TIMES = st.integers(0, 2**62)


@given(PAYLOADS, st.integers(0, 2), TIMES, st.booleans(), st.booleans(), st.none() | st.binary(max_size=50))
def test_same_bytes_as_the_plain_encoder(
    payloads: list[bytes], qos: int, published_us: int, retain: bool, with_deltas: bool, extension: bytes | None
) -> None:
    sequence = 7 if qos == 2 else None
    deltas = list(range(len(payloads))) if with_deltas else None
    plain = Batch(
        list(payloads),
        published_us,
        qos,
        retain,
        sequence,
        None,
        tuple(deltas) if deltas is not None else None,
        extension,
    )
    packed = pack_batch(
        list(payloads), qos, published_us, retain=retain, sequence=sequence, deltas_us=deltas, extension=extension
    )
    assert packed == encode_batch(plain)
    assert decode_batches(packed) == [plain]


def test_one_message_makes_a_lone_batch() -> None:
    packed = pack_batch([b"hello"], 1, 5, retain=False, sequence=None)
    assert packed[0] & LONE
    assert len(packed) == 9 + 5


def test_size_is_at_most_what_is_counted() -> None:
    payloads = [b"12345"] * 100
    packed = pack_batch(list(payloads), 2, 5, retain=False, sequence=0)
    assert len(packed) == HEAD_BYTES + 100 * (LENGTH_BYTES + 5)
