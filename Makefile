# make test | test-cute | test-cdna | test-vllm | test-versions | check-machine | mutants | mutation | compat | test-peers | demo | example | grpo | docs | lint | gen | wheel: each prepares what it needs.
# TORCH=2.13 (default) or 2.11 picks the torch and triton pair; PYTHON=... picks the interpreter (3.11 or newer).

TORCH ?= 2.13
BASE := $(if $(filter 2.13,$(TORCH)),.venv,.venv-torch-$(TORCH))
VENV ?= $(BASE)
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PYTEST_ARGS ?=
DEMO_ARGS ?=
GRPO_ARGS ?=
COMPAT_ARGS ?=
MUTATION_ARGS ?=

PY := $(VENV)/bin/python
CONSTRAINTS := constraints/torch-$(TORCH).txt
PINS := $(CONSTRAINTS) constraints/base.txt
PYTEST := $(PY) -m pytest --durations=20
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
TYPED := $(wildcard rlk/errors.py rlk/env.py rlk/digest.py rlk/ir rlk/lang rlk/interp rlk/passes rlk/lower rlk/cache rlk/nn rlk/parallel rlk/verify)

CUTE_VERSIONS := 4.7 4.8
# What CuTe's compiler makes, and how it is called, differ by its version; wheels and dry runs hold only its name
# and its number: these are tried with the newest.
COMPILED = tests/test_cute_machine_code.py tests/test_cute_runtime.py \
	$(if $(filter $(lastword $(CUTE_VERSIONS)),$(CUTE)),tests/test_aot_cute.py tests/test_tune.py)

VERL_IMPORTS := antlr4-python3-runtime cloudpickle codetiming omegaconf orjson pyvers ray tensordict
TILELANG_TESTS := $(filter-out tests/test_tilelang_lowering.py,$(wildcard tests/test_tilelang_*.py)) tests/test_integers.py tests/test_storage_dtypes.py  # what needs TileLang and a compiler for CDNA

VLLM := 0.26.0
VLLM_ENV := RLK_VLLM=cpu RLK_REQUIRE_VLLM=1 CUDA_VISIBLE_DEVICES= TRITON_INTERPRET=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 \
	VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR HF_HUB_OFFLINE=1
VLLM_TESTS = $(wildcard tests/test_vllm_*.py) tests/test_megatron.py

.PHONY: help style test test-only test-cute test-cute-only test-cdna test-cdna-only test-peers test-peers-only
.PHONY: environments early test-vllm test-vllm-only test-versions check-machine mutants mutants-only mutation mutation-only compat lint gen demo example grpo docs wheel clean
help:
	@sed -n 's/^# //p' Makefile | head -2

# tests/test_reference_sources.py holds generated/ to what is emitted, as the rest of make lint does.
test: style test-only

test-only: $(VENV)/.test
	$(PYTEST) $(PYTEST_ARGS)

# Each compiler that the cute extra allows, laid over the environment: 240 MB that make test does not ask for.
test-cute: $(CUTE_VERSIONS:%=test-cute-%)

test-cute-4.%: $(BASE)/.test
	$(MAKE) test-cute-only VENV=.venv-cute4$* CUTE=4.$*

test-cute-only: $(VENV)/.cute
	$(PYTEST) -m cutlass $(PYTEST_ARGS) $(COMPILED)

# The peers' own functions beside ours, in an environment that nothing else needs.
test-peers:
	$(MAKE) test-peers-only VENV=.venv-peers

test-peers-only: $(VENV)/.peers
	$(PYTEST) $(PYTEST_ARGS) tests/test_peers.py tests/test_peers_advantages.py tests/test_peers_swapped.py

# TileLang's kernels compiled for CDNA and run on this machine: 250 MB that make test does not ask for.
test-cdna: $(BASE)/.test
	$(MAKE) test-cdna-only VENV=.venv-cdna

test-cdna-only: $(VENV)/.cdna
	RLK_REQUIRE_TILELANG=1 $(PYTEST) -k tilelang $(PYTEST_ARGS) $(TILELANG_TESTS)

# vLLM's engine on a CPU, its layers on the oracle: 340 MB that make test does not ask for. Kernels of its second
# model runner run in Triton's interpreter, which vLLM accepts where devices are hidden.
test-vllm: $(BASE)/.test
	$(MAKE) test-vllm-only VENV=.venv-vllm

test-vllm-only: $(VENV)/.vllm
	$(VLLM_ENV) $(PYTEST) $(PYTEST_ARGS) $(VLLM_TESTS)

# The oldest and the newest Triton that pyproject.toml allows: 0.6 and 1.0 GB that make test does not ask for.
test-versions: $(VENV)/.test
	$(PY) tools/compat.py --ends

# Wrong kernels: TileLang's HIP source with a line changed, and Triton's machine code; prints the shares caught.
mutants: $(BASE)/.test
	$(MAKE) mutants-only VENV=.venv-cdna

mutants-only: $(VENV)/.cdna
	PYTHONPATH=tests $(PY) tests/tilelang_mutants.py 6
	PYTHONPATH=tests $(PY) tests/cdna_mutants.py 4

# Small bugs put into the core, a sample drawn by lines: what share the tests of their area find, as a page of docs.
mutation: $(BASE)/.test
	$(MAKE) mutation-only VENV=.venv-cdna

