#!/usr/bin/env python3
"""Writes the golden envelopes, one .hex file a message, with an encoder of its own.

MessagePack is written here from its specification (github.com/msgpack/msgpack/blob/master/spec.md), so that
the C++ codec is compared with something that shares no code with it. Run it only when the bytes on the wire
are meant to change, and say so in the commit.
"""

import pathlib
import struct

PROTOCOL_VERSION = 2
ROLE_GRADIENT_BUCKET, ROLE_COORDINATOR = 3, 5
PEER_LOST = 8
FAILURE = [True, PEER_LOST, b"rank 2 died"]
NO_FAILURE = [False, 13, b""]
VERDICT = [0.5, 3, [1, 2], [2.25, -0.0], 3]
MESSAGES = [
    ("GradientReady", [7, 3, 300]),
    ("LaneEnded", [7, 3]),
    ("BucketReduced", [70000, 4]),
    ("CollectiveReady", [7, 11]),
    ("CollectiveDone", [7, 11, 5000000000, NO_FAILURE]),
    ("CollectiveFailed", [7, 11, 12, FAILURE]),
    ("StepBegan", [-1, 0.001]),
    ("BackwardFinished", [7, [[0, 2.0], [1, 2.5]], b"parameter w has no gradient", 1]),
    ("VerdictArrived", [7, VERDICT]),
    ("StepDecided", [7, True, b"", 0.125, 1.0, VERDICT]),
    ("StepCommitted", [7]),
    ("StepFailed", [7, FAILURE]),
    ("ShardStepped", [7, 4]),
    ("ShardUpdated", [7, 4]),
    ("Published", [7, 4]),
    ("Join", [1, 4, 0xFEDCBA9876543210, b"strategy=zero1"]),
    ("PlanWanted", [True]),
    ("PlanLines", [1, [b"0 reduce_scatter dp", b""]]),
    ("Welcome", [[0, 1, 200]]),
    ("Refused", [FAILURE]),
    ("PeerLost", [2, FAILURE]),
    ("RankFailed", [1, FAILURE]),
    ("Fence", [2, FAILURE]),
    ("Leave", [1]),
    ("Farewell", [4]),
    ("StoreSet", [b"gloo/0", b"\x00\xff"]),
    ("StoreGet", [9, b"gloo/0"]),
    ("StoreValue", [9, b"value"]),
    ("LaneMerged", [7, 3, 4]),
    ("BucketReady", [7, 4, b"bias came twice"]),
    ("SaveBegan", [5, 7, b"{}", b'{"a":1}', b"[]"]),
    ("BucketHeld", [5, 4]),
    ("BucketStaged", [5]),
    ("SaveAnnounced", [5, 1, 7, 0xFEDCBA9876543210, 200, b"{}", b'{"a":1}', b"[]"]),
    ("StructureWanted", [0xFEDCBA9876543210]),
    ("StructurePart", [0xFEDCBA9876543210, 1, 2, b"text"]),
    ("SaveDirectoryMade", [5, FAILURE]),
    ("SavePlanned", [5, b"step_00000008.tmp-1", [0, 2, 300]]),
    ("ChunkStaged", [5, 6, 1]),
    ("ChunkWritten", [5, 6, 1, FAILURE]),
    ("FilesDurable", [5, 1, [1, 0xFEDCBA9876543210], NO_FAILURE]),
    ("SaveFailed", [5, 1, FAILURE]),
    ("SaveCommitDone", [5, NO_FAILURE]),
    ("SaveOver", [5, 7, b"step_00000008", 5000000000, b"rank 2 differs", NO_FAILURE]),
    ("StateRestored", [7]),
    ("ReplicaSeed", [0xFEDCBA9876543210]),
    ("CopyDirectoryMade", [5, FAILURE]),
    ("CopySealed", [5, 5000000000, FAILURE]),
    ("CopyReady", [5, 1, 7, 5000000000, NO_FAILURE]),
    ("ExchangeBegan", [5, [300, 5000000000]]),
    ("RoundRead", [2, 70000, 1, FAILURE]),
    ("RoundShared", [2, 70000, 1, FAILURE]),
    ("RoundWritten", [2, 70000, 1, FAILURE]),
    ("ExchangeClosed", [2, FAILURE]),
    ("CopiesHeld", [5, 1, FAILURE]),
    ("LocalSaveOver", [5, 7, 5000000000, FAILURE]),
    ("RetrieveBegan", [[8, 0xFEDCBA9876543210], [[1, 3, 5000000000, [1, 5]], [3, 3, 200, []]]]),
    ("RetrieveOver", [FAILURE]),
    ("StateGathered", [FAILURE]),
    ("CopiesTidied", [5]),
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
    for tag, (name, body) in enumerate(MESSAGES):
        sender, receiver = [1, ROLE_GRADIENT_BUCKET, 4], [0, ROLE_COORDINATOR, 0]
        envelope = encode([PROTOCOL_VERSION, tag, 6, sender, receiver, body])
        (folder / f"{name}.hex").write_text(envelope.hex() + "\n")


if __name__ == "__main__":
    main()
