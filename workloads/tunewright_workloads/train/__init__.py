"""Training: from a `TrainConfig` to committed adapter checkpoints and a report.

`prepare` and `output` import no JAX: bad input is refused, and a finished run recognised, first.
"""
