"""The tensors of a Hugging Face directory: which there are, and slices of them read when asked for. No JAX."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy bfloat16, which safetensors asks for by name)
from safetensors import SafetensorError, safe_open

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.gemma.names import Source

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = ("F32", "BF16", "F16", "F64")


@dataclass
class Checkpoint:
    """An open checkpoint. Files are memory-mapped: what is not sliced is not read.

    files:  tensor name -> file name.
    shapes: tensor name -> shape, in the order of the files.
    dtypes: tensor name -> safetensors' name of the dtype (F32, BF16, ...).
    """

    directory: Path
    files: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    _open: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, directory: Path | str) -> Checkpoint:
        """Reads the headers of every safetensors file. Raises UserError naming broken or missing ones."""
        checkpoint = cls(Path(directory))
        listed = _listed(checkpoint.directory)
        faults: list[Fault] = []
        for name in sorted(set(listed.values())) or _found(checkpoint.directory):
            path = checkpoint.directory / name
            try:
                handle = safe_open(path, "numpy")
                checkpoint._open[name] = handle
            except (OSError, SafetensorError) as error:
                rule = "is named by the index and missing" if not path.exists() else "is not readable"
                faults.append(Fault(str(path), f"{rule}: {error}", None, "Download the checkpoint again."))
                continue
            for tensor in handle.keys():  # noqa: SIM118 (not a mapping)
                view = handle.get_slice(tensor)
                checkpoint.files[tensor] = name
                checkpoint.shapes[tensor] = tuple(view.get_shape())
                checkpoint.dtypes[tensor] = view.get_dtype()
        lost = [name for name in listed if name not in checkpoint.files]
        if lost and not faults:
            faults = [
                Fault(f"{checkpoint.directory / listed[name]}: {name}", "is named by the index and missing")
                for name in lost[:20]
            ]
        if faults:
            raise UserError(faults)
        return checkpoint

    def must_be(self, allowed: tuple[str, ...], tensors: list[str]) -> None:
        """Raises UserError naming the first of `tensors` whose dtype is none of `allowed`."""
        for name in tensors:
            if self.dtypes[name] not in allowed:
                place = f"{self.directory / self.files[name]}: {name}"
                fix = "Quantized checkpoints cannot be trained or merged."
                raise UserError(Fault(place, f"must be one of {', '.join(allowed)}", self.dtypes[name], fix))

    def source(self, name: str) -> Source:
        """A tensor that is read as it is sliced."""
        handle = self._open[self.files[name]]
        # Scalars have nothing to slice.
        return handle.get_slice(name) if self.shapes[name] else handle.get_tensor(name)


def _listed(directory: Path) -> dict[str, str]:
    path = directory / INDEX
    if not path.exists():
        return {}
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(Fault(str(path), f"is not an index of safetensors files: {error!r}")) from None
    if not isinstance(index, dict):
        raise UserError(Fault(f"{path}: weight_map", "must be an object", show(index)))
    wrong = [
        Fault(f"{path}: weight_map", "must map tensor names to file names beside it", show({name: file}))
        for name, file in index.items()
        if not isinstance(file, str) or Path(file).name != file
    ]
    if wrong:
        raise UserError(wrong)
    return index


def _found(directory: Path) -> list[str]:
    if (directory / SINGLE).exists():
        return [SINGLE]
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        rule = "holds no safetensors" if directory.is_dir() else "is not a directory"
        raise UserError(
            Fault(str(directory), rule, None, f"A checkpoint has {SINGLE}, or {INDEX} and its files.")
        )
    return names
