# make run, make test: all set-up, then the job. Set-up is done once, into $(VENV).
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
MINIMUM := .venv-minimum

# The CuPy and cuda.core that fit the driver, where there is one; else what compiles without a GPU.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p')
EXTRAS := cpu,laboratory,plots,exports,dev
ifneq ($(filter 12 13,$(CUDA)),)
EXTRAS := $(EXTRAS),cuda$(CUDA)
else
EXTRAS := $(EXTRAS),compile
endif

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

.PHONY: run
run: $(READY) ## set up, then the main job: SDDMM on a 10000x10000 matrix against its peers, and a picture
	$(PY) -m experiments run +matrix=10000x10000 k=64,256
	@$(PY) -m experiments report quiet=true

# Many tests start Python anew: without bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test
test: $(READY) ## set up, then all tests that need no GPU
	$(PY) -m pytest -m "not gpu" -n auto --dist worksteal

.PHONY: test-gpu
test-gpu: $(READY) ## the tests that need a CUDA device
	$(PY) -m pytest -m gpu

# Not in `make test`: torch's oldest release brings 3 GB of CUDA. Old releases have no wheels for the
# newest Pythons: PYTHON=python3.10 make test-minimum
.PHONY: test-minimum
test-minimum: $(MINIMUM)/.ready ## the tests with the oldest libraries that pyproject.toml allows
	$(MINIMUM)/bin/python -m pytest -m "not gpu" -n auto --dist worksteal

# The GPU kernels without a GPU: --device emulated; on one:
# python -m tests.fuzz --device cuda --cases 20000 --workers 8 --seconds 240
SEED ?= 0
CASES ?= 10000
.PHONY: fuzz
fuzz: $(READY) ## CASES random cases of SEED against float64, on the CPU
	$(PY) -m tests.fuzz --seed $(SEED) --cases $(CASES)

# Exact allocations, so that a read beyond one is seen; racecheck knows shared memory only.
.PHONY: sanitize
sanitize: $(READY) ## one small problem per kernel family under compute-sanitizer; needs a CUDA device
	for tool in memcheck racecheck; do \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
	    --report-api-errors no $(PY) -m pytest -m gpu \
	    tests/gemm_core/ladder/test_sanitized.py tests/sddmm/backends/cuda/test_sanitized.py || exit 1; \
	done

.PHONY: lint
lint: $(READY) ## formatting, lint and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

.PHONY: package
package: $(READY) ## set up, then the source distribution and the wheel, checked, into dist
	rm -rf build dist
	$(PY) -m build --no-isolation > /dev/null
	$(PY) -m twine check --strict dist/*

.PHONY: docs
docs: $(VENV)/.docs-ready ## set up, then the documentation site, into docs/_build/html
	$(PY) -m sphinx -W --keep-going -q -j auto docs docs/_build/html
	@echo "docs/_build/html/index.html"

.PHONY: setup
setup: $(READY) ## only the set-up

# What the first `make run` and `make test` wait for.
$(READY): pyproject.toml .ci/constraints.txt .ci/new_venv
	@PYTHON='$(PYTHON)' .ci/new_venv $(VENV)
	@echo "pip downloads torch and the extras $(EXTRAS) into $(VENV), which is done once:" \
	  "about 3 GB where torch brings CUDA, as on Linux from PyPI; about 0.6 GB without." \
	  "It takes minutes, in which pip prints nothing."
	$(PY) -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.docs-ready: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[docs]'
	touch $@

$(MINIMUM)/.ready: pyproject.toml .ci/lower_bounds.py .ci/new_venv
	@PYTHON='$(PYTHON)' .ci/new_venv $(MINIMUM)
	$(MINIMUM)/bin/python .ci/lower_bounds.py > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c $(MINIMUM)/constraints.txt -e '.[$(EXTRAS)]'
	touch $@

.PHONY: clean
clean: ## remove the environment and all caches, not the results
	rm -rf $(VENV) $(MINIMUM) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
