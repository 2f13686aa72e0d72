# Every target sets up what it needs; nothing is installed globally except Debian packages, which
# `setup` names (and installs when it is root).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.locked
UV_VERSION := 0.13.8
SEEDS ?= 2000
FIRST_SEED ?= 1
WORLD ?= core
ROUNDS ?= 5
DELAY_MS ?= 0
LOSS ?= 0
CUT_EVERY_S ?= 0
MUTANTS ?= 400
SEED ?= 1
SECONDS ?= 60
KILLS ?= 500
WRITER_KILLS ?= 2000
CHAOS_SECONDS ?= 180
MINUTES ?= 10
BROKERS ?= brokerd
HOW ?= kill
REFERENCE ?= rabbitmq
AWAY_SECONDS ?= 15
FAULT_SEEDS ?= 30
KILL_EVERY ?= 1
LETTERS ?= 1000000
DECODER_SECONDS ?= 1800
IMAGES ?= 5000000
RELEASE ?= HEAD
QUEUE_STEPS ?= 1000000
ENCODING_EXAMPLES ?= 100000
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/telemetry:$(CURDIR)
# Tests start thousands of Python processes: where the environment forbids bytecode, as images do, each
# of them compiles all that it imports, and `make test` takes twice as long.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## virtual environment in .venv with the locked packages

$(STAMP): requirements/dev.txt pyproject.toml
	@echo "setup: virtual environment with the locked packages (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements/dev.txt
	@$(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $(STAMP)

# With pip, which the environment has anyway. FORM=compiled: as an installation, since a checkout runs as it is.
install: ## users: brokerd and brokerctl in .venv without the developers' packages; EXTRAS="operator telemetry", FORM=compiled
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(if $(filter compiled,$(FORM)),$(BIN)/python tools/compiled.py --check)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  $(patsubst %,-r requirements/%.txt,broker $(EXTRAS))
	@$(if $(filter compiled,$(FORM)),rm -f $(STAMP); HATCH_BUILD_HOOK_ENABLE_CUSTOM=true,) $(BIN)/python -m pip install \
	  --quiet --disable-pip-version-check --no-deps --force-reinstall $(if $(filter compiled,$(FORM)),,--editable) .
	@found="$$(env -u PYTHONPATH $(BIN)/brokerd --version)"; echo "$$found"; case "$(FORM),$$found" in \
	  compiled,*", compiled"*) ;; compiled,*) echo "install: not compiled: python tools/compiled.py says why" >&2; exit 1;; esac

lock: ## renew the lock files in requirements/ from pyproject.toml
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip compile pyproject.toml --extra operator --extra telemetry --group dev --generate-hashes --no-annotate --no-header -q -o requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml -c requirements/dev.txt --generate-hashes --no-annotate --no-header -q -o requirements/broker.txt
	$(BIN)/uv pip compile pyproject.toml -c requirements/dev.txt --extra operator --generate-hashes --no-annotate --no-header -q -o requirements/operator.txt
	$(BIN)/uv pip compile pyproject.toml -c requirements/dev.txt --extra telemetry --generate-hashes --no-annotate --no-header -q -o requirements/telemetry.txt
	$(BIN)/uv pip compile --group release --python-version 3.11 --generate-hashes --no-annotate --no-header -q -o requirements/release.txt
	printf '%s\n' hatchling==1.27.0 $$(grep -oE '^(mypy|setuptools)==[^ ]+' requirements/dev.txt) | $(BIN)/uv pip compile - --python-version 3.11 --generate-hashes --no-annotate --no-header -q -o requirements/build.txt

demo: setup ## the main job in the embedded mode on real input, with a table of what was counted
	@$(BIN)/python -m examples.orders.demo

# The parts of `make test`, the longest first: JOBS of them side by side, since most of what they do is
# to wait for servers. No part shares a port, a directory or a network namespace with another.
PARTS := "tests/integration/cluster tests/integration/federation tests/integration/grpc" \
  "tests/integration/amqp tests/integration/management tests/integration/queues tests/integration/security" \
  tests/operator tests/e2e \
  tests/compat tests/integration/clients tests/fuzz \
  "tests/test_tidy.py tests/test_documents.py tests/test_import_circles.py tests/test_settings.py tests/test_spec_coverage.py tests/unit tests/transcripts tests/properties tests/simulation tests/mutation" \
  tests/telemetry tests/chaos
