"""Adapter + base -> a merged, published model, in bounded memory. No JAX, no PyTorch."""
