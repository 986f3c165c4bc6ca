"""AdamW with warm-up and decay; the same curve as the schedules of transformers, so that runs compare."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from tunewright_workloads.contract.configs import Schedule


def schedule(config: Schedule, steps: int) -> optax.Schedule:
    """Learning rate by step (from 0): linear from 0 over the warm-up, then to 0 at `steps`."""
    peak, warmup = config.learning_rate, config.warmup_steps
    rest = max(1, steps - warmup)

    def rate(count: jnp.ndarray) -> jnp.ndarray:
        done = jnp.clip((count - warmup) / rest, 0.0, 1.0)
        decay = {
            "cosine": 0.5 * (1 + jnp.cos(jnp.pi * done)),
            "linear": 1 - done,
            "constant": jnp.ones_like(done),
        }[config.schedule]
        return peak * jnp.where(count < warmup, count / max(1, warmup), decay)

    return rate


def make(config: Schedule, steps: int) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW. Parameters and both moments are float32."""
    clip = (
        optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    )
    return optax.chain(
        clip,
        optax.adamw(
            schedule(config, steps), b1=0.9, b2=0.999, eps=1e-8, weight_decay=config.weight_decay,
            mu_dtype=jnp.float32,
        ),
    )  # fmt: skip
