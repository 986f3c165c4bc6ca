"""The safetensors container, piece by piece: header in, header out, nothing mapped into memory.

The library maps a whole file, and mapped pages count as resident memory; a merge of 62 GB in 300 MB
has to read and write by offset. Format: 8 bytes little-endian length, a JSON object
{name: {dtype, shape, data_offsets}} padded with spaces, then the tensors without gaps.
Source: the format's description in the safetensors repository.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError, show

WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
"""Bytes an element, of every dtype that safetensors 0.7 writes in whole bytes."""

FLOATS: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32), "F64": np.dtype(np.float64),
}  # fmt: skip
"""The dtypes that hold plain weights; only these can be merged into."""

NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""MergeConfig.dtype in safetensors' words."""

_LIMIT = 100_000_000  # the library's own bound of a header
Read = Callable[[int, int], bytes]
"""(offset, size) -> the bytes there, fewer at the end of the file."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of one file. `begin` and `end` are offsets into the file, not into its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        """bytes"""
        return self.end - self.begin

    @property
    def count(self) -> int:
        """elements"""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A file's header: its raw bytes (length included), its tensors in the order of their data."""

    file: str
    raw: bytes
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str] | None = field(default=None)


def read(file: str, size: int, source: Read) -> Header:
    """The header of a file of `size` bytes. Raises UserError naming the file when it is damaged."""

    def bad(rule: str, value: object = None) -> UserError:
        return UserError(Fault(file, rule, None if value is None else show(value), "Fetch the file again."))

    head = source(0, 8)
    if len(head) < 8:
        raise bad("is no safetensors file: shorter than 8 bytes")
    (length,) = struct.unpack("<Q", head)
    if length > min(_LIMIT, size - 8):
        raise bad(f"is no safetensors file, or is cut off: header of {length} bytes in a file of {size}")
    raw = source(8, length)
    try:
        data = json.loads(raw)
        metadata = data.pop("__metadata__", None)
        found = [
            Tensor(
                name,
                str(item["dtype"]),
                tuple(int(n) for n in item["shape"]),
                file,
                8 + length + int(item["data_offsets"][0]),
                8 + length + int(item["data_offsets"][1]),
            )
            for name, item in data.items()
        ]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise bad("has a header that is not safetensors' JSON") from None
    tensors = sorted(found, key=lambda t: (t.begin, t.end))
    position = 8 + length
    for tensor in tensors:
        if tensor.dtype not in WIDTHS:
            raise bad(f"tensor {tensor.name} has a dtype that is not known", tensor.dtype)
        if tensor.begin != position or tensor.size != tensor.count * WIDTHS[tensor.dtype]:
            raise bad(f"tensor {tensor.name} is not where, or not as long as, its header says")
        position = tensor.end
    if position != size:
        raise bad(f"should have {position} bytes and has {size}: it is cut off or has a tail")
    return Header(file, head + raw, tuple(tensors), metadata)


def write(tensors: list[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str] | None) -> bytes:
    """The header, length included, of tensors (name, dtype, shape) that follow in this order."""
    data: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, dtype, shape in tensors:
        end = position + math.prod(shape) * WIDTHS[dtype]
        data[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw
