"""LoRA on Tunix's Gemma 4 by Qwix: W + alpha/rank * A B on the asked projections, the base frozen.

Adapters are float32 whatever the base is: in bfloat16 a step of a usual learning rate is lost in
rounding, in the adapter as in Adam's moments. B is zero, so that training starts at the base model;
A is he-uniform from the seed and the module's path, the same on every mesh.

Under a bfloat16 base, cast the adapters to the compute dtype inside the loss (gradients stay float32):
Tunix's modules would otherwise promote every activation to float32.

Dropout is off until `dropout` turns it on, and off again after `dropout(model, None)`: evaluation
is deterministic.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from qwix._src import qconfig
from qwix._src.utils import flax_util
from tunix.models.gemma4 import model as tunix

from tunewright_workloads.contract.configs import AdapterConfig, Target
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.gemma.load import dotted
from tunewright_workloads.gemma.start import start

MODULES: dict[Target, tuple[str, ...]] = {
    "q_proj": ("q_einsum",),
    "k_proj": ("kv_einsum", "k_einsum"),
    "v_proj": ("kv_einsum", "k_einsum"),
    "o_proj": ("attn_vec_einsum",),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
"""Tunix's modules of each target. Global layers of some models project K and V with one `k_einsum`."""

_IN, _OUT = ("fsdp", None), (None, "fsdp")
SPECS: dict[str, tuple[PartitionSpec, PartitionSpec]] = {
    "q_einsum": (PartitionSpec(*_IN), PartitionSpec(None, "tp", None)),
    "k_einsum": (PartitionSpec(*_IN), PartitionSpec(None, "tp", None)),
    "kv_einsum": (PartitionSpec(*_IN), PartitionSpec(None, None, "tp", None)),
    "attn_vec_einsum": (PartitionSpec("tp", None, None), PartitionSpec(*_OUT)),
    "gate_proj": (PartitionSpec(*_IN), PartitionSpec(None, "tp")),
    "up_proj": (PartitionSpec(*_IN), PartitionSpec(None, "tp")),
    "down_proj": (PartitionSpec("tp", None), PartitionSpec(*_OUT)),
}
"""How A and B are laid out: the base's axes, and the rank never split (Qwix's guess splits it wrongly)."""


class Provider(qwix.LoraProvider):
    """Qwix's, with dropout only while the module has been given random numbers."""

    def _get_current_rule_and_op_id(
        self, op_name: str, *, only_rule: bool = False, repeated_call: bool = False
    ) -> tuple[qconfig.QuantizationRule | None, str | None]:
        rule, op = super()._get_current_rule_and_op_id(
            op_name, only_rule=only_rule, repeated_call=repeated_call
        )
        if isinstance(rule, qwix.LoraRule) and rule.dropout:
            module = flax_util.get_current_module()
            if getattr(module, "qwix_rngs", None) is None:
                rule = dataclasses.replace(rule, dropout=0.0)
        return rule, op


def expected(model: tunix.Gemma4, adapter: AdapterConfig) -> list[str]:
    """Paths of the modules that the asked targets name, `layers.0.attn.q_einsum`. Raises UserError.

    K and V are one projection in Tunix (and share their weight in K = V layers), so both targets
    are needed or neither.
    """
    wanted = set(adapter.targets)
    if len(wanted & {"k_proj", "v_proj"}) == 1:
        raise UserError(
            Fault(
                "adapter.targets",
                "k_proj and v_proj are one projection here: name both or neither",
                show(list(adapter.targets)),
            )
        )
    found = []
    for number, layer in enumerate(model.layers):
        for part, module in (("attn", layer.attn), ("mlp", layer.mlp)):
            names = dict.fromkeys(name for target in adapter.targets for name in MODULES[target])
            found += [f"layers.{number}.{part}.{name}" for name in names if hasattr(module, name)]
    if not found:
        raise UserError(
            Fault("adapter.targets", "name no projection of this model", show(list(adapter.targets)))
        )
    return found


