"""The GPU baseline: the same fine-tuning in PyTorch, TRL, PEFT and FSDP.

It reads the same configuration, trains on the same rows in the same order with the same adapter,
and writes the same records, so that `tunewright compare` finds nothing to refuse. Tokens, masks and
packing come from `data`; nothing of TRL's own preprocessing runs.
"""
