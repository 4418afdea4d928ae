# All targets need only make and Python 3.10 or newer. They create a virtual environment in `.venv` on first use, and
# update it when the requirements change. To choose an interpreter, set PYTHON, for instance: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: quickstart findings sudoku gpu gpu-short test test-studies test-quantization test-transformers test-lowest lint format clean

quickstart: $(INSTALLED)
	$(BIN)/python training/pretrain.py training/configs/quickstart.yaml
	@echo "Held-out bits per byte, the training loss and samples: runs/quickstart/report.md"

# Compare training orders, target injection, moving averages, and a decoder with an encoder, with three seeds (Findings 1,
# 2, 3 and 6, and Figures 7 to 9 of the paper).
findings: $(INSTALLED)
	$(BIN)/python eval/studies/runner/study.py eval/studies/paper/paper.yaml

# Train an any-order model on Sudoku, and let it solve held-out puzzles. This takes about 40 minutes of one CPU core. An
# interrupted run continues where it stopped. To compare it with a left-to-right model and an encoder, with three seeds:
#     make sudoku RECIPES="sudoku left_to_right encoder" SEEDS="0 1 2"
SUDOKU := runs/sudoku
RECIPES := sudoku
SEEDS := 0

sudoku: $(INSTALLED)
	for seed in $(SEEDS); do for recipe in $(RECIPES); do \
		$(BIN)/python training/pretrain.py eval/studies/sudoku/$$recipe.yaml --seed $$seed \
			--output_dir $(SUDOKU)/$$recipe-$$seed || exit; \
	done; done
	$(BIN)/python eval/studies/sudoku/puzzles.py $(foreach recipe,$(RECIPES),$(SEEDS:%=$(SUDOKU)/$(recipe)-%)) \
		--output_dir $(SUDOKU)/results

# Test and measure on an NVIDIA GPU: generation (Figure 5 of the paper) and training. Complete parts, such as
# generation with one batch size, are not run again. To use an existing Python environment, for instance that
# of a container, instead of .venv:
#     PYTHONPATH=. make gpu BIN=FOLDER_OF_PYTHON INSTALLED=
GPU := runs/gpu
BATCHES := 1 8 32
STEPS := 16 64 256
SPEED = $(BIN)/python eval/benchmarks/speed.py --device cuda --dtype bfloat16 --size $(word 1,$(subst -, ,$(notdir $(@D)))) \
	--batch_size $(@F) --steps $(STEPS) --output_dir $@.part
# Folders of both sizes and all batch sizes for a suffix. For -exact, one of them is runs/gpu/medium-exact/8.
folders = $(foreach size,medium small,$(addprefix $(GPU)/$(size)$(1)/,$(BATCHES)))

gpu: DEADLINE := 3600
gpu: $(GPU)/tests gpu-short $(call folders,) $(call folders,-exact) $(call folders,-compiled)

# The most important measurements and tests, in five minutes. They need only PyTorch and Transformers (and pytest for the
# tests). Run the command again to measure what did not fit in.
DEADLINE := 270

gpu-short: | $(INSTALLED)
	$(BIN)/python eval/benchmarks/gpu_short.py --deadline $(DEADLINE) --output_dir $(GPU)/short

$(GPU)/tests: | $(INSTALLED)
	$(BIN)/python -c "import torch; torch.cuda.init()"  # fail without a GPU, instead of skipping the tests
	$(BIN)/python -m pytest tests/test_cuda.py tests/test_status.py
	mkdir -p $@

$(call folders,): | $(INSTALLED)
	$(SPEED) --contenders no-lemma no-cache encoder sedd
	mv $@.part $@

$(call folders,-exact): | $(INSTALLED)
	$(SPEED) --contenders left-to-right speculative prompt-lookup llama
	mv $@.part $@

$(call folders,-compiled): | $(INSTALLED)
	$(SPEED) --contenders encoder sedd llama --compile
	mv $@.part $@

# With `worksteal`, most tests of a file share a process, and therefore its fixtures.
PARALLEL := --numprocesses 2 --dist worksteal

test: $(INSTALLED)
	$(BIN)/python -m pytest $(PARALLEL)

# Run the tests of eval/studies.
test-studies: $(INSTALLED)
	$(BIN)/python -m pytest tests/studies $(PARALLEL)

# Run the tests of quantized models. Their libraries are in a separate folder, because if torchao is in the environment, it
# prints messages whenever Transformers is imported.
TORCHAO := .venv/torchao

test-quantization: $(INSTALLED)
	$(BIN)/python -m pip install --no-deps --upgrade --target $(TORCHAO) torchao bitsandbytes \
		--constraint constraints.txt
	PYTHONPATH=$(TORCHAO) $(BIN)/python -m pytest tests/test_ecosystem.py tests/test_finetuning.py -k "ecosystem or quantized"

# Run the common model tests of Transformers on the models of this package. To use the tests of a checkout of
# Transformers, which has more tests than the source distribution, set TRANSFORMERS_TESTS.
TRANSFORMERS_SOURCE := .venv/transformers-source
TRANSFORMERS_TESTS ?= $(TRANSFORMERS_SOURCE)/tests

test-transformers: $(INSTALLED) $(TRANSFORMERS_TESTS)
	TRANSFORMERS_TESTS=$(TRANSFORMERS_TESTS) $(BIN)/python -m pytest tests/transformers_common

$(TRANSFORMERS_SOURCE)/tests: | $(INSTALLED)
	$(BIN)/python -m pip install parameterized
	version=$$($(BIN)/python -c 'import transformers; print(transformers.__version__)') && \
	$(BIN)/python -m pip download --no-deps --no-binary transformers --dest $(TRANSFORMERS_SOURCE) "transformers==$$version" && \
	tar xzf $(TRANSFORMERS_SOURCE)/transformers-$$version.tar.gz --strip-components 1 -C $(TRANSFORMERS_SOURCE)

# Run all tests with the lowest versions that pyproject.toml allows. torch 2.7 from PyPI downloads 5.7 GB of CUDA
# libraries. To use another torch, set LOWEST_TORCH: .ci/run sets it to the newest version, as in constraints.txt, and
# leaves out slow tests of what depends only on torch.
LOWEST_TORCH ?= 2.7.0
LOWEST_OPTIONS ?=

test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install torch==$(LOWEST_TORCH) --editable '.[train,eval,dev]' --constraint constraints-lowest.txt
	.venv-lowest/bin/python -m pytest $(PARALLEL) $(LOWEST_OPTIONS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-lowest build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + ". Choose another one with PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --editable '.[train,eval,harness,demo,serve,trl,dev]' --constraint constraints.txt
	@touch $@