# Three keep two cores busy: a part waits for a third of its time. `make test JOBS=1` is one after the other.
JOBS ?= 3
# Longer than any part takes on a machine twice as slow: then it is interrupted and says where it was.
PART_MINUTES ?= 75
PART_LOGS := build/tests

# They run under coverage; the parts leave these unit tests out. Not $(MAKE) below: `make -n` would run it.
COMPILED_TESTS := $(addprefix tests/unit/,amqp core raft storage) tests/transcripts \
  tests/unit/http2 tests/unit/server/grpc/test_publication_reader.py \
  tests/integration/amqp/test_enquiry.py tests/integration/amqp/test_transactions.py tests/fuzz/test_targets.py
PURE_TESTS := $(addprefix tests/unit/,amqp cluster core federation http2 raft telemetry) tests/transcripts

test: setup compiled ## all tests, JOBS=N parts side by side (PYTEST_OPTIONS=… goes to each pytest)
	@bash tools/cluster/setup.sh
	@mkdir -p $(PART_LOGS); rm -f $(PART_LOGS)/second-tries
	@# Tests put stand-ins where the compiled form takes nothing but the class; test-compiled asks for it.
	@unset BROKERD_COMPILED; status=0; { printf '%s\n' coverage $(PARTS) compiled; } | \
	  PART_LOGS=$(PART_LOGS) PART_MINUTES=$(PART_MINUTES) PYTEST_OPTIONS='$(PYTEST_OPTIONS)' \
	  PURE_TESTS='$(PURE_TESTS)' xargs -P $(JOBS) -d '\n' -n 1 bash tools/test_part.sh || status=1; \
	PART_LOGS=$(PART_LOGS) bash tools/test_part.sh second-tries; exit $$status

test-quick: lint ## before each commit: lint, and the unit tests (about 3 minutes)
	@$(BIN)/pytest -q -m 'not slow' $(PYTEST_OPTIONS) tests/test_tidy.py tests/test_documents.py tests/unit tests/transcripts

coverage: setup ## the pure rooms by their unit tests and transcripts: every line, every branch
	@echo "== coverage: $(PURE_TESTS)"; status=0; \
	$(BIN)/python -m coverage run -m pytest -q $(PYTEST_OPTIONS) $(PURE_TESTS) || \
	{ echo "== coverage: what failed: run again by themselves"; \
	  $(BIN)/python -m coverage run --append -m pytest -q $(PYTEST_OPTIONS) --last-failed \
	    --last-failed-no-failures none $(PURE_TESTS) || status=1; }; \
	$(BIN)/python -m coverage report || { status=1; \
	  echo "coverage: a pure room needs a test for each line and branch (a->b) named above," \
	    "or has one that nothing reaches: delete it"; }; exit $$status

compiled: setup ## the rooms on a message's way as C, for BROKERD_COMPILED=1; nothing is done if they are there
	@$(BIN)/python tools/compiled.py

