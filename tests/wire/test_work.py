"""Work groups: decoding returns the encoded group, and invalid records are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import hostile, texts, value_or_refusal
from tests.wire.work_strategies import HEADS, Group, groups, sizes_of

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_GROUP,
    MAX_JOB_KEY_BYTES,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_KIND_BYTES,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_TASKS_OF_JOB,
    MAX_WORK_HEAD_BYTES,
    MAX_WORK_ITEMS,
    MAX_WORK_RECORD_BYTES,
)
from godwit.wire import work as w
from godwit.wire.jobs import JobSpec
from godwit.wire.work import decode_from_broker, decode_from_client, encode_group

FROM_CLIENT: tuple[type, ...] = get_args(w.FromClient)
FROM_BROKER: tuple[type, ...] = get_args(w.FromBroker)


def decoder(kind: type) -> Callable[[bytes], Group]:
    return decode_from_client if kind in FROM_CLIENT else decode_from_broker


def record_of(head: object, payloads: bytes = b"") -> bytes:
    """For any head."""
    encoded = cbor2.dumps(head)
    return len(encoded).to_bytes(4, "big") + encoded + payloads


def test_every_kind_of_group_is_here() -> None:
    assert set(HEADS) == {*FROM_CLIENT, *FROM_BROKER}


@pytest.mark.parametrize("kind", HEADS)
@given(st.data())
def test_each_group_comes_back_with_its_payloads(kind: type, data: st.DataObject) -> None:
    head, payloads = data.draw(groups(kind))
    record = encode_group(head, payloads)
    assert decoder(kind)(record) == (head, payloads)
    assert record.endswith(b"".join(payloads))


@given(groups())
def test_a_group_of_the_other_side_is_refused(group: Group) -> None:
    """A client must not hand out leases, nor a broker results."""
    head, payloads = group
    other = decode_from_broker if type(head) in FROM_CLIENT else decode_from_client
    with pytest.raises(DecodeError, match="Invalid value"):
        other(encode_group(head, payloads))


@given(groups(), st.dictionaries(texts.map(lambda text: "x-" + text), st.none() | texts | st.integers(0, 9)))
def test_fields_of_a_newer_version_are_ignored(group: Group, more: dict[str, Any]) -> None:
    head, payloads = group
    record = encode_group(head, payloads)
    plain = cbor2.loads(record[4 : 4 + int.from_bytes(record[:4], "big")])
    for part in [part for value in plain.values() if isinstance(value, list) for part in value]:
        if isinstance(part, dict):
            part.update(more)
    assert decoder(type(head))(record_of(more | plain, b"".join(payloads))) == group


def test_what_has_its_default_value_is_not_sent() -> None:
    record = encode_group(w.SubmitGroup(jobs=[JobSpec(key="k", of_kind="resize", size=2)]), [b"ab"])
    head = {"kind": "submit", "jobs": [{"key": "k", "of_kind": "resize", "size": 2}]}
    assert record == record_of(head, b"ab")
    assert encode_group(w.ReportGroup()) == record_of({"kind": "report"})


def test_groups_do_not_share_their_defaults() -> None:
    one, other = w.ReportGroup(), w.ReportGroup()
    one.steps.append(w.ProgressReport(task=(1, 0, 1)))
    assert other == w.ReportGroup()


# -- as large as it may be --------------------------------------------------------------------------------------------


def test_the_largest_of_everything_passes() -> None:
    largest = JobSpec(
        key="k" * MAX_JOB_KEY_BYTES,
        of_kind="n" * MAX_KIND_BYTES,
        size=MAX_JOB_PAYLOAD_BYTES,
        workers=MAX_TASKS_OF_JOB,
        priority=-MAX_PRIORITY,
        delay_ms=MAX_JOB_TIME_MS,
        deadline_ms=MAX_JOB_TIME_MS,
        retries=MAX_RETRIES,
        retry_delay_ms=MAX_JOB_TIME_MS,
        time_limit_ms=MAX_JOB_TIME_MS,
    )
    payload = bytes(MAX_JOB_PAYLOAD_BYTES)
    group = (w.SubmitGroup(jobs=[largest]), [payload])
    assert decode_from_client(encode_group(*group)) == group
    assert len(encode_group(*group)) <= MAX_WORK_RECORD_BYTES


@pytest.mark.parametrize("field", ["outcomes", "steps", "returned"])
def test_a_full_report_fits_its_head(field: str) -> None:
    task = (2**63 - 1, 2**32 - 1, 2**32 - 1)
    parts: dict[str, Any] = {
        "outcomes": w.TaskOutcome(task=task, size=1024),
        "steps": w.ProgressReport(task=task, progress=1 / 3, note="n" * 40),
        "returned": task,
    }
    report = w.ReportGroup(**{field: [parts[field]] * MAX_GROUP})
    payloads = [bytes(1024)] * len(sizes_of(report))
    record = encode_group(report, payloads)
    assert decode_from_client(record) == (report, payloads)
    assert len(record) <= MAX_WORK_RECORD_BYTES
    more = w.ReportGroup(**{field: [parts[field]] * (MAX_GROUP + 1)})
    with pytest.raises(DecodeError, match="length <= 1024"):
        decode_from_client(encode_group(more, [bytes(1024)] * len(sizes_of(more))))


@pytest.mark.parametrize(
    ("group", "decode"),
    [
        (w.SubmitGroup(jobs=[JobSpec(key=key, of_kind="k", size=MAX_JOB_PAYLOAD_BYTES) for key in "ab"]), "client"),
        (
            w.ReportGroup(outcomes=[w.TaskOutcome(task=(1, n, 1), size=MAX_JOB_PAYLOAD_BYTES) for n in range(2)]),
            "client",
        ),
        (
            w.LeaseGroup(
                tasks=[
                    w.LeasedTask(task=(1, n, 1), of_kind="k", controller="c", size=MAX_JOB_PAYLOAD_BYTES)
                    for n in range(2)
                ]
            ),
            "broker",
        ),
    ],
)
def test_payloads_have_a_largest_size_together(group: w.FromClient | w.FromBroker, decode: str) -> None:
    record = encode_group(group, [bytes(MAX_JOB_PAYLOAD_BYTES)] * 2)
    with pytest.raises(DecodeError, match="2097152 bytes of payloads in a group, at most 1048576"):
        decoder(type(group))(record)
    assert decode == ("client" if type(group) in FROM_CLIENT else "broker")


# -- invalid groups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [decode_from_client, decode_from_broker])
@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "a record without a head"),
        (bytes(3), "a record without a head"),
        (b"\0\0\0\x01", "a head of 1 bytes in a record of 4"),
        (b"\xff\xff\xff\xff", "a head of 4294967295 bytes in a record of 4"),
        ((MAX_WORK_HEAD_BYTES + 1).to_bytes(4, "big") + bytes(MAX_WORK_HEAD_BYTES + 1), "a head of 131073 bytes"),
        (bytes(4), "not CBOR"),
        (b"\0\0\0\x02\xa0\xa0", "1 bytes behind the value"),
        (record_of([]), "Expected `object`, got `array`"),
        (record_of({}), "missing required field `kind`"),
        (record_of({"kind": "teleport"}), "Invalid value 'teleport'"),
        (record_of({"kind": "ping", "request": 1}), "Invalid value 'ping'"),
    ],
)
def test_what_is_no_group_is_refused(decode: Callable[[bytes], Group], record: bytes, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(record)
    assert why in str(caught.value)
    assert caught.value.reason in ("work", "control")


@given(groups(), st.integers(-60, 60).filter(bool))
def test_payloads_that_are_not_as_long_as_the_head_says(group: Group, more: int) -> None:
    record = encode_group(*group)
    payload_bytes = sum(sizes_of(group[0]))
    changed = record + bytes(more) if more > 0 else record[: max(more, -payload_bytes) or len(record)]
    if changed == record:
        assert decoder(type(group[0]))(changed) == group
        return
    with pytest.raises(DecodeError, match=r"work: \d+ bytes of payloads where the head announces \d+"):
        decoder(type(group[0]))(changed)


def a_submit(**fields: object) -> dict[str, object]:
    return {"kind": "submit", "jobs": [{"key": "k", "of_kind": "resize"} | fields]}


def an_outcome(**fields: object) -> dict[str, object]:
    return {"kind": "report", "outcomes": [{"task": [1, 0, 1]} | fields]}


def a_step(**fields: object) -> dict[str, object]:
    return {"kind": "report", "steps": [{"task": [1, 0, 1]} | fields]}


REFUSED: list[tuple[str, object]] = [
    ("missing required field `jobs`", {"kind": "submit"}),
    ("length >= 1", {"kind": "submit", "jobs": []}),
    ("length <= 1024", {"kind": "submit", "jobs": [{"key": "k", "of_kind": "r"}] * (MAX_GROUP + 1)}),
    ("missing required field `key`", {"kind": "submit", "jobs": [{"of_kind": "r"}]}),
    ("missing required field `of_kind`", {"kind": "submit", "jobs": [{"key": "k"}]}),
    ("length >= 1", a_submit(key="")),
    ("length <= 64", a_submit(key="k" * 65)),
    ("length >= 1", a_submit(of_kind="")),
    ("length <= 256", a_submit(of_kind="k" * 257)),
    ("Expected `int` >= 0", a_submit(size=-1)),
    ("Expected `int` <= 1048576", a_submit(size=MAX_JOB_PAYLOAD_BYTES + 1)),
    ("Expected `int` >= 0", a_submit(workers=-1)),
    ("Expected `int` <= 10000", a_submit(workers=MAX_TASKS_OF_JOB + 1)),
    ("Expected `int`", a_submit(workers="all")),
    ("Expected `int` <= 100", a_submit(priority=101)),
    ("Expected `int` >= -100", a_submit(priority=-101)),
    ("Expected `int` >= 0", a_submit(delay_ms=-1)),
    ("Expected `int` <= ", a_submit(delay_ms=MAX_JOB_TIME_MS + 1)),
    ("Expected `int` >= 1", a_submit(deadline_ms=0)),
    ("Expected `int` >= 0", a_submit(retries=-1)),
    ("Expected `int` <= 1000", a_submit(retries=1001)),
    ("Expected `int` <= ", a_submit(retry_delay_ms=MAX_JOB_TIME_MS + 1)),
    ("Expected `int` >= 1", a_submit(time_limit_ms=0)),
    ("missing required field `task`", {"kind": "report", "outcomes": [{}]}),
    ("Expected `array` of length 3", an_outcome(task=[1, 0])),
    ("Expected `int` >= 0", an_outcome(task=[-1, 0, 1])),
    ("Expected `int` <= 4294967295", an_outcome(task=[1, 2**32, 1])),
    ("Expected `int` <= 4294967295", an_outcome(task=[1, 0, 2**32])),
    ("Expected `int`, got `bool`", an_outcome(task=[1, 0, True])),
    ("Expected `int` <= 1048576", an_outcome(size=MAX_JOB_PAYLOAD_BYTES + 1)),
    ("length <= 1024", an_outcome(error="e" * 1025)),
    ("Expected `bool`", an_outcome(is_final=1)),
    ("Expected `float` >= 0.0", a_step(progress=-0.1)),
    ("Expected `float` <= 1.0", a_step(progress=1.1)),
    ("Expected `float`", a_step(progress=float("nan"))),
    ("Expected `float | null`", a_step(progress="half")),
    ("length <= 1024", a_step(note="n" * 1025)),
    ("Expected `array` of length 3", {"kind": "report", "returned": [[1]]}),
]


@pytest.mark.parametrize(("why", "head"), REFUSED)
def test_every_refusal_of_a_clients_group(why: str, head: object) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_from_client(record_of(head))
    assert why in str(caught.value)


def test_a_head_of_very_many_values_is_refused_and_the_largest_group_is_not() -> None:
    with pytest.raises(DecodeError, match=f"more than {MAX_WORK_ITEMS} values"):
        decode_from_client(record_of({"kind": "report", "junk": [[]] * MAX_WORK_ITEMS}))
    refs = [(2**32 + number, number, 3) for number in range(MAX_GROUP)]
    report = w.ReportGroup(
        outcomes=[w.TaskOutcome(task=ref, error="e", is_final=True) for ref in refs],
        steps=[w.ProgressReport(task=ref, progress=0.5, note="n") for ref in refs],
        returned=refs,
    )
    assert decode_from_client(encode_group(report, []))[0] == report
    submission = {"size": 0, "workers": 2, "priority": 1, "delay_ms": 1, "deadline_ms": 9, "retries": 1}
    more = {"retry_delay_ms": 5, "time_limit_ms": 5, "of_kind": "k"}
    jobs = [{"key": str(number), **submission, **more} for number in range(MAX_GROUP)]
    head, _ = decode_from_client(record_of({"kind": "submit", "jobs": jobs}))
    assert isinstance(head, w.SubmitGroup)
    assert len(head.jobs) == MAX_GROUP


# -- hostile input ----------------------------------------------------------------------------------------------------


@given(hostile(groups().map(lambda group: encode_group(*group))))
def test_hostile_bytes_give_a_group_or_an_error(record: bytes) -> None:
    for decode in (decode_from_client, decode_from_broker):
        found = value_or_refusal(decode, record)
        if found is not None:
            head, payloads = found
            assert list(map(len, payloads)) == sizes_of(head)
            assert decode(encode_group(head, payloads)) == found


values = (
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | texts | st.binary(max_size=16)
    | st.lists(texts | st.integers(0, 9) | st.tuples(st.integers(0, 9), texts), max_size=3)
    | st.dictionaries(texts, texts, max_size=2)
)  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
@given(st.data())
def test_one_wrong_field_gives_a_group_or_an_error(kind: type, data: st.DataObject) -> None:
    """All other fields are valid, so that the check of each field is reached."""
    head, payloads = data.draw(groups(kind))
    record = encode_group(head, payloads)
    plain = cbor2.loads(record[4 : 4 + int.from_bytes(record[:4], "big")])
    parts = [part for value in plain.values() if isinstance(value, list) for part in value if isinstance(part, dict)]
    wronged = data.draw(st.sampled_from([plain, *parts]))
    wronged[data.draw(st.sampled_from(sorted(wronged)))] = data.draw(values)
    decode = decoder(kind)
    found = value_or_refusal(decode, record_of(plain, b"".join(payloads)))
    assert found is None or decode(encode_group(*found)) == found
