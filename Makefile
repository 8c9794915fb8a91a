# Two commands: `make demo` and `make test`. Each makes .venv where missing, installs what it needs, does its job.
# Needs a Linux machine with make and python3 (3.10 or newer, with venv). PYTHON= chooses another python3.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin
# An environment is up to date while these contents are those it was made from; then only the job runs.
STAMP  := $(VENV)/installed-$(firstword $(shell cat pyproject.toml tools/install.py | cksum))

.NOTPARALLEL:
.PHONY: help demo test test-full fuzz lint gpu-check bench clean

help:
	@echo 'make demo       train beside torch'"'"'s DataLoader, write demo-report.html (DATA=DIR|URL: on your own images)'
	@echo 'make test       lint, types, tests that need nothing but Python (10 minutes on 2 cores)'
	@echo 'make test-full  tests that need a browser, peers or the network; installs those'
	@echo 'make fuzz       a million damaged JPEGs through the decoder, an hour (COUNT=N)'
	@echo 'make bench      the comparison with other loaders (DATA=DIR|URL)'
	@echo 'make gpu-check  what only a machine with a GPU can show'
	@echo 'make lint       ruff and mypy'
	@echo 'make clean      remove .venv and all that was made'

demo: $(STAMP)-demo
	$(RUN)/gpuload demo $(if $(DATA),--data '$(DATA)')

test: lint
	$(RUN)/python -m pytest -m 'not full and not gpu'

test-full: $(STAMP)-dev $(STAMP)-bench $(STAMP)-demo $(STAMP)-ptx $(STAMP)-frameworks $(STAMP)-peers $(STAMP)-formats $(STAMP)-servers programs
	$(RUN)/python -m pytest -m full

fuzz: $(STAMP)-dev
	$(RUN)/python -m tests.fuzz --count $(or $(COUNT),1000000)

lint: $(STAMP)-dev
	$(RUN)/ruff check
	$(RUN)/mypy gpuload kernels

gpu-check: $(STAMP)-bench
	$(RUN)/python -m bench.gpu

bench: $(STAMP)-bench
	$(RUN)/python -m bench $(if $(DATA),'$(DATA)')

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-report.html

# Stamps of other contents go first: coming back to a branch must not find one that an environment since changed.
$(STAMP)-%: | $(RUN)/python
	@find $(VENV) -maxdepth 1 -name 'installed-*' ! -name '$(notdir $(STAMP))-*' -delete
	$(RUN)/python tools/install.py $*
	@touch $@

# pip is renewed: the one that old Pythons bring takes minutes over a CUDA build of torch, or gives up.
$(RUN)/python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) must be Python 3.10 or newer with venv (Debian, Ubuntu: apt install python3-venv)," \
	       "or name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip

# A browser for the pages, nginx and Samba for remote shards: those that are missing, where they may be installed.
.PHONY: programs
programs:
	@missing=""; \
	command -v chromium chromium-browser google-chrome >/dev/null || missing="$$missing chromium"; \
	PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || missing="$$missing nginx-light"; \
	PATH="$$PATH:/usr/sbin" command -v smbd >/dev/null || missing="$$missing samba"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $$missing >/dev/null; \
	  else echo "missing, so that some tests are skipped:$$missing" >&2; fi; fi
