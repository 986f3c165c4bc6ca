"""The training step of MaxText, tuned by hand, by the TPU's own compiler: bench/aot.py's strongest peer.

    make install-maxtext
    PYTHONPATH=workloads .venv-maxtext/bin/python bench/aot_maxtext.py --text FILE [--layers N]

MaxText 0.2.5 with its own compiler and JAX, Gemma 4 31B, LoRA r=64 on all seven projections, bfloat16, AdamW,
8 packed rows of 3072 tokens, mesh fsdp 4 on v5p 2x2x1. Step, loss, attention, optimizer and shardings are
MaxText's. Tuned means: 96 MiB of scoped VMEM (its own setting for dense models on v5p), all activations kept
but q, k and v, the vocabulary in 8 tiles, layers not scanned (its scanned ones take no LoRA for Gemma 4).

Its own `train_compile` never adds the adapters, only its trainer for fine-tuning does: here they are added as
there. Writes the scheduled program to --text; the last line is JSON: bytes of memory, and seconds of compiling.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROWS, LENGTH = 8, 3072
SETTINGS: dict[str, Any] = {
    "run_name": "aot",
    "model_name": "gemma4-31b",
    "compile_topology": "v5p-8",
    "compile_topology_num_slices": 1,
    "compile_xla_flags": "--xla_tpu_scoped_vmem_limit_kib=98304",
    "skip_jax_distributed_system": True,
    "enable_checkpointing": False,
    "use_sft": True,
    "packing": True,
    "weight_dtype": "bfloat16",
    "dtype": "bfloat16",
    "opt_type": "adamw",
    "attention": "autoselected",
    "per_device_batch_size": ROWS // 4,
    "max_target_length": LENGTH,
    "scan_layers": False,
    "remat_policy": "custom",
    "context": "device",
    "out_proj": "device",
    "mlpwi_0": "device",
    "mlpwi_1": "device",
    "mlpwo": "device",
    "num_vocab_tiling": 8,
    "vocab_tiling_ag_once": True,
    "lora.enable_lora": True,
    "lora.lora_rank": 64,
    "lora.lora_alpha": 64.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", metavar="FILE", required=True)
    parser.add_argument("--layers", type=int, help="of the model: a quick look")
    args = parser.parse_args()
    from tunewright_workloads.preflight import compiler

    devices = compiler.devices("v5p", "2x2x1")  # waits for its turn; MaxText asks for the same slice again
    assert len(devices) == 4
    began = time.monotonic()
    compiled = step(args.layers)
    seconds = time.monotonic() - began
    Path(args.text).write_text(compiled.as_text())
    found = compiled.memory_analysis()
    # Of this compiler's figures the peak is the one that adds up; it counts the arguments.
    record = {
        "arguments": found.argument_size_in_bytes,
        "outputs": 0,
        "temporaries": found.peak_memory_in_bytes - found.argument_size_in_bytes,
        "code": found.generated_code_size_in_bytes,
    }
    print(json.dumps({**record, "seconds": seconds, "kept": "all but q, k, v"}))
    return 0


def step(layers: int | None) -> Any:
    """The compiled step: `train_compile.main` of MaxText, with adapters."""
    import jax
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import lora_utils, maxtext_utils, model_creation_utils, sharding

    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    given = dict(SETTINGS)
    if layers:
        given |= {"base_num_decoder_layers": layers, "override_model_config": True}
    base = Path(pyconfig.__file__).with_name("base.yml")
    words = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in given.items()
    ]
    config = pyconfig.initialize(["aot", str(base), *words])

    plain = model_creation_utils.get_nnx_create_model_fn

    def adapted(config: Any, *rest: Any, **named: Any) -> Any:
        make = plain(config, *rest, **named)

        def model() -> Any:
            found = lora_utils.apply_lora_to_model(make(), None, config)
            nnx.pop(found, nnx.Intermediate)
            return found

        return model

    model_creation_utils.get_nnx_create_model_fn = adapted
    mesh = train_compile.get_topology_mesh(config)
    arguments, named, state, _, model = train_compile.get_shaped_inputs(mesh, config)
    parameters, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    signature = maxtext_utils.get_functional_train_with_signature(
        train.train_step,
        sharding.get_input_data_sharding(config, mesh),
        sharding.build_zero1_input_state_mesh_shardings(config, state, parameters),
        model,
        config,
        parameters,
    )
    function, ins, outs, static, donated = signature
    return train_compile.jit_and_compile(
        function, arguments, named, mesh, ins, outs, static, donated, config,
        logical_axis_rules(config.logical_axis_rules),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
