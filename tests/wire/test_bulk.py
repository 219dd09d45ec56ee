"""Runs of packets: both forms of godwit.wire.bulk return the same, and the packets of the general encoder."""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import hatch_build
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import u

from godwit.compiled_core import c_files
from godwit.wire.packet import (
    CHECKSUM,
    DATA,
    DATA_HEADER,
    FIRST_BYTE,
    HEADER,
    LAST,
    DataFrame,
    decode_frames,
    decode_packet,
    encode_frame,
    encode_packet,
)

PACKAGE = hatch_build.PACKAGE
CONNECTION = 0x0123_4567_89AB_CDEF
PACKET_HEAD = HEADER.pack(FIRST_BYTE, CONNECTION, 0)[:9]
FRAME_HEAD = DATA_HEADER.pack(DATA, 7, 5)
LAST_FRAME_HEAD = DATA_HEADER.pack(DATA | LAST, 7, 5)
OVERHEAD_BYTES = 30
BODY = bytes(place * 7919 >> 3 & 0xFF for place in range(20_000))


def load(loader: Any) -> Any:
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


PYTHON = load(SourceFileLoader("bulk_in_python", str(PACKAGE / "wire" / "bulk.py")))


def build(folder: Path, *options: str) -> Any:
    """Compile the form in C, and return it."""
    if not hatch_build._has_compiler():
        pytest.skip("this machine has no C compiler")
    pytest.importorskip("setuptools")
    (extension,) = hatch_build.written_extensions()
    extension.extra_compile_args += options
    (path,) = hatch_build.build_extensions([extension], folder / "objects", folder).values()
    return load(ExtensionFileLoader("bulk", str(path)))  # its name in sys.modules


@pytest.fixture(scope="module")
def with_instructions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build(tmp_path_factory.mktemp("with"))