mutation-only: $(VENV)/.mutation
	$(PY) tools/mutation.py $(MUTATION_ARGS)

# Every kernel that Triton compiles for an AMD device that is not there, on an emulator of its machine code.
check-machine: $(VENV)/.test
	$(PY) -m rlk.cli check --all --target gfx942 --law machine --jobs 2

# What continuous integration needs beside the environment of make test, installed while that is computing.
environments: $(BASE)/.test early .venv-docs/.docs
	$(foreach v,$(CUTE_VERSIONS:4.%=%),$(MAKE) VENV=.venv-cute4$v CUTE=4.$v .venv-cute4$v/.cute && ) \
		$(MAKE) VENV=.venv-vllm .venv-vllm/.vllm && $(MAKE) VENV=.venv-cdna .venv-cdna/.cdna

# Of these, what is installed as listed, whatever else is there: a core has nothing to do while that environment is made.
early: $(BASE)/.torch
	$(MAKE) VENV=.venv-vllm .venv-vllm/.listed
	$(PY) tools/compat.py --install

style: $(VENV)/.test
	$(PY) -m ruff check .
	$(if $(TYPED),$(PY) -m mypy $(TYPED))
	$(PY) tests/commit_subjects.py

lint: style
	$(if $(wildcard generated/*/),$(PY) -m rlk.cli gen --check)

# Every version of a compiler that can be had here, laid over the environment: what it compiles, as a page of docs.
compat: $(VENV)/.test
	$(PY) tools/compat.py $(COMPAT_ARGS)

gen: $(VENV)/.run
	$(PY) -m rlk.cli gen

demo: $(VENV)/.demo
	$(PY) -m rlk.cli demo $(DEMO_ARGS)

# A tiny model trained by GRPO on a CPU, by rlk and by stock transformers; its checkpoints stay in build/example.
example: $(VENV)/.demo
	$(PY) -m examples.grpo --device cpu --arm both --out build/example --overwrite

# The same loop by its own options, of 32 million parameters on a GPU: GRPO_ARGS="--arm both --seeds 3"; --help lists them.
grpo: $(VENV)/.demo
	$(PY) -m examples.grpo $(GRPO_ARGS)

# The site in build/site: pages of operators are written from their specs; a broken link is an error.
docs: $(VENV)/.run .venv-docs/.docs
	rm -rf build/docs
	$(PY) -m rlk.cli docs -o build/docs/pages/operators
	$(PY) tools/site.py build/docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict -f build/docs/mkdocs.yml -d ../site

wheel: $(VENV)/.test
	$(PY) -m build --wheel --no-isolation

clean:
	rm -rf .compat .mutation .venv .venv-torch-* .venv-cute* .venv-cdna .venv-peers .venv-vllm .venv-docs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- environments: one stamp for each step, remade when a pin or an extra changes --------------------------------

$(VENV)/.venv:
	$(if $(PYTHON),,$(error no Python 3.11 or newer was found; name one with make PYTHON=/path/to/python3.11))
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch alone and first, so that a machine with its own build of it (CPU, ROCm) keeps that build's dependencies.
$(VENV)/.torch: $(VENV)/.venv $(PINS)
	$(PIP) --upgrade pip
	$(PIP) torch numpy
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[triton]'
	touch $@

# Laid over the environment of make test: what an extra adds to it, and its torch, triton and tests' packages.
$(VENV)/.over: $(BASE)/.torch
	$(BASE)/bin/python -m venv --clear --without-pip $(VENV)
	echo "import site; site.addsitedir('$$($(BASE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_borrowed.pth
	touch $@

$(VENV)/.cute: $(VENV)/.over $(BASE)/.test constraints/cute-$(CUTE).txt
	$(PIP) -c constraints/cute-$(CUTE).txt --no-build-isolation -e '.[triton,dev,cute]'
	touch $@

# verl alone asks for servers and for other versions of what is here; its losses import little of that.
$(VENV)/.peers: $(VENV)/.run constraints/peers.txt
	$(PIP) -c constraints/peers.txt pytest trl $(VERL_IMPORTS)
	$(PIP) -c constraints/peers.txt --no-deps verl
	touch $@

# vLLM pins torch and asks for CUDA: its Python alone, and what that imports.
$(VENV)/.vllm: $(VENV)/.listed $(BASE)/.test
	$(PIP) pytest transformers pillow python-dateutil
	touch $@

$(VENV)/.listed: $(VENV)/.over constraints/vllm.txt tools/vllm_python.py
	$(PIP) --no-deps -r constraints/vllm.txt
	$(PY) tools/vllm_python.py $(VLLM)
	touch $@

$(VENV)/.cdna: $(VENV)/.over $(BASE)/.test constraints/tilelang.txt
	$(PIP) -c constraints/tilelang.txt --no-build-isolation -e '.[triton,dev,tilelang,cdna]'
	touch $@

$(VENV)/.mutation: $(VENV)/.cdna constraints/mutation.txt
	$(PIP) -c constraints/mutation.txt cosmic-ray
	touch $@

.venv-docs/.docs: constraints/docs.txt constraints/base.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/base.txt -c $< mkdocs-material
	touch $@

$(VENV)/.demo: $(VENV)/.run
	$(PIP) --no-build-isolation -e '.[triton,demo]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --no-build-isolation -e '.[triton,demo,dev]'
	touch $@
