"""How a scheduled program is read, on small ones written by hand."""

from __future__ import annotations

import pytest

from tunewright_workloads.preflight import hlo

RATES = hlo.Rates(clock=1e9, hbm=1e12, link=1e9, links=2)


def module(entry: str, rest: str = "") -> str:
    return f"HloModule jit_step, is_scheduled=true\n{rest}\nENTRY %main (p: f32[]) -> f32[] {{\n{entry}\n}}\n"


def cycles(n: int) -> str:
    return f', backend_config={{"estimated_cycles":"{n}"}}'


MATMUL = """%body_matmul (a: bf16[8,8], b: bf16[8,8]) -> bf16[8,8] {
  %a = bf16[8,8]{1,0} parameter(0)
  %b = bf16[8,8]{1,0} parameter(1)
  ROOT %c = bf16[8,8]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}
"""


def fusion(name: str, n: int, calls: str = "body_matmul") -> str:
    return f"  %{name} = bf16[8,8]{{1,0}} fusion(%x, %y), kind=kOutput, calls=%{calls}{cycles(n)}"


def test_estimated_cycles_become_seconds_and_matmuls_are_told_apart():
    text = module(fusion("m", 1000) + f"\n  %e = bf16[8,8]{{1,0}} add(%m, %m){cycles(500)}", MATMUL)
    cost = hlo.read(text, RATES)
    assert cost.matmul == pytest.approx(1e-6) and cost.other == pytest.approx(0.5e-6)


def test_what_has_no_estimate_takes_its_bytes_and_vmem_is_free():
    entry = "\n".join([
        "  %x = f32[1000]{0} parameter(0)",
        "  %v = f32[1000]{0:T(8)S(1)} parameter(1)",
        "  %s = f32[1000]{0} add(%x, %v)",
    ])  # fmt: skip
    assert hlo.read(module(entry), RATES).other == pytest.approx(8000 / 1e12)


def test_an_update_of_a_stack_costs_the_slice_and_not_the_stack():
    entry = "\n".join([
        "  %stack = f32[1000,1000]{1,0} parameter(0)",
        "  %new = f32[1,1000]{1,0} parameter(1)",
        "  %i = s32[] parameter(2)",
        "  %out = f32[1000,1000]{1,0} dynamic-update-slice(%stack, %new, %i, %i)",
    ])  # fmt: skip
    assert hlo.read(module(entry), RATES).other == pytest.approx(8000 / 1e12, rel=0.01)


def test_a_loop_counts_as_often_as_it_runs_and_loops_multiply():
    rest = MATMUL + "\n".join([
        "%inner_cond (s: s32[]) -> pred[] {", "  %n = s32[]{:T(128)} constant(3)", "}",
        "%inner (s: s32[]) -> s32[] {", fusion("m", 1000), "}",
        "%outer_cond (s: s32[]) -> pred[] {", "  %n = s32[] constant(10)", "}",
        "%outer (s: s32[]) -> s32[] {",
        "  %w = s32[] while(%s), condition=%inner_cond, body=%inner", "}", "",
    ])  # fmt: skip
    text = module("  %w = s32[] while(%p), condition=%outer_cond, body=%outer", rest)
    assert hlo.read(text, RATES).matmul == pytest.approx(30e-6)


GATHER = "  %g = bf16[4000]{0} all-gather(%x), replica_groups=[1,4]<=[4], dimensions={0}"


def test_a_gather_without_a_start_stands_exposed():
    cost = hlo.read(module("  %x = bf16[1000]{0} parameter(0)\n" + GATHER), RATES)
    assert cost.exposed == cost.network == pytest.approx(0.75 * 8000 / 2e9)
    assert cost.traffic == {"all-gather": (1, pytest.approx(6000))}


def test_an_all_reduce_goes_round_twice():
    text = module(
        "  %x = f32[1000]{0} parameter(0)\n  %r = f32[1000]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%add"
    )
    assert hlo.read(text, RATES).exposed == pytest.approx(2 * 0.75 * 4000 / 2e9)


def test_an_all_reduce_of_which_each_device_keeps_a_slice_goes_round_once():
    fused = """%scatter (x: f32[1000]) -> f32[250] {
  %x = f32[1000]{0} parameter(0)
  %r = f32[1000]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %s = f32[250]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={250}
}
"""
    entry = "  %x = f32[1000]{0} parameter(0)\n  %f = f32[250]{0} fusion(%x), kind=kCustom, calls=%scatter"
    cost = hlo.read(module(entry, fused), RATES)
    assert cost.exposed == pytest.approx(0.75 * 4000 / 2e9) and list(cost.traffic) == ["reduce-scatter"]


def permutes(work: int, count: int = 1) -> str:
    """`count` permutes of 1,000 bytes (1,000 ns each) begin, then a matmul of `work` ns, then they end."""
    lines = ["  %w = s8[1000]{0} parameter(0)"]
    lines += [
        f"  %s{i} = (s8[1000]{{0}}, s8[1000]{{0}}) collective-permute-start(%w), source_target_pairs={{{{0,1}},{{1,0}}}}"
        for i in range(count)
    ]
    lines.append(fusion("m", work))
    lines += [f"  %d{i} = s8[1000]{{0}} collective-permute-done(%s{i})" for i in range(count)]
    return module("\n".join(lines), MATMUL)


@pytest.mark.parametrize(
    ("work", "count", "exposed"), [(1500, 1, 0), (1000, 1, 0), (600, 1, 400), (1500, 2, 500), (0, 3, 3000)]
)
def test_a_transfer_is_hidden_as_far_as_work_is_scheduled_beside_it(work, count, exposed):
    cost = hlo.read(permutes(work, count), RATES)
    assert cost.exposed == pytest.approx(exposed * 1e-9)
    assert cost.network == pytest.approx(count * 1e-6)


def test_kernels_are_listed_and_hide_transfers_by_the_time_that_they_are_given():
    text = permutes(0).replace(
        fusion("m", 0),
        '  %k = (f32[8,128]{1,0}, bf16[4,64,32]{2,1,0}) custom-call(%q), custom_call_target="tpu_custom_call", '
        'metadata={op_name="jit(step)/splash_mha_fwd"}',
    )
    cost = hlo.read(text, RATES, lambda kernel: 700e-9)
    assert [(k.name, k.calls, k.outputs) for k in cost.kernels] == [
        ("jit(step)/splash_mha_fwd", 1, ((8, 128), (4, 64, 32)))
    ]
    assert cost.exposed == pytest.approx(300e-9) and cost.compute == 0


def test_a_gather_that_the_compiler_fused_with_a_matmul_is_hidden():
    fused = """%both (x: bf16[1000]) -> bf16[8,8] {
  %x = bf16[1000]{0} parameter(0)
  %g = bf16[4000]{0} all-gather(%x), replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %c = bf16[8,8]{1,0} convolution(%g, %g), dim_labels=bf_io->bf
}
"""
    cost = hlo.read(module(fusion("f", 100, "both"), fused), RATES)
    assert cost.exposed == 0 and cost.network > 0 and cost.matmul == pytest.approx(100e-9)


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no entry computation"):
        hlo.read("HloModule empty\n", RATES)
