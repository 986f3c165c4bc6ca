"""Serving: an OpenAI-compatible endpoint over a merged model, and the gate that stands before it.

`python -m tunewright_workloads.serve --config FILE` runs one of two engines: `jax`, a small engine
for laptops, or `vllm`, the real one with the arguments of `contract.engine`.
"""
