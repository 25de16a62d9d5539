"""Reads and writes safetensors files with numpy alone.

    tensors = read("model.safetensors")             # {name: Tensor(dtype, array)}; files are memory-mapped
    write("out.safetensors", {"x": ("F32", array)})

Types that numpy lacks travel as their bits: BF16 as uint16, F8_E4M3 and F8_E8M0 as uint8. `bf16_to_f32` and `f32_to_bf16` convert.
"""
import json
import os
import struct
from collections import namedtuple

import numpy as np

Tensor = namedtuple("Tensor", "dtype array")
STORAGE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
           "U8": "<u1", "BOOL": "?", "F8_E4M3": "<u1", "F8_E8M0": "<u1"}


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """Nearest, ties to even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def read(path):
    """All tensors of one file, or of a folder: its single file or the shards that its index names."""
    if os.path.isdir(path):
        index = os.path.join(path, "model.safetensors.index.json")
        if not os.path.exists(index):
            return read(os.path.join(path, "model.safetensors"))
        with open(index) as fh:
            shards = sorted(set(json.load(fh)["weight_map"].values()))
        out = {}
        for shard in shards:
            out.update(read(os.path.join(path, shard)))
        return out
    with open(path, "rb") as fh:
        size, = struct.unpack("<Q", fh.read(8))
        header = json.loads(fh.read(size))
    header.pop("__metadata__", None)
    data, out = np.memmap(path, np.uint8, "r", 8 + size) if header else None, {}
    for name, meta in header.items():
        first, last = meta["data_offsets"]
        out[name] = Tensor(meta["dtype"], np.frombuffer(data[first:last].tobytes(), STORAGE[meta["dtype"]]).reshape(meta["shape"]))
    return out


def write(path, tensors, metadata=None):
    """tensors: {name: (dtype, array)}. Widest types first, so that every tensor is aligned."""
    header, blobs, at = {"__metadata__": metadata or {"format": "pt"}}, [], 0
    for name, (dtype, array) in sorted(tensors.items(), key=lambda t: (-np.dtype(STORAGE[t[1][0]]).itemsize, t[0])):
        array = np.asarray(array)
        raw = array.astype(STORAGE[dtype], copy=False).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as fh:
        fh.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_shards(folder, tensors, limit_bytes):
    """model-0000X-of-0000N.safetensors of at most limit_bytes each and model.safetensors.index.json."""
    shards, room = [], 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        size = np.asarray(array).size * np.dtype(STORAGE[dtype]).itemsize + 200           # 200: the tensor's header entry
        if not shards or size > room:
            shards.append({})
            room = limit_bytes - 64
        shards[-1][name] = tensors[name]
        room -= size
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write(os.path.join(folder, file), shard)
        weight_map.update({name: file for name in shard})
    total = sum(os.path.getsize(os.path.join(folder, f)) for f in set(weight_map.values()))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as fh:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, fh, indent=1)
        fh.write("\n")
