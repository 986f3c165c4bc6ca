"""The attention kernels' work, which the compiler does not count."""

from __future__ import annotations

import pytest

from tunewright_workloads.preflight import aot, hlo, shapes

ARCH = shapes.architecture("gemma-4-31b")


@pytest.mark.parametrize(
    ("length", "window", "size", "blocks"),
    [(2048, None, 1024, 3), (4096, None, 1024, 10), (4096, 1024, 512, 8 + 7 + 6), (512, 1024, 512, 1)],
)
def test_blocks_that_a_mask_leaves_are_counted(length, window, size, blocks):
    assert aot.visited(length, window, size) == blocks * size * size


@pytest.mark.parametrize(
    ("name", "outputs", "matmuls", "heads"),
    [
        ("splash_mha_fwd_segmented_residuals", ((512, 128), (32, 4096, 256), (32, 4096, 128)), 2, 32),
        ("splash_mha_dq_segmented_no_residuals", ((512, 256), (1, 32, 4096, 256)), 3, 32),
        ("splash_mha_dkv_segmented_no_residuals", ((512, 256), (16, 4096, 256), (16, 4096, 256)), 4, 32),
    ],
)
def test_each_kernel_has_its_matmuls_over_all_query_heads(name, outputs, matmuls, heads):
    found = aot.attention_flops(hlo.Kernel(name, 1, outputs), ARCH, 4096)
    assert found == matmuls * 2 * heads * aot.visited(4096, 1024, 512) * 256


def test_global_layers_see_no_window():
    kernel = hlo.Kernel("splash_mha_dkv_segmented_no_residuals", 1, ((4, 4096, 512), (4, 4096, 512)))
    assert aot.attention_flops(kernel, ARCH, 4096) == 4 * 2 * 32 * aot.visited(4096, None, 1024) * 512


@pytest.mark.parametrize(
    "kernel", [hlo.Kernel("ragged_dot", 1, ((4, 8, 256),)), hlo.Kernel("splash_mha_fwd", 1, ((4, 4),))]
)
def test_a_kernel_that_nobody_knows_is_no_free_kernel(kernel):
    with pytest.raises(ValueError, match="kernel"):
        aot.attention_flops(kernel, ARCH, 4096)
