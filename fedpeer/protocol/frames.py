"""A model's frames in the protocol buffer's own encoding, without the copies that a message object makes.

A frame's bytes are nearly all of what travels. A message object copies them when it is made, written, parsed and asked
for them; here they are copied once into the message that is sent, and stay where they were received. Everything but a
plain frame is left to the library.

    SubmitModelRequest { ModelFrame frame = 2 }        12 LEN FRAME
    ModelFrame { uint64 offset = 1; bytes data = 2 }   [08 OFFSET] 12 LEN DATA
"""

from dataclasses import dataclass

from fedpeer.v1 import market_pb2

#: Tags: field number << 3 | wire type (0 varint, 2 length-delimited).
_FRAME_TAG = 2 << 3 | 2
_OFFSET_TAG = 1 << 3
_DATA_TAG = 2 << 3 | 2

#: Bytes of a varint that is read here: a length below 2^28, an offset below 2^56. Longer ones are left to the library.
_LENGTH_BYTES = 4
_OFFSET_BYTES = 8

#: Bytes of an offset as it is written here, whatever its value. What precedes the data is then 16 bytes long, so that
#: the receiver finds numbers of any type aligned in memory, and need not copy them to look at them.
_WRITTEN_OFFSET_BYTES = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes of a model file from `offset` on."""

    offset: int
    data: memoryview


def upload_message(offset: int, data: bytes | memoryview) -> bytes:
    """A serialised SubmitModelRequest with the frame of `data`, bytes, at most 2^27 of them, at `offset`."""
    if offset >> 7 * _WRITTEN_OFFSET_BYTES:
        frame = market_pb2.ModelFrame(offset=offset, data=bytes(data))
        return market_pb2.SubmitModelRequest(frame=frame).SerializeToString()
    size = len(data)
    head = bytes(
        (_OFFSET_TAG, *_padded(offset, _WRITTEN_OFFSET_BYTES), _DATA_TAG, *_padded(size, _LENGTH_BYTES))
    )
    return b"".join((bytes((_FRAME_TAG, *_padded(len(head) + size, _LENGTH_BYTES))), head, data))


def parse_upload_message(message: bytes) -> market_pb2.ModelHeader | Frame:
    """What a serialised SubmitModelRequest carries: the same as the library makes of it, for every sequence of bytes.

    One that carries neither header nor frame is an empty frame at 0.

    Raises:
        google.protobuf.message.DecodeError: it is not a SubmitModelRequest.
    """
    if message and message[0] == _FRAME_TAG:
        length, at = _varint(message, 1, _LENGTH_BYTES)
        frame = _plain_frame(message, at) if at + length == len(message) else None
        if frame is not None:
            return frame
    parsed = market_pb2.SubmitModelRequest.FromString(message)
    if parsed.WhichOneof("part") == "header":
        return parsed.header
    return Frame(parsed.frame.offset, memoryview(parsed.frame.data))


def parse_frame(message: bytes) -> Frame:
    """What a serialised ModelFrame carries, as above.

    Raises:
        google.protobuf.message.DecodeError: it is not a ModelFrame.
    """
    frame = _plain_frame(message, 0)
    if frame is not None:
        return frame
    parsed = market_pb2.ModelFrame.FromString(message)
    return Frame(parsed.offset, memoryview(parsed.data))


def _plain_frame(message: bytes, at: int) -> Frame | None:
    """The frame from `at` to the end, with its fields once each and in order; None for any other."""
    size = len(message)
    if at >= size:
        return None
    offset = 0
    if message[at] == _OFFSET_TAG:
        offset, at = _varint(message, at + 1, _OFFSET_BYTES)
        if at >= size:
            return None
    if message[at] != _DATA_TAG:
        return None
    length, at = _varint(message, at + 1, _LENGTH_BYTES)
    return Frame(offset, memoryview(message)[at:]) if at + length == size else None


def _varint(message: bytes, at: int, most: int) -> tuple[int, int]:
    """A varint at `at`, and where it ends; an end beyond the message where none ends within `most` bytes."""
    value = 0
    for shift, byte in enumerate(message[at : at + most]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    return 0, len(message) + 1


def _padded(value: int, size: int) -> bytes:
    """A varint of so many bytes; more than the value takes are allowed."""
    groups = [value >> 7 * i & 0x7F | 0x80 for i in range(size)]
    groups[-1] &= 0x7F
    return bytes(groups)
