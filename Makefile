# ringfence: `make demo` shows it, `make test` proves it. Both set up everything they need first.
# One virtual environment of the system's own python3: server and boxes run by that interpreter (docs/operate.md).
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS := docs/configuration.md

.PHONY: help setup demo test check bench soak lock docs clean
help:
	@echo "make demo    set up, then show two people, one agent and two boxes at work"
	@echo "make test    set up, then run the whole test suite (as root: all of it)"
	@echo "make check   lint, types, rooms"
	@echo "make bench   the benchmarks     make soak   the long tests"
	@echo "make setup   the setup alone    make lock   pin the requirements again (needs uv)    make clean"

setup: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml scripts/setup
	@sh scripts/setup $(VENV)
	@touch $@

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py

test: $(STAMP)
	@$(BIN)/python -m pytest $(TESTS)

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_rooms.py

bench: $(STAMP)
	@$(BIN)/ringfence bench boxes
	@$(BIN)/ringfence bench turns
	@$(BIN)/ringfence bench durable
	@$(BIN)/ringfence bench walls

soak: $(STAMP)
	@$(BIN)/python -m pytest -m soak

docs: $(STAMP)
	@$(BIN)/python -c 'from ringfence.host.kernel.settings_text import as_markdown; print(as_markdown(), end="")' >$(DOCS)

lock:
	@sh scripts/lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist
