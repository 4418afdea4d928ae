# Every target needs only make and a Python of at least 3.10: `.venv` is made on first use, and again when what it
# holds changes. Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: quickstart test lint format clean

quickstart: $(INSTALLED)
	$(BIN)/python training/pretrain.py training/configs/quickstart.yaml
	$(BIN)/python eval/quickstart_report.py runs/quickstart

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + ": give another with PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --editable '.[train,eval,harness,demo,dev]' --constraint constraints.txt
	@touch $@
