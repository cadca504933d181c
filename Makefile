# The commands a newcomer needs. Each makes the environment first when it is not there.

PYTHON := $(shell for python in .venv/bin/python python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONPATH VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos rehearsal simulate simulate-mutations lint proto docs bench clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with everything in it (minutes, once)
	@test -n "$(PYTHON)" || { echo "make: there is no Python 3.11, 3.12 or 3.13 on the PATH" >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py

demo: setup ## Run a real application through the real system, start to end
	@python tools/demo.py

test: setup ## Run all tests: unit, integration, end to end
	@python -m pytest -q tests

chaos: setup ## Kill processes of a running system: KILLS=200, SEED=n repeats one
	@python -m tests.chaos.storm --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))

rehearsal: setup ## Run the manifests' pods on hosts that are network namespaces, roll them, cut and kill hosts (root)
	@python -m deploy.rehearsal $(if $(STEPS),--steps $(STEPS)) $(if $(JSON),--json $(JSON))

simulate: setup ## Play SEEDS=10000 runs with random faults on the manager's core; SEED=n plays one and prints its history
	@python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000))

simulate-mutations: setup ## Break the core on purpose, and list the seeds that find it out
	@python -m tests.simulation.mutations

lint: setup ## Check style, types, the rooms' walls, the protos, what is generated, and that the release before fits
	ruff check .
	ruff format --check .
	mypy services kernels tools tests examples benchmarks deploy
	lint-imports
	buf lint
	python tools/generate_protos.py --check
	python tools/settings_table.py --check
	python -m tools.observe.dashboards --check
	python tools/freeze_release.py --check

proto: setup ## Generate the code of the protos
	python tools/generate_protos.py

docs: setup ## Generate docs/configuration.md and Grafana's dashboards
	python tools/settings_table.py
	python -m tools.observe.dashboards

bench: setup ## Run the benchmarks of the whole, quickly; benchmarks/README.md lists them and those of each service
	@for name in machine idle imports streams outside writes start cold_start; do python benchmarks/$$name.py --quick || exit 1; done

clean: ## Remove the environment and everything built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
