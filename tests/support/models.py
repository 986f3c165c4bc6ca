"""Published models as small as can be, for tests of whoever reads a manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tunewright_workloads.contract import lineage


def manifest(files: Mapping[str, bytes]) -> str:
    """The text of `tunewright.json` for a model of these files."""
    record = lineage.Manifest(
        base=lineage.Base(source="file:///base", digest="0" * 64),
        adapter=lineage.Adapter(
            source="file:///adapter", step=1, digest="0" * 64, rank=1, alpha=1.0, modules=1
        ),
        dtype="bfloat16",
        files={
            name: lineage.FileDigest(size=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        },
    )
    return record.model_dump_json(by_alias=True)
