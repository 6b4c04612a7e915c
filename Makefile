# Every target sets up what it needs and nothing twice. `make env` builds .venv; the others call it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE_BUILD := build/native
STAMPS := .stamps

.PHONY: env native demo test check format bench soak setup-extra sanitize clean

env: $(STAMPS)/deps native

$(STAMPS)/deps: pyproject.toml constraints.txt
	@mkdir -p $(STAMPS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch first and pinned: a looser requirement resolved before it would pull CUDA builds
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt $$($(BIN)/python tools/requirements.py dev parquet bench)
	@# the package is used in place: its folder on the path, its command in bin
	@$(BIN)/python tools/link_in_place.py
	@touch $@

# Ninja rebuilds only what changed.
native: $(STAMPS)/deps
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/build_native $(NATIVE_BUILD)

clean:
	rm -rf build $(STAMPS) springtide/_native*.so
