"""What the control plane and the workloads agree on.

Configurations, exit codes, progress, lineage, and the catalogs of models and accelerators.
Only pydantic and the standard library are imported here, so that the operator stays small
and a workload can refuse bad input before it pays for importing JAX.
"""
