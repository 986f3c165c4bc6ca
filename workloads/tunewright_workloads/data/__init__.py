"""Datasets: formats, the chat template, tokens, the loss mask, packing and batches.

Nothing here imports JAX: a dataset is refused or accepted, and its report printed, before
anything is paid for.
"""
