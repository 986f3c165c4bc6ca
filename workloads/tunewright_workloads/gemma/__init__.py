"""Gemma 4 on Tunix: reading checkpoints, their names, adapters, and the training program.

`architecture`, `names` and `tiny` import no JAX, so that the merge can use them; `load`, `lora`
and `program` do.
"""

from tunewright_workloads.gemma import lean

lean.install()
