"""Values of the wire layer for hypothesis, and ways to break their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, get_args

from hypothesis import strategies as st

from godwit.errors import DecodeError
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    LARGEST_DATAGRAM_BYTES,
    LARGEST_RECORD_BYTES,
    MAX_ACK_RANGES,
    MAX_ARQ_WINDOW,
    MAX_CAPACITY,
    MAX_HANDSHAKE_APPLICATION_BYTES,
)
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire import packet as f
from godwit.wire import relay
from godwit.wire.batch import Batch, Route
from godwit.wire.control import ControlMessage
from godwit.wire.packet import Frame
from godwit.wire.parameters import Parameters

T = TypeVar("T")

REASONS = frozenset({"truncated", "oversized", "checksum", "version", "flags", "frame", "batch", "control", "work"})
"""Every word that DecodeError.reason may be: they are counters' names, so a new one is a decision."""


def u(bits: int) -> st.SearchStrategy[int]:
    """Unsigned integers, the ends of the range often among them."""
    return st.sampled_from((0, 1, 2**bits - 1)) | st.integers(0, 2**bits - 1)


def raw(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


bodies = st.binary(max_size=64)
characters = st.characters(codec="utf-8")

# -- frames -----------------------------------------------------------------------------------------------------------

# A reason longer than the limit is cut when it is encoded; 64 characters of 4 bytes are the longest that never are.
reasons = st.text(characters, max_size=64)
spans = st.lists(st.tuples(u(32), u(32)), min_size=1, max_size=MAX_ACK_RANGES).map(tuple)

VALID_DATA_FLAGS: tuple[int, ...] = tuple(
    shape | length | position
    for shape in (0, f.LAST, f.WHOLE, f.WHOLE | f.LAST, f.LAST | f.END, f.WHOLE | f.END, f.WHOLE | f.LAST | f.END)
    for length in (0, f.HAS_LENGTH)
    for position in (0, f.HAS_POSITION)
) + tuple(f.UNRELIABLE | f.WHOLE | last | length for last in (0, f.LAST) for length in (0, f.HAS_LENGTH))
"""The flags that a data frame may have."""


@st.composite
def data_frames(draw: st.DrawFn, *, open_ended: bool) -> f.DataFrame:
    """A data frame; one that is not open-ended has its length with it, so that another can stand behind it."""
    flags = draw(st.sampled_from([flags for flags in VALID_DATA_FLAGS if open_ended or flags & f.HAS_LENGTH]))
    body = draw(st.binary(min_size=0 if flags & (f.WHOLE | f.LAST) else 1, max_size=64))
    offset = 0 if flags & f.WHOLE else draw(st.integers(0, LARGEST_RECORD_BYTES - len(body)))
    position = draw(u(32)) if flags & f.HAS_POSITION else None
    return f.DataFrame(flags, draw(u(32)), draw(u(32)), offset, position, body)


def _closed_frames() -> st.SearchStrategy[Frame]:
    """Every frame that tells its own length."""
    return st.one_of(
        st.builds(f.PingFrame),
        st.builds(f.HelloFrame, u(64), raw(16)),
        st.builds(f.CookieFrame, raw(20), raw(16)),
        st.builds(f.ConnectFrame, u(64), raw(16), raw(20), bodies),
        st.builds(f.AcceptFrame, u(64), raw(16), raw(16), bodies),
        st.builds(f.RefuseFrame, raw(16), u(16), reasons),
        st.builds(f.AckFrame, u(32), spans, st.none() | u(32)),
        st.builds(f.ConfirmFrame, u(32), u(64), u(32)),
        st.builds(f.CreditFrame, u(32), u(64)),
        st.builds(f.BlockedFrame, u(32), u(64)),
        st.builds(f.PathProbeFrame, raw(8)),
        st.builds(f.PathResponseFrame, raw(8), raw(16)),
        st.builds(f.CloseFrame, u(16), reasons, raw(16)),
        st.builds(f.ResetFrame, raw(16)),
        st.builds(f.CryptoFrame, u(32), u(32), bodies),
        st.builds(f.TokenFrame, raw(16)),
        data_frames(open_ended=False),
    )


closed_frames = _closed_frames()
any_frame = closed_frames | data_frames(open_ended=True)


@st.composite
def frame_lists(draw: st.DrawFn) -> list[Frame]:
    """What one packet carries: frames that tell their length, then perhaps one that runs to the end."""
    found = draw(st.lists(closed_frames, max_size=6))
    if not found or draw(st.booleans()):
        found.append(draw(any_frame))
    return found


def join(frames: list[Frame]) -> bytes:
    return b"".join(map(f.encode_frame, frames))


# -- batches ----------------------------------------------------------------------------------------------------------

routes = st.builds(Route, u(32), u(32), u(64), u(64))


@st.composite
def batches(draw: st.DrawFn, *, max_messages: int = 4) -> Batch:
    payloads = draw(st.lists(bodies, min_size=1, max_size=max_messages))
    count = len(payloads)
    deltas = draw(st.none() | st.lists(u(32), min_size=count, max_size=count).map(tuple))
    return Batch(
        payloads,
        draw(u(64)),
        qos=draw(st.integers(0, 2)),
        retain=draw(st.booleans()),
        sequence=draw(st.none() | u(64)),
        route=draw(st.none() | routes),
        deltas_us=deltas,
        extension=draw(st.none() | bodies),
    )


# -- control messages and parameters ----------------------------------------------------------------------------------

texts = st.text(characters, max_size=40)
names = st.text(characters, min_size=1, max_size=40)
channels = st.integers(1, 2**32 - 1)

counts = st.sampled_from((0, 1, 2**63 - 1)) | st.integers(0, 2**63 - 1)
optional_names = st.none() | texts
filters = st.lists(names, min_size=1, max_size=4)
labels = st.lists(st.tuples(u(32), texts), max_size=4)
qualities = st.sampled_from((0, 1, 2))
proofs = st.just(b"") | raw(32)
wills = st.builds(c.Will, topic=names, payload=bodies, qos=qualities, retain=st.booleans())
topic_infos = st.builds(
    c.TopicInfo,
    name=names,
    policy=st.sampled_from(("open", "publishers", "explicit")),
    subscribers=counts,
    publishers=counts,
    messages=counts,
    payload_bytes=counts,
    retained=st.booleans(),
    last_us=counts,
)
client_infos = st.builds(
    c.ClientInfo,
    name=names,
    address=texts,
    since_us=counts,
    subscriptions=st.lists(filters, max_size=3),
    messages_in=counts,
    messages_out=counts,
)

kinds = st.text(characters, min_size=1, max_size=40)
refs = st.tuples(counts, u(32), u(32))
job_states = st.sampled_from(get_args(j.JobState))
task_states = st.sampled_from(get_args(j.TaskState))
fractions = st.none() | st.floats(0, 1)
numbers_of_jobs = st.lists(counts, min_size=1, max_size=4)
job_infos = st.builds(
    j.JobInfo,
    job=counts,
    key=names,
    controller=names,
    of_kind=kinds,
    state=job_states,
    workers=counts,
    agreed=st.none() | counts,
    finished=counts,
    failed=counts,
    leased=counts,
    priority=st.integers(-100, 100),
    submitted_us=counts,
    begins_us=counts,
    deadline_us=st.none() | counts,
    ended_us=st.none() | counts,
    payload_bytes=counts,
    reason=texts,
)
task_infos = st.builds(
    j.TaskInfo,
    task=counts,
    state=task_states,
    worker=texts,
    fence=counts,
    failures=counts,
    losses=counts,
    progress=fractions,
    note=texts,
    error=texts,
    since_us=counts,
    result_bytes=counts,
)

group_infos = st.builds(
    c.GroupInfo,
    name=names,
    filters=st.lists(names, max_size=3),
    members=st.lists(names, max_size=3),
    member_count=counts,
    position=counts,
    lag=counts,
    in_flight=counts,
    missed=counts,
    expires_us=counts,
)
cursor_infos = st.builds(
    c.CursorInfo,
    client=texts,
    filters=filters,
    cursor=texts,
    connected=st.booleans(),
    position=counts,
    lag=counts,
    idle=st.booleans(),
)
worker_infos = st.builds(
    j.WorkerInfo,
    name=texts,
    state=st.sampled_from(("ready", "stalled", "gone")),
    kinds=st.lists(texts, max_size=3),
    capacity=counts,
    tasks=counts,
    heard_us=counts,
)

CONTROL: dict[type[ControlMessage], st.SearchStrategy[ControlMessage]] = {
    c.Login: st.builds(
        c.Login,
        request=u(32),
        name=optional_names,
        instance=raw(16),
        proof=proofs,
        session_expiry_s=u(32),
        fresh=st.booleans(),
        will=st.none() | wills,
    ),
    c.Welcome: st.builds(
        c.Welcome,
        request=u(32),
        name=names,
        resumed=st.booleans(),
        proof=proofs,
        log=st.binary(max_size=16),
        max_message_bytes=counts,
    ),
    c.PublishOpen: st.builds(c.PublishOpen, topic=names, qos=qualities, publisher=optional_names, epoch=counts),
    c.Opened: st.builds(c.Opened, channel=channels, subscribers=counts),
    c.PublishRefused: st.builds(c.PublishRefused, channel=channels, code=u(16), text=texts),
    c.ProgressQuery: st.builds(c.ProgressQuery, request=u(32), topic=names, publisher=optional_names),
    c.Progressed: st.builds(c.Progressed, request=u(32), epoch=counts, next_sequence=counts),
    c.Subscribe: st.builds(
        c.Subscribe,
        request=u(32),
        subscription=u(32),
        filters=filters,
        cursor=optional_names,
        start=st.none() | st.sampled_from(("latest", "earliest")) | counts,
        since_us=st.none() | counts,
        retained=st.booleans(),
        group=optional_names,
        group_expiry_s=u(32),
        max_in_flight=st.none() | st.integers(1, 2**32 - 1),
    ),
    c.Subscribed: st.builds(
        c.Subscribed,
        request=u(32),
        subscription=u(32),
        is_new=st.booleans(),
        next_offset=counts,
        group=st.booleans(),
    ),
    c.Unsubscribe: st.builds(
        c.Unsubscribe,
        request=u(32),
        subscription=u(32),
        keep=st.booleans(),
        record=st.none() | counts,
        handled=counts,
    ),
    c.CursorCommit: st.builds(c.CursorCommit, request=u(32), subscription=u(32), offset=counts),
    c.Kicked: st.builds(c.Kicked, subscription=u(32), by=texts, reason=texts),
    c.DeliveryOpen: st.builds(c.DeliveryOpen, subscription=u(32), live=st.booleans()),
    c.Labels: st.builds(c.Labels, topics=labels, publishers=labels, forget=st.booleans()),
    c.Gap: st.builds(c.Gap, count=counts, next_offset=counts),
    c.Create: st.builds(c.Create, request=u(32), topic=names),
    c.Topics: st.builds(c.Topics, request=u(32), filter=optional_names, after=optional_names),
    c.TopicList: st.builds(c.TopicList, request=u(32), topics=st.lists(topic_infos, max_size=3), more=st.booleans()),
    c.Clients: st.builds(c.Clients, request=u(32), after=optional_names),
    c.ClientList: st.builds(
        c.ClientList, request=u(32), clients=st.lists(client_infos, max_size=3), more=st.booleans()
    ),
    c.DeleteTopic: st.builds(c.DeleteTopic, request=u(32), topic=names),
    c.Cursors: st.builds(c.Cursors, request=u(32), client=optional_names, after=optional_names),
    c.CursorList: st.builds(
        c.CursorList, request=u(32), cursors=st.lists(cursor_infos, max_size=3), more=st.booleans(), after=texts
    ),
    relay.RelayOpen: st.builds(
        relay.RelayOpen,
        log=st.binary(min_size=16, max_size=16),
        filters=st.lists(texts, min_size=1, max_size=3),
        sources=st.lists(st.binary(min_size=16, max_size=16), max_size=3),
    ),
    relay.RelayOpened: st.builds(
        relay.RelayOpened, channel=st.integers(1, 2**32 - 1), offset=st.none() | st.integers(0, 2**63 - 1)
    ),
    relay.ListBridges: st.builds(relay.ListBridges, request=u(32)),
    relay.BridgeList: st.builds(
        relay.BridgeList,
        request=u(32),
        bridges=st.lists(
            st.builds(
                relay.BridgeInfo,
                name=texts,
                direction=st.sampled_from(["in", "out"]),
                state=st.sampled_from(["running", "absent", "refused"]),
                lag=st.integers(0, 2**63 - 1),
            ),
            max_size=3,
        ),
    ),
    c.ListGroups: st.builds(c.ListGroups, request=u(32), after=optional_names),
    c.GroupList: st.builds(
        c.GroupList, request=u(32), groups=st.lists(group_infos, max_size=3), more=st.booleans(), after=texts
    ),
    c.Capture: st.builds(
        c.Capture,
        request=u(32),
        inbox=names,
        seconds=st.integers(1, 3600),
        max_bytes=st.integers(1024, 2**30),
        packet_bytes=st.integers(32, 65_535),
        filter=st.text(max_size=20),
    ),
    c.DeleteGroup: st.builds(c.DeleteGroup, request=u(32), group=names, filters=st.none() | filters),
    c.Kick: st.builds(c.Kick, request=u(32), client=names, filters=st.none() | filters, reason=texts),
    c.Work: st.builds(c.Work),
    j.Volunteer: st.builds(
        j.Volunteer,
        request=u(32),
        kinds=st.lists(kinds, max_size=3),
        capacity=st.integers(1, MAX_CAPACITY),
        holding=st.lists(refs, max_size=3),
    ),
    j.VolunteerReply: st.builds(j.VolunteerReply, request=u(32), lease_ms=counts),
    j.WatchJobs: st.builds(j.WatchJobs, request=u(32), jobs=numbers_of_jobs),
    j.WatchReply: st.builds(j.WatchReply, request=u(32), unknown=st.lists(counts, max_size=3)),
    j.UnwatchJobs: st.builds(j.UnwatchJobs, request=u(32), jobs=numbers_of_jobs),
    j.CancelJob: st.builds(j.CancelJob, request=u(32), job=counts, reason=texts),
    j.RetryJob: st.builds(j.RetryJob, request=u(32), job=counts, key=st.text("key", min_size=1, max_size=8)),
    j.RetryReply: st.builds(j.RetryReply, request=u(32), job=counts),
    j.ListJobs: st.builds(
        j.ListJobs,
        request=u(32),
        of_kind=st.none() | kinds,
        controller=optional_names,
        states=st.none() | st.lists(job_states, max_size=3),
        before=st.none() | counts,
    ),
    j.JobList: st.builds(
        j.JobList, request=u(32), jobs=st.lists(job_infos, max_size=3), more=st.booleans(), before=counts
    ),
    j.ShowJob: st.builds(j.ShowJob, request=u(32), job=counts, first_task=counts),
    j.JobDetails: st.builds(
        j.JobDetails, request=u(32), job=job_infos, tasks=st.lists(task_infos, max_size=3), more=st.booleans()
    ),
    j.ListWorkers: st.builds(j.ListWorkers, request=u(32), after=optional_names),
    j.WorkerList: st.builds(
        j.WorkerList, request=u(32), workers=st.lists(worker_infos, max_size=3), more=st.booleans()
    ),
    c.Ping: st.builds(c.Ping, request=u(32)),
    c.Pong: st.builds(c.Pong, request=u(32)),
    c.Done: st.builds(c.Done, request=u(32)),
    c.Error: st.builds(c.Error, code=u(16), text=texts, request=st.none() | u(32)),
}
"""Every kind of control message, each with all of its fields."""
control_messages: st.SearchStrategy[ControlMessage] = st.one_of(*CONTROL.values())

_sizes = st.integers(1, 2**53)
parameters = st.builds(
    Parameters,
    arq=st.sampled_from(("selective-repeat", "go-back-n", "stop-and-wait")),
    arq_window=st.integers(1, MAX_ARQ_WINDOW),
    max_datagram_bytes=st.integers(BASE_DATAGRAM_BYTES, LARGEST_DATAGRAM_BYTES),
    receive_buffer_bytes=st.integers(2 * BASE_DATAGRAM_BYTES, 2**53),
    channel_window_bytes=_sizes,
    connection_window_bytes=_sizes,
    max_record_bytes=st.integers(BASE_DATAGRAM_BYTES, LARGEST_RECORD_BYTES),
    max_channels=st.integers(1, 2**31),
    idle_timeout_ms=st.integers(1, 2**42),
    application=st.binary(max_size=MAX_HANDSHAKE_APPLICATION_BYTES),
)

# -- hostile bytes ----------------------------------------------------------------------------------------------------


CLAIMS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00")


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes after one to three accidents: flipped bits, something cut out or put in, a claim of billions."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "drop", "insert", "claim"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "claim":
                data[at : at + 4] = draw(
                    st.sampled_from((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00"))
                )
    return bytes(data)


def hostile(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=200) | damaged(valid)


def value_or_refusal(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """What decoding gives, None for a DecodeError with a known reason. Anything else that is raised fails the test."""
    try:
        return decode(data)
    except DecodeError as error:
        refusal = error
    assert refusal.reason in REASONS
    assert len(str(refusal)) < 300
    return None
