"""One tiny base and one adapter for all of the merge's tests."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from support import merging
from tunewright_workloads.gemma import tiny


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return made(tmp_path_factory.mktemp("dense"), "dense")


@pytest.fixture(scope="session")
def ple(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return made(tmp_path_factory.mktemp("ple"), "ple")


def made(top: Path, variant: str) -> SimpleNamespace:
    base, adapter = top / "base", top / "train"
    tiny.write(base, variant=variant, multimodal=True)
    flat = merging.arrays(base)
    merging.save(adapter, base, flat)
    return SimpleNamespace(base=base, adapter=adapter, flat=flat, top=top)
