"""What a finished merge says of itself to whoever watches: the digests that status shows."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

from support import merging
from tunewright_workloads.contract import progress
from tunewright_workloads.merge import publish


def test_a_merge_ends_with_the_digest_of_its_manifest_also_when_it_was_done_before(
    dense: SimpleNamespace, tmp_path: Path
) -> None:
    said = []
    for run in ("first", "second"):
        file = tmp_path / f"{run}.json"
        config = merging.config(
            dense.base, dense.adapter, tmp_path / "out", tmp_path / run, dtype="keep", progress=str(file)
        )
        manifest = publish.merge(config)
        record = progress.read(file)
        assert record is not None
        assert record.done
        said.append(record.artifacts)
    digest = hashlib.sha256((tmp_path / "out/tunewright.json").read_bytes()).hexdigest()
    assert said[0] == said[1]
    assert said[0] == {
        "merged": digest,
        "base": manifest.base.digest,
        "adapter": manifest.adapter.digest,
        **({"dataset": manifest.dataset_digest} if manifest.dataset_digest else {}),
    }
