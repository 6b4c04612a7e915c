# Every target sets up what it needs and nothing twice. `make env` builds .venv; the others call it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE_BUILD := build/native
STAMPS := .stamps
EXTRAS := dev parquet export bench sim kafka tls k8s
COMPILE := cmake ninja nanobind uv
PAGE_SOURCES = $(shell find dashboard -name node_modules -prune -o -type f -print)
NATIVE_SOURCES = $(shell find cpp -name '*.h' -o -name '*.cpp')

# Many container images set this; then every process of every test would compile torch and Ray again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env native native-tests dashboard wheel demo test test-k8s check format docs bench soak chaos mutate docs-site setup-extra setup-frameworks setup-browser sanitize chart clean

help:
	@echo "make env          .venv with everything, the native core built in place"
	@echo "make demo         train WideDeep on a generated click log; add a server, kill three processes midway"
	@echo "make test         all tests that need nothing but this clone, a compiler and PyPI"
	@echo "make test-k8s     the Kubernetes tests alone; KUBECONFIG=FILE runs them against a real API server"
	@echo "make check        format, lint, types, import contracts"
	@echo "make format       rewrite the sources as 'make check' wants them"
	@echo "make docs         run the runnable blocks of README and docs/"
	@echo "make docs-site    the documentation as a site in build/site"
	@echo "make bench        all benchmarks, or NAME=store"
	@echo "make soak         the long tests"
	@echo "make chaos        jobs under random faults, SECONDS=600 SEED=1; see docs/design/chaos.md"
	@echo "make mutate       change the product's code in small ways and see whether tests fail, FILES=springtide/job"
	@echo "make setup-extra  what the tests marked 'extra' need"
	@echo "make setup-frameworks  Hugging Face, DeepCTR-Torch, RecBole, ONNX and trackers, which some tests and pages need (300 MB)"
	@echo "make setup-browser  chromium and Playwright, which the tests of the dashboard's page need (as root, on Debian)"
	@echo "make sanitize     the native tests under ASan/UBSan and TSan; FUZZ_SECONDS=30 for each fuzz target"
	@echo "make dashboard    the dashboard's page, where Node.js is installed; part of make env"
	@echo "make wheel        dist/springtide-*.whl, which installs without a compiler; see docs/how-to/install.md"
	@echo "make chart        write the Helm chart to build/helm/springtide"

env: $(STAMPS)/deps native dashboard

# The compiler works beside pip, which has the processor first: pip uses one core and waits for the network. Several goals
# (`make clean env`) are for one after the other, but for those of set-up and
# the two that change nothing.
ONE_BY_ONE := $(filter-out env setup-extra check native-tests,$(MAKECMDGOALS))
ifeq ($(and $(ONE_BY_ONE),$(word 2,$(MAKECMDGOALS))),)
MAKEFLAGS += -j2
endif

$(VENV)/pyvenv.cfg:
	@tools/make_venv "$(PYTHON)" $(VENV)

$(STAMPS)/compile: $(VENV)/pyvenv.cfg constraints.txt
	@$(BIN)/pip install -qq --constraint constraints.txt $(COMPILE)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/deps: $(STAMPS)/compile pyproject.toml tools/install tools/install_packages tools/requirements.py tools/link_in_place.py
	@tools/install $(VENV) $(STAMPS)/requirements.txt $(EXTRAS)
	@touch $@

# Ninja rebuilds only what changed.
native: $(STAMPS)/compile
	@PATH="$(CURDIR)/$(BIN):$$PATH" MAKEFLAGS= nice -n 10 tools/build_native $(NATIVE_BUILD)

native-tests: native
	@PATH="$(CURDIR)/$(BIN):$$PATH" MAKEFLAGS= tools/build_native $(NATIVE_BUILD) tests

# Nothing where Node.js is missing: all but the dashboard's page works without it.
dashboard: $(STAMPS)/dashboard

$(STAMPS)/dashboard: $(PAGE_SOURCES) tools/build_dashboard
	@tools/build_dashboard
	@mkdir -p $(STAMPS) && touch $@

wheel: $(STAMPS)/compile dashboard
	@PATH="$(CURDIR)/$(BIN):$$PATH" MAKEFLAGS= nice -n 10 tools/build_wheel dist

demo: env
	@$(BIN)/springtide demo

test: env native-tests
	@tools/run_tests $(BIN)/python $(ARGS)

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/settings_page.py
	$(BIN)/python tools/api_page.py
	$(BIN)/python tools/reference_pages.py
	$(BIN)/clang-format -i $(NATIVE_SOURCES)

# Only a KUBECONFIG given on the command line counts: nobody's cluster is used because a shell happens to know it.
test-gpu: env
	$(BIN)/python -m pytest -m gpu tests/gpu tests/unit/dataworker/test_gpu_stages.py $(ARGS)

test-k8s: env
	@SPRINGTIDE_TEST_KUBECONFIG="$(if $(filter command line,$(origin KUBECONFIG)),$(abspath $(patsubst ~/%,$(HOME)/%,$(KUBECONFIG))))" \
		$(BIN)/python -m pytest tests/platforms/k8s $(ARGS)

docs: env
	@$(BIN)/python -m pytest tests/process/test_docs.py

# A clone gets the site's packages when it first builds the site. Warnings are errors.
docs-site: $(VENV)/pyvenv.cfg
	@$(BIN)/python -c "import material, mkdocstrings" 2>/dev/null || $(BIN)/pip install -q --no-compile -c constraints.txt mkdocs-material "mkdocstrings[python]"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server -d build/site"

bench: env
	@for name in $(or $(NAME),$$($(BIN)/python -c "from springtide_lab.bench import BENCHES; print(*BENCHES)")); do \
		$(BIN)/springtide bench $$name --json || exit; done

soak: env native-tests setup-frameworks
	@$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

chaos: env
	@$(BIN)/python -m tests.chaos.nemesis $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Without FILES: what changed since the commit before main's last.
FILES ?= $(shell git diff --name-only --diff-filter=d main~ -- springtide | grep '[.]py$$')
mutate: env
	@$(BIN)/python tools/mutate.py $(FILES) $(ARGS)

setup-extra: $(STAMPS)/deps
	@tools/setup_extra $(VENV) $(STAMPS)/extra.txt

# Not a part of setup-extra, because tests would take longer than continuous integration may.
setup-frameworks: setup-extra
	@$(BIN)/pip install -q --no-compile -c constraints.txt accelerate transformers deepctr-torch onnx onnxscript onnxruntime \
		tensorboardX tensorboard mlflow-skinny wandb tabulate texttable
	@$(BIN)/pip install -q --no-compile --no-deps -c constraints.txt recbole thop colorlog colorama  # it asks for an old Ray

# Debian's browser; Playwright's own download is not needed.
setup-browser: $(STAMPS)/deps dashboard
	@command -v chromium >/dev/null || apt-get install -qq -y --no-install-recommends chromium
	@$(BIN)/pip install -q --no-compile -c constraints.txt playwright

sanitize: $(STAMPS)/compile
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/sanitize

chart: env
	@$(BIN)/python tools/helm_chart.py

clean:
	rm -rf build $(STAMPS) springtide/_native*.so springtide/_native.pyi springtide/dashboard/static dashboard/node_modules
