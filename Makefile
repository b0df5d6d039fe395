# Every target sets up .venv by itself. Needed: make, and Python 3.11 or later.
#
#   make demo [STORE=redis://...]   a month of flights through a cluster that changes
#   make test                       some six minutes on two idle cores; before every commit
#   make test-long                  the tests marked long, and more examples for the generated ones
#   make test-soak                  the tests marked soak: more seeds, longer histories, larger clusters; hours
#   make test-pythons [ENVIRONMENTS='3.13 lowest']
#                                   the suite of make test on each Python, and on the oldest and
#                                   newest dependencies, one after the other
#   make test-upgrade [FROM=v0.1.0] [WHEEL=old.whl]
#                                   this tree beside an earlier build, in rolling restarts both ways;
#                                   without either: the last tag, or the first build of this protocol
#   make test-kubernetes APISERVER=/path/to/kube-apiserver  with etcd and kubectl on PATH
#   make mutants [ONLY=id]          plant each defect of tests/mutants; each must fail a test
#   make mutants FILES='shardbus/ids.py ...' [SAMPLE=100] [SEED=0]
#   make mutants FILES=changed [SINCE=HEAD]
#                                   plant defects made by rules in these files, or in changed lines,
#                                   and run the tests that execute them; it installs pytest-cov
#   make fuzz [INPUTS=1000000] [TARGETS='batch gossip'] [ROUNDS=100 STATE=FILE]
#                                   feed changed bytes to every decoder and to sessions
#   make fuzz-coverage              the same, steered by coverage; it installs atheris
#   make chaos [MINUTES=30] [SEED=] [STORE=sentinel]  real nodes and stores under drawn faults; ledgers judge
#   make lint | types
#   make docs                        the site, dist/site; a broken link or anchor is an error
#   make screenshots                the pictures of the page for operators, by Chromium
#   make docs-generated             the pages of docs/ that come from the code
#   make lock                       the locks anew, with hashes; after a change of pyproject.toml
#   make audit                      the locked packages against known vulnerabilities
#   make dist [URL=https://...]     wheel and sdist in dist/, read by twine and check-wheel-contents
#   make wheels [EXTRAS=testing,postgres]
#                                   that wheel and those of all it needs, for this Python, in dist/wheels
#   make first-answer               seconds from pip install of the wheel to the tutorial's first answer
#   make bill                       the bill of materials, dist/shardbus.cdx.json
#   make bench                      the quick benchmarks; the others: benchmarks/harness.py
#   make report                     all of them, into the tables and the plot of docs/performance.md
#   make simulate [FIRST=0] [SEEDS=1000] [JOBS=2] [WHAT=--sharding]
#                                   membership, or whole nodes, under seeded faults

PYTHONS := python3 python3.13 python3.12 python3.11 python3.14
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON := $(shell for p in $(PYTHONS); do $$p -c '$(RECENT)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STORE :=
FIRST := 0
SEEDS := 1000
JOBS := 2
WHAT :=
INPUTS := 1000000
TARGETS :=
ROUNDS :=
STATE :=
MINUTES := 30
SEED :=
ONLY :=
FILES :=
SINCE := HEAD
SAMPLE := 100
ENVIRONMENTS :=
URL :=
EXTRAS :=
WHEEL :=
APISERVER :=
QUICK := tell ask activation typed storm scraped
LONGER := sizes entities workers
PYTEST := $(BIN)/python -m pytest --dist=worksteal
# Without what Python has compiled, each worker and each node of a test compiles everything anew.
export PYTHONDONTWRITEBYTECODE :=
# Tests with real processes wait more than they compute: four of them keep two cores busy.
WORKERS := 4

.PHONY: demo test test-long test-soak test-pythons test-upgrade test-kubernetes mutants fuzz fuzz-coverage chaos simulate lint types docs dist wheels first-answer docs-generated lock audit bill bench
.PHONY: report screenshots clean

demo: .venv/examples.stamp
	@$(BIN)/python -m examples.flights.demo $(if $(STORE),--store '$(STORE)')

test: .venv/all.stamp
	$(PYTEST) --numprocesses=$(WORKERS) --hypothesis-profile=quick -m 'not long and not soak' $(PYTEST_FLAGS)

test-long: .venv/all.stamp
	$(PYTEST) --numprocesses=$(WORKERS) -m '(long or hypothesis) and not soak' $(PYTEST_FLAGS)

test-soak: .venv/all.stamp
	$(PYTEST) --numprocesses=3 -m soak $(PYTEST_FLAGS)

test-pythons: .venv/all.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python -m tests.supply.pythons $(ENVIRONMENTS) $(if $(PYTEST_FLAGS),-- $(PYTEST_FLAGS))

test-upgrade: .venv/all.stamp
	wheel='$(abspath $(WHEEL))'; test -n "$$wheel" || wheel=$$($(BIN)/python -m tests.supply.neighbour $(FROM)) || exit 1; \
	NEIGHBOUR="$$wheel" $(BIN)/python -m pytest -m long tests/process/test_upgrades.py $(PYTEST_FLAGS)

test-kubernetes: .venv/all.stamp
	@test -n '$(APISERVER)' || { echo 'make: name the program: make test-kubernetes APISERVER=/path/to/kube-apiserver' >&2; exit 1; }
	KUBE_APISERVER='$(abspath $(APISERVER))' $(BIN)/python -m pytest -m soak tests/process/test_real_api_server.py $(PYTEST_FLAGS)

mutants: .venv/all.stamp
	$(if $(FILES),$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]')
	$(BIN)/python -m tests.mutants --jobs $(JOBS) $(ONLY) \
		$(if $(FILES),--files $(FILES) --since $(SINCE) --sample $(SAMPLE) $(if $(SEED),--seed $(SEED)))

simulate: .venv/all.stamp
	$(BIN)/shardbus simulate --seed $(FIRST) --seeds $(SEEDS) --seconds 60 --jobs $(JOBS) $(WHAT)

fuzz: .venv/all.stamp
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED)) $(TARGETS) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(STATE),--state $(STATE))