@pytest.fixture(scope="module")
def without_instructions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The form in C for a processor without instructions for the checksum."""
    return build(tmp_path_factory.mktemp("without"), "-DWITHOUT_INSTRUCTIONS")


@pytest.fixture(params=["python", "with_instructions", "without_instructions"])
def bulk(request: pytest.FixtureRequest) -> Any:
    """Each form in turn."""
    return PYTHON if request.param == "python" else request.getfixturevalue(request.param)


in_c = pytest.mark.parametrize("name", ["with_instructions", "without_instructions"])


def encode(form: Any, start: int, stop: int, body_bytes: int, number: int = 3) -> bytes:
    return bytes(form.encode_run(BODY, start, stop, body_bytes, PACKET_HEAD, number, FRAME_HEAD, LAST_FRAME_HEAD))


def decode(
    form: Any,
    data: bytes,
    body_bytes: int,
    count: int,
    *,
    at: int = 0,
    number: int = 3,
    offset: int = 0,
    check: Any = True,
) -> bytes:
    size = body_bytes + OVERHEAD_BYTES
    return bytes(form.decode_run(data, at, size, count, PACKET_HEAD, number, FRAME_HEAD, offset, check))


def test_the_packets_are_those_of_the_general_encoder(bulk: Any) -> None:
    train = encode(bulk, 100, 1250, 500, number=2**32 + 9)
    expected = [
        encode_packet(CONNECTION, 9 + place, encode_frame(DataFrame(flags, 7, 5, start, None, BODY[start:stop])))
        for place, (flags, start, stop) in enumerate([(0, 100, 600), (0, 600, 1100), (LAST, 1100, 1250)])
    ]
    assert train == b"".join(expected)
    _, number, frames = decode_packet(expected[1])
    assert (number, decode_frames(frames)) == (10, [DataFrame(0, 7, 5, 600, None, BODY[600:1100])])


def test_a_run_ends_at_the_first_other_packet(bulk: Any) -> None:
    train = encode(bulk, 0, 5000, 500)
    assert decode(bulk, train, 500, 9) == BODY[:4500]
    assert decode(bulk, train, 500, 10) == BODY[:4500], "the type of the last one is another"
    assert decode(bulk, train, 500, 0) == b""
    assert decode(bulk, train, 500, 8, at=530, number=4, offset=500) == BODY[500:4500]
    for wrong in ({"number": 4}, {"offset": 1}, {"at": 1}):
        assert decode(bulk, train, 500, 8, **wrong) == b""


@pytest.mark.parametrize("damaged", range(9))
def test_a_damaged_packet_ends_a_run(bulk: Any, damaged: int) -> None:
    """Checksums are computed for three packets at a time, so each place among them is tried."""
    train = bytearray(encode(bulk, 0, 5000, 500))
    train[damaged * 530 + 400] ^= 1
    assert decode(bulk, bytes(train), 500, 9) == BODY[: damaged * 500]
    assert len(decode(bulk, bytes(train), 500, 9, check=False)) == 4500
    train = bytearray(encode(bulk, 0, 5000, 500))
    train[(damaged + 1) * 530 - CHECKSUM.size] ^= 0x80
    assert decode(bulk, bytes(train), 500, 9) == BODY[: damaged * 500]


@in_c
@given(st.data())
def test_both_forms_return_the_same(request: pytest.FixtureRequest, name: str, data: st.DataObject) -> None:
    form = request.getfixturevalue(name)
    body_bytes = data.draw(st.integers(1, 1500), "body_bytes")
    start = data.draw(st.integers(0, len(BODY) - 1), "start")
    stop = data.draw(st.integers(start + 1, min(len(BODY), start + 12 * body_bytes)), "stop")
    number = data.draw(u(64), "number")
    train = encode(PYTHON, start, stop, body_bytes, number)
    assert encode(form, start, stop, body_bytes, number) == train
    broken = bytearray(train)
    for place in data.draw(st.lists(st.integers(0, len(train) - 1), max_size=2), "broken"):
        broken[place] ^= 1 << data.draw(st.integers(0, 7), "bit")
    count = len(train) // (body_bytes + OVERHEAD_BYTES)
    for check in (True, False):
        found = decode(form, bytes(broken), body_bytes, count, number=number, offset=start, check=check)
        assert found == decode(PYTHON, bytes(broken), body_bytes, count, number=number, offset=start, check=check)


@in_c
def test_invalid_arguments_read_no_memory(request: pytest.FixtureRequest, name: str) -> None:
    """The transport never passes such arguments; if it did, that would be an error, not undefined."""
    form = request.getfixturevalue(name)
    heads = PACKET_HEAD, 3, FRAME_HEAD
    for sizes in ((0, 0, 500), (9, 5, 500), (0, len(BODY) + 1, 500), (0, 100, 0), (0, 100, 2**63 - 1), (-1, 100, 9)):
        with pytest.raises(ValueError, match=r"run|negative"):
            form.encode_run(BODY, *sizes, *heads, LAST_FRAME_HEAD)
    train = encode(form, 0, 1000, 500)
    for sizes in ((0, 530, 3), (1, 530, 2), (2000, 530, 0), (0, 30, 1), (0, 0, 1), (-1, 530, 1), (0, 2**63 - 1, 2)):
        with pytest.raises(ValueError, match=r"packets|negative"):
            form.decode_run(train, *sizes, *heads, 0, True)
    with pytest.raises(TypeError):
        form.encode_run(BODY, 0, 100, 50, PACKET_HEAD[1:], 3, FRAME_HEAD, LAST_FRAME_HEAD)
    with pytest.raises(TypeError):
        form.decode_run(bytearray(train), 0, 530, 1, *heads, 0, True)
    with pytest.raises(TypeError):
        form.decode_run(train, 0, 530, "1", *heads, 0, True)
    with pytest.raises(TypeError):
        form.encode_run(BODY)


def test_both_forms_have_the_same_functions(with_instructions: Any) -> None:
    (source,) = c_files(PACKAGE)
    assert source.with_suffix(".py").exists()
    public = {name for name, value in vars(PYTHON).items() if getattr(value, "__module__", "") == PYTHON.__name__}
    assert {name for name in vars(with_instructions) if not name.startswith("_")} == public
