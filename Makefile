# All targets need only make and Python 3.10 or newer. They create `.venv` on first use, and again when the requirements
# change. Use PYTHON=... to choose an interpreter, for instance: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: quickstart findings sudoku test test-quantization test-transformers test-lowest lint format clean

quickstart: $(INSTALLED)
	$(BIN)/python training/pretrain.py training/configs/quickstart.yaml
	$(BIN)/python eval/benchmarks/quickstart_report.py runs/quickstart

# Train one small model with several orders, and an encoder, and compare them (Findings 1, 2, 3 and 6 of the paper).
TRAIN_IN = $(BIN)/python training/pretrain.py training/configs/findings.yaml --output_dir runs/findings

findings: $(INSTALLED)
	$(TRAIN_IN)/left-to-right --orders left_to_right
	$(TRAIN_IN)/random
	$(TRAIN_IN)/random-seed-1 --seed 1
	$(TRAIN_IN)/tenth-left-to-right --left_to_right_fraction 0.1
	$(TRAIN_IN)/shared --orders shared
	$(TRAIN_IN)/shared-blocks --orders shared --block_length 4
	$(TRAIN_IN)/encoder --architecture encoder --objective masked_diffusion
	$(BIN)/python training/compare_runs.py runs/findings/* --output_dir runs/comparison

# Train a model that solves Sudoku in any order, and a left-to-right rival, and let both solve held-out puzzles.
SUDOKU := runs/sudoku

sudoku: $(INSTALLED)
	$(BIN)/python training/pretrain.py training/configs/sudoku.yaml --output_dir $(SUDOKU)/any-order
	$(BIN)/python training/pretrain.py training/configs/sudoku_left_to_right.yaml --output_dir $(SUDOKU)/left-to-right
	$(BIN)/python eval/sudoku.py $(SUDOKU)/any-order $(SUDOKU)/left-to-right --output_dir $(SUDOKU)/results

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2

# Tests of quantized models. torchao is installed in a folder of its own, because it prints messages whenever
# Transformers is imported.
TORCHAO := .venv/torchao

test-quantization: $(INSTALLED)
	$(BIN)/python -m pip install --no-deps --upgrade --target $(TORCHAO) torchao --constraint constraints.txt
	PYTHONPATH=$(TORCHAO) $(BIN)/python -m pytest tests/test_quantization.py tests/test_ecosystem.py

# The common tests of Transformers for all models, run on ours. TRANSFORMERS_TESTS=... uses those of a checkout, which
# has more of them than the source distribution.
TRANSFORMERS_SOURCE := .venv/transformers-source
TRANSFORMERS_TESTS ?= $(TRANSFORMERS_SOURCE)/tests

test-transformers: $(INSTALLED) $(TRANSFORMERS_TESTS)
	TRANSFORMERS_TESTS=$(TRANSFORMERS_TESTS) $(BIN)/python -m pytest tests/transformers_common

$(TRANSFORMERS_SOURCE)/tests: | $(INSTALLED)
	$(BIN)/python -m pip install parameterized
	version=$$($(BIN)/python -c 'import transformers; print(transformers.__version__)') && \
	$(BIN)/python -m pip download --no-deps --no-binary transformers --dest $(TRANSFORMERS_SOURCE) "transformers==$$version" && \
	tar xzf $(TRANSFORMERS_SOURCE)/transformers-$$version.tar.gz --strip-components 1 -C $(TRANSFORMERS_SOURCE)

# All tests with the lowest versions that pyproject.toml allows. PyPI's torch 2.7 downloads 5.7 GB of CUDA libraries;
# LOWEST_TORCH=... uses another version of torch, as CI does.
LOWEST_TORCH ?= 2.7.0

test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install torch==$(LOWEST_TORCH) --editable '.[train,eval,dev]' --constraint constraints-lowest.txt
	.venv-lowest/bin/python -m pytest --numprocesses 2

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-lowest runs build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + ". Choose another one with PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --editable '.[train,eval,harness,demo,dev]' --constraint constraints.txt
	@touch $@
