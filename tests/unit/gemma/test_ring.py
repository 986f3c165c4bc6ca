"""The ring computes what einsum computes, forward and backward, on four emulated devices."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import numpy as np
import pytest

from tunewright_workloads.gemma import ring

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tunewright_workloads.gemma import ring

mesh = Mesh(np.array(jax.devices()).reshape(4, 1), ("fsdp", "tp"))
assert ring.fits(mesh)
rng = np.random.default_rng(0)
# The natural order, and the one of a 2 x 2 square.
for order in ((0, 1, 2, 3), (0, 1, 3, 2)):
    ring.cycle = lambda devices: order
    for formula, x, w, axis in (
        ("btd,df->btf", (4, 6, 8), (8, 12), 0),
        ("btf,fd->btd", (4, 6, 12), (12, 8), 1),
        ("btd,ndh->bnth", (4, 6, 8), (3, 8, 5), 1),
        ("bnth,nhd->btd", (4, 3, 6, 5), (3, 5, 8), 2),
    ):
        x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in (x, w))
        spec = [None] * w.ndim
        spec[axis] = "fsdp"
        x_, w_ = jax.device_put(x, NamedSharding(mesh, P("fsdp"))), jax.device_put(w, NamedSharding(mesh, P(*spec)))
        run = jax.jit(jax.value_and_grad(lambda x: (jnp.sin(ring.matmul(formula, x, w_, mesh))).sum()))
        want = jax.value_and_grad(lambda x: jnp.sin(jnp.einsum(formula, x, w)).sum())(x)
        text = run.lower(x_).compile().as_text()
        assert "all-gather" not in text and "collective-permute" in text, formula
        for a, b in zip(jax.tree.leaves(run(x_)), jax.tree.leaves(want)):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=formula)
print("equal")
"""


def test_the_ring_equals_einsum_and_gathers_nothing():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300)
    assert out.stdout.strip() == "equal", out.stderr[-3000:]


def chips(*coords):
    return [types.SimpleNamespace(coords=c) for c in coords]


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 2, 2), (2, 4, 1), (4, 4, 1)])
def test_the_ring_goes_from_neighbour_to_neighbour(shape):
    devices = chips(*((x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])))
    order = ring.cycle(devices)
    assert sorted(order) == list(range(len(devices)))
    for a, b in zip(order, (*order[1:], order[0]), strict=True):
        assert np.abs(np.subtract(devices[a].coords, devices[b].coords)).sum() == 1


def test_devices_without_coordinates_stay_in_their_order():
    assert ring.cycle([object()] * 4) == (0, 1, 2, 3)


@pytest.mark.parametrize("formula", ["btf,fg->btg", "tbd,df->tbf", "btd,dd->btd"])
def test_what_is_no_ring_is_refused(formula):
    with pytest.raises(ValueError, match="no formula of a ring"):
        ring._split(formula, None, None, None)
