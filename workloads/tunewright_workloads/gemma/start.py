"""Where an adapter starts: the same numbers in every training program, on every machine and mesh."""

from __future__ import annotations

import math
import zlib

import numpy as np


def start(path: str, inputs: int, rank: int, seed: int) -> np.ndarray:
    """A's first values: He-uniform over all input axes, float32 (inputs, rank); B starts as zeros.

    path: the module's path in Tunix, "layers.0.attn.q_einsum". Follows from seed and path alone, so
    that a comparison of the JAX and the PyTorch program compares programs and not luck.
    """
    bound = math.sqrt(6.0 / inputs)
    rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(path.encode())]))
    values = rng.random((inputs, rank), dtype=np.float32)
    values *= 2 * bound
    values -= bound
    return values
