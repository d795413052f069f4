"""Frames are read as the protocol-buffer library reads them, whatever the bytes."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from fedpeer.protocol.frames import Frame, parse_frame, parse_upload_message, upload_message
from fedpeer.v1 import market_pb2


def by_the_library(message: bytes) -> market_pb2.ModelHeader | Frame:
    parsed = market_pb2.SubmitModelRequest.FromString(message)
    if parsed.WhichOneof("part") == "header":
        return parsed.header
    return Frame(parsed.frame.offset, memoryview(parsed.frame.data))


def varint(value: int, padding: int = 0) -> bytes:
    """A varint, and one that is longer than it has to be."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    groups += [0] * padding
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def field(number: int, content: bytes, padding: int = 0) -> bytes:
    return varint(number << 3 | 2) + varint(len(content), padding) + content


data = st.binary(max_size=300)
offsets = st.integers(0, 2**64 - 1) | st.integers(0, 2**22)
paddings = st.integers(0, 10)
frames = st.builds(
    lambda offset, content, padding: (
        (b"\x08" + varint(offset, padding) if offset else b"") + field(2, content, padding)
    ),
    offsets,
    data,
    paddings,
)
#: Fields in any order, repeated, unknown, of the wrong type: what a library accepts, and what it does not.
parts = frames | st.builds(field, st.integers(1, 5), data, paddings) | data
bodies = st.lists(parts, max_size=3).map(b"".join)
messages = st.lists(st.builds(field, st.integers(1, 3), bodies, paddings) | data, max_size=2).map(b"".join)


@given(st.integers(0, 2**64 - 1), data)
def test_a_frame_comes_back(offset: int, content: bytes) -> None:
    message = market_pb2.SubmitModelRequest(frame=market_pb2.ModelFrame(offset=offset, data=content))
    assert parse_upload_message(message.SerializeToString()) == Frame(offset, memoryview(content))


@given(st.integers(0, 2**64 - 1) | st.integers(0, 2**36), data)
@example(2**35 - 1, b"x")
@example(2**35, b"x")
def test_the_library_reads_what_is_written_here(offset: int, content: bytes) -> None:
    for message in (upload_message(offset, content), upload_message(offset, memoryview(content))):
        parsed = market_pb2.SubmitModelRequest.FromString(message)
        assert (parsed.frame.offset, parsed.frame.data) == (offset, content)
        assert parse_upload_message(message) == Frame(offset, memoryview(content))


@pytest.mark.parametrize("offset", [0, 1, 1 << 21, (1 << 35) - 1])
def test_the_data_of_a_frame_that_is_sent_are_aligned(offset: int) -> None:
    message = upload_message(offset, bytes(1 << 21))
    found = parse_upload_message(message)
    assert isinstance(found, Frame)
    assert found.data.obj is message
    assert np.frombuffer(found.data, "<f8").flags.aligned


def test_a_frame_is_not_copied() -> None:
    request = market_pb2.SubmitModelRequest(frame=market_pb2.ModelFrame(offset=1 << 40, data=bytes(100)))
    message = request.SerializeToString()
    found = parse_upload_message(message)
    assert isinstance(found, Frame)
    assert found.data.obj is message


@given(bodies | data)
def test_every_fetched_frame_is_what_the_library_makes_of_it(message: bytes) -> None:
    try:
        parsed = market_pb2.ModelFrame.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse_frame(message)
    else:
        assert parse_frame(message) == Frame(parsed.offset, memoryview(parsed.data))


@given(messages | st.builds(lambda message, end: message[:end], messages, st.integers(0, 40)))
def test_every_message_is_what_the_library_makes_of_it(message: bytes) -> None:
    try:
        expected = by_the_library(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse_upload_message(message)
    else:
        assert parse_upload_message(message) == expected
