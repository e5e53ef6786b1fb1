# Everything that a developer or a machine runs.  `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin
# Bytecode is kept, also where a machine says otherwise: each worker and each process of a test would compile anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install dev demo test tested check checked lint format bench soak fuzz attack peers reference docs site image floors matrix release lock clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: ## make .venv with .venv/bin/sliceplane ready to run
	@tools/install.sh runtime
	@echo "ready: .venv/bin/sliceplane --help"

dev: ## the same with what tests, demo and benchmarks need
	@tools/install.sh dev

demo: dev ## KEP-4444's manifest, from kubectl apply to packets routed by the kernel
	@$(PY) -m demo

lint: dev # all four are asked, so that all faults are told in one go
	@failed=0; for tool in "-m ruff format --check ." "-m ruff check ." "-m mypy"; do \
		echo "python $$tool"; $(PY) $$tool || failed=1; \
	done; echo lint-imports; PYTHONPATH=src .venv/bin/lint-imports || failed=1; \
	$(PY) tools/changelog_note.py; exit $$failed

format: dev ## code and imports as the linter wants them
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

check: ## fast: lint, types, layers, and the quick tests of every room; all that fails is told, not the first alone
	@$(MAKE) --no-print-directory -k -j 2 lint checked

checked: dev # beside the linters, which take a third of the time
	HYPOTHESIS_PROFILE=quick $(PYTEST) -q -p tests.workers --workers $$(( $$(nproc) + 1 )) --quick -m "not slow and not kernel and not kubectl and not peer" $(filter-out %__pycache__/,$(wildcard tests/*/)) tests/test_tidy.py tests/test_docs.py tests/test_metrics.py tests/test_shown_commands.py tests/test_truth.py

# Tests wait longer than they compute: one process more than there are cores for those that compute, the rest for waiting.
TEST_WORKERS ?= $$(( 3 * $$(nproc) + 2 ))
test: ## everything that must pass (what CI runs)
	@$(MAKE) --no-print-directory -j 2 lint tested

tested: dev # lint computes while the first tests wait
	$(PYTEST) -p tests.workers --workers $(TEST_WORKERS) -q

soak: dev ## every long run of docs/figures.md (hours), RUNS="kills drains" for some; the page gets their figures
	PYTHONPATH=src:. $(PY) tools/soak.py $(RUNS)

FUZZ_SECONDS ?= 1800
fuzz: dev ## hostile requests for FUZZ_SECONDS (1800), in process and over sockets, and hostile packets to the name server
	PYTHONPATH=src:. $(PY) -m tests.fuzz --seconds $$(( $(FUZZ_SECONDS) / 5 ))
	PYTHONPATH=src:. $(PY) -m tests.fuzz.names --seconds $$(( $(FUZZ_SECONDS) / 5 ))
	PYTHONPATH=src:. $(PY) -m tests.fuzz.wire --seconds $$(( $(FUZZ_SECONDS) / 5 ))
	PYTHONPATH=src:. $(PY) -m tests.fuzz.http2 --seconds $$(( $(FUZZ_SECONDS) / 5 ))
	PYTHONPATH=src:. $(PY) -m tests.fuzz.xds_requests --seconds $$(( $(FUZZ_SECONDS) / 5 ))

attack: dev ## what a hostile request, user, Service or clock costs: every attack of docs/security.md, bounded, on loopback
	@PYTHONPATH=src:. $(PY) -m tests.attack

peers: dev ## real Kubernetes programs, built with Go, against our server
	$(PYTEST) -m peer --timeout=3600

bench: dev ## every budget of the design: ours, the peer's, the ratio
	@$(PY) -m benchmarks

consumers: dev ## judge other software that follows EndpointSlices; the numbers go to docs/testing.md
	PYTHONPATH=src:. $(PY) -m benchmarks.tools.consumers

reference: dev ## the made parts of docs/cli.md and docs/api.md (help texts, tables; no transcripts), the picture of imports
	PYTHONPATH=src:. $(PY) tools/make_reference.py
	PYTHONPATH=src:. $(PY) tools/make_findings.py
	$(PY) tools/draw_imports.py

docs: reference ## the same, and every output in README and guides, transcripts, symptoms, the recording (root)
	PYTHONPATH=src:. $(PY) tools/make_transcripts.py
	PYTHONPATH=src:. $(PY) tools/make_symptoms.py
	PYTHONPATH=src:. $(PY) tools/guides.py
	PYTHONPATH=src:. $(PY) tools/make_recording.py
	PYTHONPATH=src:. $(PY) tools/make_pictures.py

.venv-site/bin/mkdocs: requirements-site.lock | install
	.venv/bin/python -m venv .venv-site
	.venv-site/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-site.lock
	@touch $@

site: .venv-site/bin/mkdocs ## the documents as a site in site/, with search; links are checked
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet
	@echo "ready: site/index.html"

image: dev ## build the image without Docker or a registry, and run it read-only (root, Debian)
	$(PYTEST) tests/deploy/test_image.py -m ''

floors: dev ## the fast tests with every dependency at its lower bound
	$(PY) tools/environments.py floors

matrix: dev ## lint and the fast tests under every Python that is here, 3.11 to 3.14; says which are not
	$(PY) tools/environments.py matrix

release: ## dist/: all that a version has, built from its tag, installed and run (root, Debian); PARTS="agent" for some
	@PROGRAMS=no tools/install.sh dev
	@PYTHONPATH=src:. $(PY) -u -m tools.release $(RELEASE) $(PARTS)

lock: ## pin anew what pyproject.toml asks for
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --extra server --extra proxy --extra etcd pyproject.toml -o requirements.lock
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --all-extras pyproject.toml --group dev -o requirements-dev.lock
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --group build -c requirements-dev.lock -o requirements-build.lock
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --group install -o requirements-install.lock
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --group site -o requirements-site.lock
	uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --group build --group dist -c requirements-dev.lock -o requirements-dist.lock
	$(PY) tools/environments.py pin

clean: ## remove what the targets made
	rm -rf .venv .venv-site site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