test-compiled: compiled ## the compiled form: the pure rooms' tests, three worlds of the simulator, members as processes
	@BROKERD_COMPILED=1 $(BIN)/pytest -q $(PYTEST_OPTIONS) $(COMPILED_TESTS)
	@for world in core:300 broker:100 cluster:30; do BROKERD_COMPILED=1 $(BIN)/python -m tests.simulation.run \
	  --world $${world%:*} --seeds $${world#*:} --first-seed $(FIRST_SEED) --processes 2 || exit 1; done

spec-coverage: setup ## rules of the specification, and the tests that cover them
	@$(BIN)/python tools/spec_coverage.py

lint: setup ## ruff, mypy strict, import contracts, buf's rules for protos/
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/buf lint
	@$(BIN)/python tools/check_protos.py

protos: setup ## generate brokerd/rpc/v1 from protos/
	@$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. protos/brokerd/rpc/v1/*.proto

sim: setup ## SEEDS=N FIRST_SEED=N WORLD=core|broker|cluster: the Raft core, queues, or whole members, simulated
	@$(BIN)/python -m tests.simulation.run --world $(WORLD) --seeds $(SEEDS) --first-seed $(FIRST_SEED) --processes 2

sim-nightly: setup ## 100,000 seeds of the core, 20,000 of the broker, 5,000 of the cluster (200 of 30 members), all planted bugs (hours)
	@$(BIN)/python -m tests.simulation.run --seeds 100000 --first-seed $(FIRST_SEED) --processes 2
	@$(BIN)/python -m tests.simulation.run --world broker --seeds 20000 --first-seed $(FIRST_SEED) --processes 2
	@$(BIN)/python -m tests.simulation.run --world cluster --seeds 5000 --first-seed $(FIRST_SEED) --processes 2
	@$(BIN)/python -m tests.simulation.run --world cluster --profile many --seeds 200 --first-seed $(FIRST_SEED) --processes 2
	@$(BIN)/python -m tests.simulation.run --mutants all

mutation: setup ## MUTANTS=N (0: all) SEED=S: would the tests notice? Raft core, log on disk, queue machine
	@$(BIN)/python -m tools.mutation --mutants $(MUTANTS) --seed $(SEED)

fuzz: setup ## SECONDS=N for each decoder: atheris, two at a time
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

operator-faults: setup ## FAULT_SEEDS=N FIRST_SEED=N KILL_EVERY=N: the operator behind a faulty API, killed at each write
	@bash tools/cluster/setup.sh api
	@FAULT_SEEDS=$(FAULT_SEEDS) FIRST_SEED=$(FIRST_SEED) KILL_EVERY=$(KILL_EVERY) $(BIN)/pytest -q -s tests/operator/api/test_faults_api.py

# The three below take hours; each prints figures for docs/reliability.md and goes on after a failure.
kill-nightly: setup ## KILLS=N of members under load, WRITER_KILLS=N of the writer of the log
	@status=0; $(BIN)/python -m tests.integration.wal_kill --rounds $(WRITER_KILLS) || status=1; \
	$(BIN)/python -m tests.chaos.kills --rounds $(KILLS) --seed $(FIRST_SEED) || status=1; exit $$status

redrive-nightly: setup ## LETTERS=N: dead letters go back while leaders are killed, and each is counted
	@$(BIN)/python -m tests.integration.redrive_kills --letters $(LETTERS)

chaos-nightly: setup ## CHAOS_SECONDS=N for each of 32 configurations, BROKERS="brokerd rabbitmq" (root)
	@$(BIN)/python -m tests.chaos.run --matrix --broker $(BROKERS) --seconds $(CHAOS_SECONDS) --seed $(FIRST_SEED)

home-down: setup ## BROKERS="brokerd rabbitmq" HOW=stop AWAY_SECONDS=N: what is answered while the home of classic queues is away (root)
	@$(BIN)/python -m tests.chaos.home_down --broker $(BROKERS) --how $(HOW) --away-seconds $(AWAY_SECONDS)

fuzz-nightly: setup ## DECODER_SECONDS=N for each decoder, IMAGES=N of damaged logs, QUEUE_STEPS=N against the model, ENCODING_EXAMPLES=N of joined commands
	@status=0; $(BIN)/python -m tests.fuzz --seconds $(DECODER_SECONDS) || status=1; \
	$(BIN)/python -m tests.properties.wal_images --images $(IMAGES) --first-seed $(FIRST_SEED) || status=1; \
	QUEUE_STEPS=$(QUEUE_STEPS) $(BIN)/pytest -q tests/properties/test_queue_machine.py || status=1; \
	ENCODING_EXAMPLES=$(ENCODING_EXAMPLES) $(BIN)/pytest -q tests/properties/test_queue_encodings.py || status=1; exit $$status

flood-nightly: setup ## MINUTES=N of each flood of 1 KiB, 100 KiB and 10 MiB into a member of 512 MiB (root)
	@$(BIN)/python -m bench.flood --minutes $(MINUTES)

telemetry-load: setup ## ROWS="180000 5000000": cost of a run of the telemetry job, beside DuckDB (minutes)
	$(BIN)/python -m tests.telemetry.load --rows $(or $(ROWS),180000)

# Each world's seed stands in the name of its test; two cores take 20 minutes.
telemetry-worlds: setup ## WORLDS=N in plain Python, SPARK_WORLDS=N through Spark: clusters that suffer, planted bugs in counters
	@WORLDS=$(or $(WORLDS),2000) SPARK_WORLDS=$(or $(SPARK_WORLDS),50) $(BIN)/pytest -q -o tmp_path_retention_policy=failed \
	  tests/telemetry/test_plain_worlds.py tests/telemetry/test_worlds.py

telemetry-kills: setup ## RUN_KILLS=N of a run of the telemetry job, spread over its length (ten minutes for 30)
	$(BIN)/python -m tests.telemetry.driver_kills --kills $(or $(RUN_KILLS),30)

federation-kills: setup ## ROUNDS=N FIRST_SEED=N UPSTREAM=rabbitmq DOWNSTREAM=rabbitmq: kills at both ends of links and shovels, messages counted; DELAY_MS=50 LOSS=0.02 CUT_EVERY_S=5: over a bad line; MINUTES=M: no kill after that
	@$(BIN)/python -m tests.integration.federation_kills --rounds $(ROUNDS) --seed $(FIRST_SEED) \
		--delay-ms $(DELAY_MS) --loss $(LOSS) --cut-every-s $(CUT_EVERY_S) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(UPSTREAM),--upstream $(UPSTREAM)) $(if $(DOWNSTREAM),--downstream $(DOWNSTREAM))

fuzz-differential: setup compiled ## SEEDS=N FIRST_SEED=N REFERENCE=rabbitmq|brokerd: random sequences to RabbitMQ 3.10.8 and brokerd, or to one member and three
	@$(BIN)/python -m tests.compat.fuzz --sequences $(SEEDS) --first-seed $(FIRST_SEED) --reference $(REFERENCE)

bench: setup ## ROUNDS=N: brokerd and RabbitMQ side by side
	@$(BIN)/python -m bench.run --rounds $(ROUNDS)

client-suites: setup ## the established clients' own test suites against brokerd and RabbitMQ (root)
	@bash tools/cluster/setup.sh
	@$(BIN)/python -m tests.integration.clients.suites

cluster-up: setup ## a real two-node Kubernetes on this machine (root)
	@bash tools/cluster/setup.sh node
	@bash tools/cluster/node.sh up 2

cluster-env: ## where its kubectl, helm and kubeconfig are: eval "$$(make -s cluster-env)"
	@bash tools/cluster/node.sh env

cluster-down: ## end it, leaving nothing behind
	@bash tools/cluster/node.sh down

images: setup compiled ## broker, operator and telemetry images from their Dockerfiles
	@bash tools/cluster/setup.sh node
	@bash tools/cluster/images.sh build

wheel: setup $(if $(filter python,$(FORM)),,compiled) ## the distribution, in build/wheel; FORM=python: without the compiled form
	@rm -rf build/wheel; HATCH_BUILD_HOOK_ENABLE_CUSTOM=$(if $(filter python,$(FORM)),false,true) $(BIN)/uv build -q --wheel --out-dir build/wheel .; ls build/wheel/*.whl

deb: wheel ## the broker as a Debian package in build/deb, with its unit of systemd; FORM=python as for the wheel
	@PYTHON=$(BIN)/python bash tools/deb.sh

compose-run: setup ## examples/compose as its README says, on a Docker of its own (root)
	@bash tools/cluster/setup.sh compose
	@$(BIN)/python -m tests.integration.compose_run --image $$(bash tools/cluster/images.sh build broker)

sbom: images ## what the three images hold, as CycloneDX, in build/sbom (root)
	@"$$(bash tools/release_tools.sh)/python" tools/sbom.py --out build/sbom $$(bash tools/cluster/images.sh build)

bundle: setup ## the operator as an OLM bundle in build/bundle, judged by OLM's validators
	@bash tools/cluster/build.sh api
	@eval "$$(bash tools/cluster/node.sh env)"; $(BIN)/python tools/bundle.py --out build/bundle --helm "$$(command -v helm)"
	@bash tools/olm/verify.sh build/bundle

e2e: images ## the end-to-end tests on that Kubernetes (or on the cluster KUBECONFIG names)
	@$(BIN)/pytest -q tests/e2e

e2e-nightly: images ## RELEASE=COMMIT: all end-to-end tests, with an upgrade from that commit (root)
	@git worktree remove --force .k8s/release 2>/dev/null; git worktree add --detach .k8s/release $(RELEASE)
	@CLUSTER_CACHE=$(CURDIR)/.k8s/release/.k8s/cache bash .k8s/release/tools/cluster/images.sh build broker operator
	@E2E_NIGHTLY=1 E2E_RELEASE=$(CURDIR)/.k8s/release $(BIN)/pytest -q tests/e2e

.PHONY: compiled test-compiled telemetry-load telemetry-kills federation-kills help setup lock demo test test-quick coverage spec-coverage lint protos sim mutation fuzz kill-nightly redrive-nightly chaos-nightly home-down fuzz-nightly flood-nightly fuzz-differential bench client-suites cluster-up cluster-env cluster-down images wheel compose-run e2e sbom bundle operator-faults e2e-nightly
