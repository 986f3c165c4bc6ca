"""What a merge publishes, against the plain computation of the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import merging
from tunewright_workloads.merge import publish


@pytest.mark.parametrize("variant", ["dense", "ple"])
@pytest.mark.parametrize("layout", [None, 200_000])
def test_every_changed_weight_is_base_plus_scaled_delta_and_every_other_is_the_base(
    variant: str, layout: int | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: SimpleNamespace = request.getfixturevalue(variant)
    config = merging.config(
        made.base, made.adapter, tmp_path / "out", tmp_path / "work", dtype="keep", max_shard_size=layout
    )
    manifest = publish.merge(config)
    got = merging.tensors(tmp_path / "out")
    want: dict[str, Any] = merging.expected(made.base, made.flat, 2.0, None)
    assert got.keys() == want.keys()
    base = merging.tensors(made.base)
    changed = 0
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(
            got[name].view(np.uint8) if got[name].shape else got[name],
            array.view(np.uint8) if array.shape else array,
            err_msg=name,
        )
        changed += not np.array_equal(array, base[name])
    assert changed >= manifest.adapter.modules > 0
