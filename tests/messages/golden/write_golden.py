#!/usr/bin/env python3
"""Writes the golden envelopes, one .hex file a message, with an encoder of its own.

MessagePack is written here from its specification (github.com/msgpack/msgpack/blob/master/spec.md), so that
the C++ codec is compared with something that shares no code with it. Run it only when the bytes on the wire
are meant to change, and say so in the commit.
"""

import pathlib
import struct

PROTOCOL_VERSION = 7
ROLE_GRADIENT_BUCKET, ROLE_COORDINATOR = 3, 5
PEER_LOST = 8
FAILURE = [True, PEER_LOST, b"rank 2 died", [2, 200]]
NO_FAILURE = [False, 13, b"", []]
MESSAGES = [
    (15, "Join", [1, 4, 0xFEDCBA9876543210, b"strategy=zero1", 3]),
    (17, "PlanLines", [1, [b"0 reduce_scatter dp", b""]]),
    (18, "Welcome", [[0, 1, 200]]),
    (19, "Refused", [FAILURE]),
    (21, "RankFailed", [1, FAILURE]),
    (22, "Fence", [2, FAILURE]),
    (23, "Leave", [1]),
    (24, "Farewell", [4]),
    (25, "StoreSet", [b"gloo/0", b"\x00\xff"]),
    (26, "StoreGet", [9, b"gloo/0"]),
    (27, "StoreValue", [9, b"value"]),
    (33, "SaveAnnounced", [5, 1, 7, 0xFEDCBA9876543210, 200, b"{}", b'{"a":1}', b"[]"]),
    (34, "StructureWanted", [0xFEDCBA9876543210, 1]),
    (35, "StructurePart", [0xFEDCBA9876543210, 1, 2, b"text"]),
    (37, "SavePlanned", [5, b"step_00000008.tmp-1", [0, 2, 300]]),
    (40, "FilesDurable", [5, 1, [1, 0xFEDCBA9876543210], NO_FAILURE]),
    (41, "SaveFailed", [5, 1, FAILURE]),
    (43, "SaveOver", [5, 7, b"step_00000008", 5000000000, b"rank 2 differs", NO_FAILURE]),
    (48, "CopyReady", [5, 1, 7, 5000000000, NO_FAILURE]),
    (49, "ExchangeBegan", [5, [300, 5000000000]]),
    (54, "CopiesHeld", [5, 1, FAILURE]),
    (55, "LocalSaveOver", [5, 7, 5000000000, FAILURE]),
    (60, "PlanPartWanted", [65536, 256]),
    (61, "PlanHashes", [1, 65536, 256, [0xFEDCBA9876543210, 3]]),
    (62, "StepAccount", [1, 7, b"no data", [b"learning rate: 0.1"], [8, 1]]),
    (63, "StepReason", [7, b"refused by rank 1: no data"]),
    (64, "TrainerCalls", [1, [8, 1, 0, 0, 0, 1], True, 5, 1]),
    (65, "WaitNote", [b"rank 1 waits in leave()"]),
    (66, "StepsTimed", [1, 300, 2, 5000000000, 1000000000, 11000000000]),
]


def encode_integer(value):
    if 0 <= value < 128 or -32 <= value < 0:
        return struct.pack(">b", value)
    if value < 0:
        raise ValueError("no sample is below -32")
    for limit, head in ((2**8, ">BB"), (2**16, ">BH"), (2**32, ">BI"), (2**64, ">BQ")):
        if value < limit:
            return struct.pack(head, {"B": 0xCC, "H": 0xCD, "I": 0xCE, "Q": 0xCF}[head[-1]], value)
    raise ValueError(value)


def encode(value):
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return encode_integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return bytes([0xC4, len(value)]) + value
    assert len(value) < 16
    return bytes([0x90 | len(value)]) + b"".join(encode(item) for item in value)


def main():
    folder = pathlib.Path(__file__).parent
    for tag, name, body in MESSAGES:
        sender, receiver = [1, ROLE_GRADIENT_BUCKET, 4], [0, ROLE_COORDINATOR, 0]
        envelope = encode([PROTOCOL_VERSION, tag, 6, sender, receiver, body])
        (folder / f"{name}.hex").write_text(envelope.hex() + "\n")


if __name__ == "__main__":
    main()
