"""The arrows between packages, as the design draws them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_import_rules_hold():
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def loaded(code: str) -> set[str]:
    """Top-level modules in memory after `code` ran in a fresh interpreter."""
    script = f"{code}\nimport sys; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(out.stdout.splitlines()[-1].split())


HEAVY = {"jax", "torch", "flax", "tunix", "transformers", "numpy", "kopf", "kubernetes"}


@pytest.mark.parametrize(
    "code",
    [
        "import tunewright_workloads.contract.configs, tunewright_workloads.contract.accelerators",
        "import tunewright_operator.cli",
        "import tunewright_operator.api, tunewright_operator.plan",
    ],
)
def test_what_a_user_waits_for_first_imports_nothing_heavy(code):
    assert not loaded(code) & HEAVY


@pytest.mark.parametrize("package", ["tunewright_operator.reconcile", "tunewright_operator.observe"])
def test_the_operator_never_loads_a_training_framework(package):
    assert not loaded(f"import {package}") & {"jax", "torch", "flax", "tunix", "transformers"}
