"""Meshes are chosen to fit the model and the batch, or refused with the axis and its numbers."""

from __future__ import annotations

import pytest

from support.rows import arch
from tunewright_workloads.contract.configs import MeshConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.train import mesh


def config(**more: int) -> MeshConfig:
    return MeshConfig(accelerator="v5p", **more)


@pytest.mark.parametrize(
    ("given", "devices", "rows", "expected"),
    [
        ({}, 4, 8, (4, 1)),
        ({}, 4, 2, (2, 2)),
        ({}, 4, 1, (1, 4)),
        ({}, 1, 3, (1, 1)),
        ({"tp": 2}, 8, 4, (4, 2)),
        ({"fsdp": 2}, 8, 4, (2, 4)),
        ({"fsdp": 8, "tp": 1}, 8, 16, (8, 1)),
    ],
)
def test_a_mesh_is_chosen(given: dict[str, int], devices: int, rows: int, expected: tuple[int, int]) -> None:
    assert mesh.choose(config(**given), arch(), devices, rows) == expected


@pytest.mark.parametrize(
    ("given", "devices", "rows", "says"),
    [
        ({"fsdp": 2, "tp": 4}, 4, 8, "must be the number of devices, 4 (got 2 * 4 = 8)"),
        ({"tp": 3}, 8, 8, "mesh.tp: must divide the number of devices, 8"),
        ({"tp": 8}, 8, 8, "mesh.tp: must divide global key/value heads, 4 (got 8)"),
        ({"fsdp": 4}, 4, 6, "mesh.fsdp: must divide the rows computed at a time, 6 (got 4)"),
        ({}, 8, 1, "No mesh of 8 devices divides this model and batch"),
    ],
)
def test_what_does_not_divide_is_refused_with_axis_and_numbers(
    given: dict[str, int], devices: int, rows: int, says: str
) -> None:
    with pytest.raises(UserError) as error:
        mesh.choose(config(**given), arch(), devices, rows)
    assert says in error.value.text()