def apply(model: tunix.Gemma4, adapter: AdapterConfig, *, seed: int, mesh: Mesh) -> tunix.Gemma4:
    """A model with adapters on `adapter.targets`, sharing the base's arrays with `model`.

    Qwix finds the projections by running the model; here it runs on shapes only, which costs no
    memory and works for any mesh. Raises UserError when a target matched nothing.
    """
    if adapter.quantize_base != "none":
        raise UserError(
            Fault(
                "adapter.quantizeBase",
                "cannot be used with Tunix's modules",
                show(adapter.quantize_base),
                "Set it to none.",
            )
        )
    modules = expected(model, adapter)
    kinds = sorted({path.rsplit(".", 1)[1] for path in modules})
    provider = Provider(
        [
            qwix.LoraRule(
                module_path=rf"layers/\d+/(attn|mlp)/{kind}",
                rank=adapter.rank,
                alpha=adapter.alpha,
                dropout=adapter.dropout,
            )
            for kind in kinds
        ]
    )
    config = model.config
    graph, base = nnx.split(model)

    def adapted(state: nnx.State) -> tunix.Gemma4:
        T = 2
        return qwix.apply_lora_to_model(
            nnx.merge(graph, state),
            provider,
            tokens=jnp.ones((1, T), jnp.int32),
            positions=jnp.ones((1, T), jnp.int32),
            cache=None,
            attention_mask=jnp.ones((1, 1, T), bool),
            rngs=nnx.Rngs(0),
        )

    # Under remat Qwix cannot reach its random numbers; the configuration is one object that all modules share.
    before, config.remat_config = config.remat_config, tunix.RematConfig.NONE
    try:
        shapes = nnx.eval_shape(adapted, base)
    finally:
        config.remat_config = before
    unused = [rule.module_path for rule in provider.get_unused_rules()]
    graph, lora, *others = nnx.split(shapes, nnx.LoRAParam, ...)
    rest = others[0]
    made = {dotted(path): variable for path, variable in nnx.to_flat_state(lora)}
    have = {path.rsplit(".", 1)[0] for path in made}
    wrong = sorted(set(modules) ^ have)
    if unused or wrong:
        raise UserError(
            [Fault("adapter.targets", f"got no adapter on {path}", None, _REPORT) for path in unused + wrong]
        )
    filled = []
    for path, variable in nnx.to_flat_state(lora):
        kind, leaf = map(str, path[-2:])
        spec = SPECS[kind][leaf.endswith("_b")]
        sharding = NamedSharding(mesh, spec)
        values = initial(dotted(path), tuple(variable.get_value().shape), seed)
        value = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
        fresh = variable.replace(value)
        fresh.set_metadata(out_sharding=tuple(spec))
        filled.append((path, fresh))
    frozen = {dotted(path): variable for path, variable in nnx.to_flat_state(base)}
    kept = [(path, frozen[dotted(path)]) for path, _ in nnx.to_flat_state(rest)]
    return nnx.merge(graph, nnx.from_flat_state(filled), nnx.from_flat_state(kept))


_REPORT = "This is a mismatch of the pinned Qwix and Tunix."


def initial(path: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A fresh leaf, float32: zeros for B; `start`'s values for A."""
    if path.endswith("_lora_b"):
        return np.zeros(shape, np.float32)
    return start(path.rsplit(".", 1)[0], math.prod(shape[:-1]), shape[-1], seed).reshape(shape)


def remat(model: tunix.Gemma4, policy: Literal["none", "block", "decoder"]) -> None:
    """What Tunix's modules recompute in the backward pass. Only after `apply`."""
    model.config.remat_config = tunix.RematConfig[policy.upper()]


def dropout(model: tunix.Gemma4, rngs: nnx.Rngs | None) -> None:
    """Turns the adapters' dropout on with random numbers for the stream `dropout`, or off with None."""
    model.set_attributes(qwix_rngs=rngs)


def tree(model: tunix.Gemma4) -> dict[str, Any]:
    """The adapter's arrays as nested dicts, every key a string: {"layers": {"0": {"attn": ...}}}."""
    result: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.LoRAParam)):
        here = result
        for part in path[:-1]:
            here = here.setdefault(str(part), {})
        here[str(path[-1])] = variable.get_value()
    return result


def flatten(nested: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(path, array) of each leaf of a nested dict, `layers.0.attn.q_einsum.w_lora_a`."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def restore(
    model: tunix.Gemma4, nested: Mapping[str, Any], place: str = "checkpoint.adapter"
) -> tunix.Gemma4:
    """Puts a tree's arrays into the model's adapters, each in its own sharding; returns the model.

    Raises UserError naming every missing, unexpected and mis-shaped leaf; the model is then unchanged.
    """
    given = dict(flatten(nested))
    state = nnx.state(model, nnx.LoRAParam)
    own = {dotted(path): variable for path, variable in nnx.to_flat_state(state)}
    faults = [Fault(f"{place}: {path}", "is missing") for path in own if path not in given]
    faults += [
        Fault(f"{place}: {path}", "is not an adapter of this model") for path in given if path not in own
    ]
    for path in own.keys() & given.keys():
        want, got = tuple(own[path].get_value().shape), tuple(given[path].shape)
        if want != got:
            faults.append(Fault(f"{place}: {path}", f"must have shape {list(want)}", str(list(got))))
    if faults:
        raise UserError(sorted(faults, key=lambda fault: [_number(p) for p in fault.place.split(".")])[:20])
    placed: list[tuple[Any, Any]] = []
    for keys, variable in nnx.to_flat_state(state):
        old = variable.get_value()
        new = jax.device_put(jnp.asarray(given[dotted(keys)], old.dtype), old.sharding)
        placed.append((keys, variable.replace(new)))
    nnx.update(model, nnx.from_flat_state(placed))
    return model


def _number(part: str) -> tuple[int, str]:
    return (int(part), "") if re.fullmatch(r"\d+", part) else (-1, part)
