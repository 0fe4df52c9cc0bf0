#!/usr/bin/env python3
"""Writes the golden checkpoint of two ranks, from docs/checkpoint-format.md and not with the C++ code.

Needs `xxhash` from PyPI. With `safetensors` and `numpy` it also writes foreign.safetensors. Run it only when the
format is meant to change, and say so in the commit.
"""

import json
import pathlib
import struct

import xxhash

HERE = pathlib.Path(__file__).parent
STEP = 7
SAVE = "0123456789abcdef"
WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "I64": 8, "F8_E4M3": 1, "BOOL": 1}

# key: (number, dtype, shape). The number gives the tensor its content.
TENSORS = {
    "weight": (1, "F32", (5, 4)),
    "bias": (2, "BF16", (3,)),
    "table": (3, "I64", (2,)),
    "scale": (4, "F64", ()),
    "none": (5, "F32", (0, 7)),
    'mask "q"/é': (6, "BOOL", (2, 2)),
    "narrow": (7, "F8_E4M3", (2, 3)),
}

# Elements 0 to 8 of the weight are on rank 0, the others on rank 1: each has a part of the row 2. What both ranks
# have goes to who writes less: the table to rank 0 (42 bytes against 54), then the scale to rank 1.
FILES = {
    "shard_00000_0.safetensors": [("weight", (0, 0), (2, 4)), ("bias", (0,), (3,)), ("table", (0,), (2,))],
    "shard_00000_1.safetensors": [("weight", (2, 0), (1, 1))],
    "shard_00001_0.safetensors": [("weight", (2, 1), (1, 3)), ('mask "q"/é', (0, 0), (2, 2)),
                                  ("narrow", (0, 0), (2, 3)), ("scale", (), ())],
    "shard_00001_1.safetensors": [("weight", (3, 0), (2, 4))],
}

TOPOLOGY = {"strategy": "zero1", "world": 2}
COMMON = {"betas": {"$tuple": [{"$double": struct.pack(">d", 0.9).hex()}, {"$double": struct.pack(">d", 0.95).hex()}]},
          "groups": {"$map": [[0, "decay"], [1, "no decay"]]}, "iteration": 7, "seed": {"$bytes": "AAEC/w=="}}
OBJECTS = [("rng_state", [2], [0], {"lanes": [1, 2]}), ("rng_state", [2], [1], {"lanes": [3, 4]})]


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def content(key):
    """The bytes of a whole tensor."""
    number, dtype, shape = TENSORS[key]
    count = WIDTH[dtype]
    for extent in shape:
        count *= extent
    return bytes(i % 2 if dtype == "BOOL" else (number * 37 + i * 7) % 113 for i in range(count))


def part(key, offset, extent):
    """The bytes of a box, row by row."""
    _, dtype, shape = TENSORS[key]
    if not shape:
        return content(key)
    width, rows = WIDTH[dtype], [0]
    for size, begin, count in zip(shape[:-1], offset[:-1], extent[:-1]):
        rows = [row * size + begin + i for row in rows for i in range(count)]
    starts = [(row * shape[-1] + offset[-1]) * width for row in rows]
    return b"".join(content(key)[start:start + extent[-1] * width] for start in starts)


def shard_file(parts):
    """(header, tensors' bytes, the begin of each in the file)."""
    info = {key: {"saved_offsets": list(offset)} for key, offset, _ in parts}
    header = {"__metadata__": {"DCP_SHARDING_INFO": compact(info), "DCP_VERSION": "1.0", "format": "pt"}}
    data, begins = b"", []
    for key, offset, extent in parts:
        begins.append(len(data))
        data += part(key, offset, extent)
        header[key] = {"dtype": TENSORS[key][1], "shape": list(extent), "data_offsets": [begins[-1], len(data)]}
    text = compact(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text, data, [8 + len(text) + begin for begin in begins]


def lines(items):
    return "[\n" + ",\n".join(items) + "\n]"


def main():
    root = HERE / f"step_{STEP:08}"
    root.mkdir(exist_ok=True)
    files, shards = [], {key: [] for key in TENSORS}
    for number, (name, parts) in enumerate(FILES.items()):
        header, data, begins = shard_file(parts)
        (root / name).write_bytes(header + data)
        files.append({"name": name, "bytes": len(header) + len(data), "header_bytes": len(header),
                      "header_hash": xxhash.xxh3_64_hexdigest(header)})
        for (key, offset, extent), begin in zip(parts, begins):
            data = part(key, offset, extent)
            shards[key].append([number, begin, begin + len(data), xxhash.xxh3_64_hexdigest(data),
                                list(offset), list(extent)])
    tensors = [{"key": key, "dtype": TENSORS[key][1], "shape": list(TENSORS[key][2]),
                "shards": sorted(shards[key], key=lambda shard: shard[4])}
               for key in sorted(TENSORS, key=str.encode)]
    objects = [{"key": key, "grid": grid, "cell": cell, "value": value} for key, grid, cell, value in OBJECTS]
    text = f'{{"format":"troupe-checkpoint","version":1,\n"step":{STEP},"save":"{SAVE}",\n'
    text += f'"topology":{compact(TOPOLOGY)},\n"common":{compact(COMMON)},\n'
    for name, items in (("files", files), ("tensors", tensors), ("objects", objects)):
        text += f'"{name}":{lines(map(compact, items))},\n'
    text += f'"hash":"{xxhash.xxh3_64_hexdigest(text.encode())}"}}\n'
    (root / "manifest.json").write_text(text)
    write_foreign()


def write_foreign():
    try:
        import numpy
        from safetensors.numpy import save_file
    except ImportError:
        print("foreign.safetensors stays as it is: no numpy or safetensors")
        return
    tensors = {"matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "flag": numpy.array([True, False]),
               "scalar": numpy.array(2.5, dtype=numpy.float64), "empty": numpy.zeros((0, 4), dtype=numpy.int16)}
    save_file(tensors, HERE / "foreign.safetensors", metadata={"format": "pt", "é": '"'})


if __name__ == "__main__":
    main()
