"""What a run has published, by digest: read back from where it lies, so that the digest is of what is there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.merge.adapter import Digest
from tunewright_workloads.train.output import CHECKPOINTS, Output


def digests(output: Output, program: str, dataset: str) -> dict[str, str]:
    """`artifacts` of the progress record of a finished run: the adapter as a merge would name it, the dataset.

    Without the adapter's where it cannot be read back: what was trained is no worse for it.
    """
    found = {"dataset": dataset}
    try:
        found["adapter"] = _torch(output) if program == "torch" else _orbax(output)
    except (UserError, OSError) as error:
        print(f"the adapter's digest is left out: {error}", flush=True)
    return found


def _torch(output: Output) -> str:
    from safetensors.numpy import load_file  # the merge's own reader needs what the GPU image lacks

    found = Digest()
    for name, array in sorted(load_file(output.root / "adapter" / "adapter_model.safetensors").items()):
        found.add(name, array)
    return found.text()


def _orbax(output: Output) -> str:
    from tunewright_workloads.merge import checkpoint

    store = storage.store(str(output.uri), place="output")
    step = checkpoint.choose(store, None)
    if output.local:
        return checkpoint.digest(output.root / CHECKPOINTS / str(step))
    output.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="adapter-", dir=output.root) as work:
        return checkpoint.digest(checkpoint.fetch(store, step, Path(work)))
