# make demo: the light runtime alone, with a published model.   make test: everything the tests need, then all of them.
# GNU make 4.3, pip 23; PYTHON picks the interpreter (3.11 to 3.14).

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
DEMO_PAIR ?=
TORCH ?= torch==2.13.0
LLAMA ?= yes
# A build for this very processor dies on some virtual machines that hide a part of it: see `edgedecode devices`.
LLAMA_CMAKE_ARGS ?= -DGGML_NATIVE=OFF

# Two processes, which take whole stretches of the tests, so that each makes what a file's tests share once.
PARALLEL ?= -n 2 --dist worksteal

BIN := $(abspath $(VENV))/bin
DEMO_BIN := $(abspath $(DEMO_VENV))/bin
TEST_STAMP := $(VENV)/.installed-test
DEMO_STAMP := $(DEMO_VENV)/.installed-onnx
PIP_FLAGS := --disable-pip-version-check --quiet
PACK := edgedecode/packs/demo
PACK_LIMIT_KIB := 15360
FAST := tests/unit tests/property $(wildcard tests/test_*.py)
MIRROR := build/typecheck/edgedecode

.PHONY: help demo test test-fast providers lint page pack clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo   the light runtime in $(DEMO_VENV), then a published model of 135M parameters: an answer, and its speed'
	@echo 'make test   everything the tests need in $(VENV), then lint and all tests'
	@echo 'make test-fast  the tests of the core and of the surface alone, about a minute'
	@echo 'make providers  what tests of NPUs, graphics processors, the web page and JavaScript clients need, as far as it can be installed here'
	@echo 'make lint   ruff and mypy'
	@echo 'make page   build the web page again from apps/serve/web, with npm'
	@echo 'make pack   export the bundled pack again: make pack DEMO_PAIR=folder with target/ and draft/'
	@echo 'make clean  remove what make made: environments made by make demo, build output, caches'

demo: $(DEMO_STAMP)
	@echo "Environment $(DEMO_VENV): $$(du -sm $(DEMO_VENV) | cut -f1) MB, no torch, no compiler."
	$(DEMO_BIN)/edgedecode demo

# Bytecode is written at first use, and setuptools and hf-xet are not needed to run: they would only take room.
$(DEMO_STAMP): pyproject.toml
	@echo 'Downloading into $(DEMO_VENV): numpy, onnxruntime, tokenizers, jinja2, rich and what they need: about 55 MB.'
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_BIN)/python -m pip install $(PIP_FLAGS) --no-compile -e '.[onnx]'
	$(DEMO_BIN)/python -m pip uninstall $(PIP_FLAGS) --yes setuptools hf-xet
	find $(DEMO_VENV) -name __pycache__ -prune -exec rm -rf {} +
	@touch $@

test: $(TEST_STAMP)
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest $(PARALLEL) -m 'not serial'
	$(BIN)/python -m pytest -m serial $$(grep -rl --include='test_*.py' 'mark\.serial' tests)

test-fast: $(TEST_STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not serial and not memory and not slow' $(FAST)

# Without these, their tests skip with the reason. It installs Vulkan in software and Chromium through apt, as root only.
providers: $(TEST_STAMP)
	tests/install_providers.sh $(BIN)/python

# torch goes first and by its exact pin: a plain `torch` may bring gigabytes of CUDA libraries.
$(TEST_STAMP): pyproject.toml
	@echo 'Installing what the tests need into $(VENV); what is there already stays.'
	@echo 'Downloads: $(TORCH) (about 200 MB as a CPU wheel; where pip finds no CPU wheel, some 3 GB with CUDA:'
	@echo 'name a place that has one with PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL), then about 140 MB:'
	@echo 'onnxruntime, onnxruntime-genai, transformers, onnx, numpy, pytest, hypothesis, mypy, ruff.'
	@echo 'llama.cpp is compiled, some 7 minutes on two cores; make test LLAMA= leaves it out, and its tests skip.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[onnx,export,test]'
	test -z '$(LLAMA)' || CMAKE_ARGS='$(LLAMA_CMAKE_ARGS)' $(BIN)/python -m pip install $(PIP_FLAGS) -e '.[llama]' || \
		echo 'llama.cpp could not be built here (it needs a C++ compiler): its tests skip.'
	@touch $@

# mypy cannot follow the editable install's import hook, so it reads a mirror of the installed package: one folder of
# links, four of them to the rings that live beside it (edgedecode/export/x.py in its messages is export/x.py here).
lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(MIRROR)
	@ln -sfn $(addprefix ../../../,$(filter-out %/__pycache__,$(wildcard edgedecode/*)) export runtimes apps bench) $(MIRROR)/
	@find -L $(MIRROR) -maxdepth 1 -type l -delete
	cd build/typecheck && $(BIN)/mypy --config-file ../../pyproject.toml -p edgedecode

# The wheel carries what it builds. Only its authors need npm.
page:
	cd apps/serve/web && npm ci --no-audit --no-fund && npm run build

# The old pack stays until the new one is whole and small enough.
pack: $(TEST_STAMP)
	@test -d '$(DEMO_PAIR)/target' || { echo 'give the float models: make pack DEMO_PAIR=folder with target/ and draft/' >&2; exit 1; }
	rm -rf build/demo
	mkdir -p build
	$(BIN)/edgedecode export --target $(DEMO_PAIR)/target --draft $(DEMO_PAIR)/draft --bits 8 --graphs base,lora,kv8 --license Apache-2.0 --out build/demo
	$(BIN)/edgedecode trim build/demo
	@size=$$(du -sk build/demo | cut -f1); test $$size -le $(PACK_LIMIT_KIB) || \
		{ echo "build/demo is $$size KiB, the package carries at most $(PACK_LIMIT_KIB)" >&2; exit 1; }
	rm -rf build/demo-old
	if [ -e $(PACK) ]; then mv $(PACK) build/demo-old; fi
	mkdir -p $(dir $(PACK))
	mv build/demo $(PACK)
	rm -rf build/demo-old

clean:
	rm -rf $(DEMO_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find edgedecode export runtimes apps bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
