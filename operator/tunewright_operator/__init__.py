"""The control plane: resources, plans, reconciliation and the CLI. No JAX, no PyTorch."""
