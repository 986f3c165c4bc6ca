# Two commands matter: `make demo` and `make test`. Each does all of its own set-up.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install install-test install-vllm install-gpu install-tpu install-maxtext demo test test-fast test-cluster test-chaos test-vllm test-images e2e lint format crds lock clean

PYTHON ?= python3
MAXTEXT_PYTHON ?= python3.12
UV := .uv/bin/uv
export UV_PYTHON_DOWNLOADS := never
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/workloads:$(CURDIR)
PYTEST_ARGS ?=

help:  ## What there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(UV):
	@tools/bootstrap-uv .uv "$(PYTHON)"

# An environment is remade when its lock changes, and only then; uv shares the files between them.
.venv/.lock: requirements/local.txt pyproject.toml $(UV)
	@tools/environment .venv requirements/local.txt "$(PYTHON)" --editable
.venv-test/.lock: requirements/test.txt $(UV)
	@tools/environment .venv-test requirements/test.txt "$(PYTHON)"
.venv-gpu/.lock: requirements/gpu.txt $(UV)
	@tools/environment .venv-gpu requirements/gpu.txt "$(PYTHON)"
.venv-tpu/.lock: requirements/tpu.txt $(UV)
	@tools/environment .venv-tpu requirements/tpu.txt "$(PYTHON)"
.venv-maxtext/.lock: requirements/maxtext.txt $(UV)
	@tools/environment .venv-maxtext requirements/maxtext.txt "$(MAXTEXT_PYTHON)"
.venv-vllm/.lock: requirements/vllm.txt $(UV)
	@tools/environment .venv-vllm requirements/vllm.txt "$(PYTHON)"

install: .venv/.lock  ## The CLI at .venv/bin/tunewright, with JAX and without PyTorch
install-test: .venv-test/.lock  ## What the tests need: PyTorch, transformers, linters
install-vllm: .venv-vllm/.lock  ## The real vLLM on CPU, in an environment of its own
install-gpu: .venv-gpu/.lock  ## The PyTorch training program, in an environment of its own
install-maxtext: .venv-maxtext/.lock  ## The peer of bench/aot.py; needs Python 3.12 or 3.13, named by MAXTEXT_PYTHON
install-tpu: .venv-tpu/.lock  ## JAX with the TPU's compiler, to compile steps for slices that are not there

demo: install  ## Fine-tune the tiny Gemma 4, merge, serve, and ask it a question before and after
	@.venv/bin/python tools/demo.py

test: install install-test  ## The tests (vLLM's too, where it can be installed); chaos and e2e apart
	@tools/try install-vllm vLLM
	@tools/try install-tpu "The TPU's compiler"
	.venv-test/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS)

test-cluster: install-test  ## Tests against a real API server, built from Go modules on first use
	.venv-test/bin/python -m pytest tests/cluster $(PYTEST_ARGS)

test-chaos: install-test  ## The operator killed, and raced with real JobSet and Kueue: minutes
	.venv-test/bin/python -m pytest -m chaos tests/cluster $(PYTEST_ARGS)

test-vllm: install-test install-vllm  ## Rollouts to right and wrong models with the real vLLM, a CPU-minute a start: minutes
	TUNEWRIGHT_TEST_ALL=1 .venv-test/bin/python -m pytest -p no:cacheprovider -m vllm tests/pipeline --durations=15 $(PYTEST_ARGS)

e2e: install-test  ## The quickstart with kubectl on a real node on this machine, and the serve image (root, Linux)
	.venv-test/bin/python -m tests.e2e.box prepare
	.venv-test/bin/python -m pytest -p no:cacheprovider -m "e2e or images" tests/e2e -s --durations=15 $(PYTEST_ARGS)

test-images: install-test  ## Every Dockerfile built on a local base, each program started as nobody (root, Linux)
	@tools/try install-vllm vLLM
	.venv-test/bin/python -m tests.e2e.box install
	TUNEWRIGHT_TEST_ALL=1 .venv-test/bin/python -m pytest -p no:cacheprovider -m images tests/e2e --durations=5 $(PYTEST_ARGS)

test-fast: install-test  ## Unit and contract tests only
	.venv-test/bin/python -m pytest tests/unit tests/contract $(PYTEST_ARGS)

lint: install-test  ## Formatter, linter, types, import rules
	.venv-test/bin/ruff format --check .
	.venv-test/bin/ruff check .
	.venv-test/bin/mypy operator/tunewright_operator workloads/tunewright_workloads
	.venv-test/bin/lint-imports

format: install-test  ## Write the formatter's and the linter's safe changes
	.venv-test/bin/ruff format .
	.venv-test/bin/ruff check --fix .

crds: install  ## Write manifests/crds and docs/reference.md from the models
	.venv/bin/python -m tunewright_operator.api.crds --output manifests/crds
	.venv/bin/python -m tunewright_operator.api.reference --output docs/reference.md
	.venv/bin/python -m tunewright_operator.reconcile.rbac

lock: $(UV)  ## Resolve requirements/*.txt anew from pyproject.toml
	@tools/lock "$(UV)"

clean:  ## Remove environments and what runs left (not uv's cache)
	rm -rf .uv .venv .venv-test .venv-vllm .venv-gpu .venv-tpu .venv-maxtext .tunewright .pytest_cache .mypy_cache .ruff_cache