fuzz-coverage: .venv/all.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --coverage --inputs $(INPUTS) $(TARGETS)

chaos: .venv/all.stamp
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

lint: .venv/all.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/all.stamp
	$(BIN)/mypy
	$(BIN)/mypy -p examples
	$(BIN)/mypy -p benchmarks
	$(BIN)/basedpyright

docs: .venv-docs/stamp
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

screenshots: .venv/all.stamp
	PICTURES=docs/images $(PYTEST) -m soak tests/browser/test_pictures.py

docs-generated: .venv/all.stamp
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_monitoring.py
	$(BIN)/python docs/make_trace.py
	$(BIN)/python docs/make_logs.py
	$(BIN)/python docs/make_python.py
	$(BIN)/python docs/make_diagrams.py
	$(BIN)/python docs/make_totals.py
	$(BIN)/python docs/make_help.py
	$(BIN)/python docs/make_http.py
	$(BIN)/python -m tests.supply.materials

lock: .venv/all.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@printf 'hatchling>=1.26\neditables>=0.5\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --extra dev --extra examples --extra guests --extra test \
		pyproject.toml - --output-file requirements.lock $(LOCK_FLAGS)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--group docs --output-file requirements-docs.lock $(LOCK_FLAGS)

audit: .venv/all.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m tests.supply.audit

dist: .venv/all.stamp .venv-dist/stamp
	@mkdir -p dist
	$(BIN)/python -m tests.supply.distribution dist --tools .venv-dist/bin $(if $(URL),--url '$(URL)')

wheels: dist
	@rm -rf dist/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --wheel-dir dist/wheels \
		"$$(ls dist/shardbus-*.whl)$(if $(EXTRAS),[$(EXTRAS)])"
	@echo "pip install --no-index --find-links dist/wheels 'shardbus$(if $(EXTRAS),[$(EXTRAS)])'"

first-answer: dist
	$(BIN)/python -m tests.supply.first_answer dist/shardbus-*.whl

bill: .venv/all.stamp
	$(BIN)/python -m tests.supply.materials --bill dist/shardbus.cdx.json

bench: .venv/all.stamp
	@for benchmark in $(QUICK); do $(BIN)/python -m benchmarks.$$benchmark || exit 1; done

report: .venv/all.stamp
	@rm -f .venv/lines.json
	@for b in $(QUICK) $(LONGER); do $(BIN)/python -m benchmarks.$$b >> .venv/lines.json || exit 1; done
	@$(BIN)/python -m benchmarks.report .venv/lines.json docs

clean:
	rm -rf .venv .venv-*

# For the demo, the newest packages that fit; to develop and test, exactly those of the lock.
.venv/examples.stamp: pyproject.toml
	$(call NEW_VENV,.venv)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples]'
	@touch $@

.venv/all.stamp: pyproject.toml requirements.lock
	$(call NEW_VENV,.venv)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The site's generator has an environment of its own: nothing else needs it.
.venv-docs/stamp: requirements-docs.lock
	$(call NEW_VENV,.venv-docs)
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

.venv-dist/stamp:
	$(call NEW_VENV,.venv-dist)
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check 'twine>=6' 'check-wheel-contents>=0.6'
	@touch $@

define NEW_VENV
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11 or later: name it, as in make PYTHON=python3.13, or install it; on Debian and Ubuntu: apt install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo 'make: $(PYTHON) has no venv, or no pip for it; on Debian and Ubuntu: apt install $(notdir $(PYTHON))-venv' >&2; exit 1; }
	@echo 'setting up $(1) with $(PYTHON)'
	@$(PYTHON) -m venv $(1)
endef
