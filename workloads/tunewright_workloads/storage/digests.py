"""Digests of files, read with a small buffer."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

_BUFFER = 4 << 20
_SAMPLE = 4096


def sha256(path: Path) -> str:
    """Lower-case hex sha256 of a file's content."""
    with path.open("rb", buffering=0) as file:
        state, buffer = hashlib.sha256(), bytearray(_BUFFER)
        view = memoryview(buffer)
        while count := file.readinto(view):
            state.update(view[:count])
    return state.hexdigest()


def weights(directory: Path) -> list[Path]:
    """The safetensors files that make up a Hugging Face checkpoint, sorted by name.

    Those that the index names where there is one, else `model.safetensors`, else every
    `*.safetensors` that is no adapter. Empty when there are none.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({directory / name for name in names})
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    return sorted(p for p in directory.glob("*.safetensors") if not p.name.startswith("adapter_"))


def fingerprint(directory: Path) -> str:
    """What tells one base checkpoint from another without reading all of it.

    sha256 over each weight file's name, size, header (every tensor's name, dtype, shape and place)
    and the first 4 KiB of every tensor. Two trainings of one architecture differ in every tensor, so
    they differ here; a damaged byte in the middle of a tensor does not show. Reads about 4 MB of a
    31B checkpoint. Train writes it into `state.base_digest`, merge compares it.
    """
    state = hashlib.sha256()
    for path in weights(directory):
        with path.open("rb", buffering=0) as file:
            number = file.fileno()
            (length,) = struct.unpack("<Q", os.pread(number, 8, 0))
            header = os.pread(number, length, 8)
            state.update(json.dumps([path.name, os.fstat(number).st_size]).encode() + header)
            for name, tensor in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    state.update(os.pread(number, min(_SAMPLE, end - begin), 8 + length + begin))
    return state.hexdigest()
