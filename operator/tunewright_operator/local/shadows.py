"""Files of the user that would be imported in the place of a package.

A `numpy.py` in a folder of PYTHONPATH (`PYTHONPATH=.` is common) is what every workload would get as
numpy, and the error that follows names neither the file nor the way out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tunewright_workloads.contract.faults import Fault, UserError

_PACKAGES = (
    "click", "flax", "google", "google_crc32c", "huggingface_hub", "jax", "ml_dtypes", "numpy", "orbax",
    "pydantic", "qwix", "rich", "safetensors", "tensorstore", "tokenizers", "torch", "transformers",
    "tunix", "yaml",
)  # fmt: skip
"""What workloads import; each is a directory, so that a single file of its name is something else."""


def refuse(environ: Mapping[str, str]) -> None:
    """Raises UserError for every file on PYTHONPATH that hides a package which is needed."""
    named = environ.get("PYTHONPATH", "")
    folders = dict.fromkeys(Path(part or ".") for part in named.split(os.pathsep)) if named else {}
    faults = [
        Fault(
            "PYTHONPATH",
            f"{folder / name}.py would be imported in place of the package {name}",
            named,
            "Rename the file, or run without PYTHONPATH.",
        )
        for folder in folders
        for name in _PACKAGES
        if (folder / f"{name}.py").is_file()
    ]
    if faults:
        raise UserError(faults)
