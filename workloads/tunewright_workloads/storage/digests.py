"""Digests of files, read with a small buffer."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import google_crc32c

from tunewright_workloads.contract.faults import Fault, UserError

_BUFFER = 8 << 20
_SAMPLE = 4096
_AGAIN = "Download the checkpoint again."


def sha256(path: Path) -> str:
    """Lower-case hex sha256 of a file's content."""
    with path.open("rb", buffering=0) as file:
        state, buffer = hashlib.sha256(), bytearray(_BUFFER)
        view = memoryview(buffer)
        while count := file.readinto(view):
            state.update(view[:count])
    return state.hexdigest()


def crc32c(data: Path | bytes) -> str:
    """As Cloud Storage writes it: base64 of the big-endian crc32c. Of a file's content, or of bytes."""
    if isinstance(data, bytes):
        return crc32c_text(google_crc32c.value(data))
    value = 0
    with data.open("rb", buffering=0) as file:
        while block := file.read(_BUFFER):
            value = google_crc32c.extend(value, block)
    return crc32c_text(value)


def crc32c_text(value: int) -> str:
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def weights(directory: Path) -> list[Path]:
    """The safetensors files that make up a Hugging Face checkpoint, sorted by name.

    Those that the index names where there is one, else `model.safetensors`, else every
    `*.safetensors` that is no adapter. Empty when there are none. Raises UserError for an index that
    is none.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return sorted({directory / name for name in names})
        except (ValueError, KeyError, TypeError, AttributeError):
            rule = "is no index: a JSON object with weight_map, tensor names to file names, is needed"
            raise UserError(Fault(str(index), rule, None, _AGAIN)) from None
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    return sorted(p for p in directory.glob("*.safetensors") if not p.name.startswith("adapter_"))


Places = list[tuple[int, int]]
"""(offset, size) of parts of a file."""


class Fingerprint:
    """What tells one base checkpoint from another without reading all of it.

    sha256 over each weight file's name, size, header (every tensor's name, dtype, shape and place)
    and the first 4 KiB of every tensor. Two trainings of one architecture differ in every tensor, so
    they differ here; a damaged byte in the middle of a tensor does not show.
    """

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def add(
        self, name: str, size: int, header: bytes, read: Callable[[str, Places], Iterable[bytes]]
    ) -> None:
        """Adds a file, in the order of names. `header` is its JSON, `read` gives parts of it."""
        self._state.update(json.dumps([name, size]).encode() + header)
        spans = [
            item["data_offsets"] for key, item in sorted(json.loads(header).items()) if key != "__metadata__"
        ]
        start = 8 + len(header)
        for part in read(name, [(start + begin, min(_SAMPLE, end - begin)) for begin, end in spans]):
            self._state.update(part)

    def text(self) -> str:
        return self._state.hexdigest()


def fingerprint(directory: Path) -> str:
    """The `Fingerprint` of a local checkpoint; reads about 4 MB of a 31B one.

    Train writes it into its checkpoints' state as `base_digest`; merge refuses another base. Raises
    UserError with every file that is missing or no safetensors file.
    """
    state = Fingerprint()
    faults = []
    for path in weights(directory):
        try:
            with path.open("rb", buffering=0) as file:
                _add(state, path.name, file.fileno())
        except FileNotFoundError:
            faults.append(Fault(str(path), "is named by the index and missing", None, _AGAIN))
        except OSError as error:
            faults.append(Fault(str(path), f"cannot be read: {error.strerror or error}"))
        except (ValueError, KeyError, TypeError, AttributeError, struct.error):
            rule = "is no safetensors file, or is damaged or cut off"
            faults.append(Fault(str(path), rule, None, _AGAIN))
    if faults:
        raise UserError(faults)
    return state.text()


def _add(state: Fingerprint, name: str, number: int) -> None:
    size = os.fstat(number).st_size
    (length,) = struct.unpack("<Q", os.pread(number, 8, 0))
    if length > size - 8:
        raise ValueError("the header is longer than the file")

    def read(_: str, places: Places) -> Iterable[bytes]:
        return (os.pread(number, count, at) for at, count in places)

    state.add(name, size, os.pread(number, length, 8), read)
