# Ichor: two commands matter, `make up` and `make test`. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

TARGET_DIR  ?= $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
TRIPLE      := x86_64-unknown-linux-gnu
RELEASE     := $(TARGET_DIR)/$(TRIPLE)/release
CARGO       ?= cargo
# A cluster of the newcomer's own; tests use other names.
CLUSTER     ?= ichor
CONTROLPLANES ?= 3
WORKERS     ?= 1

export CARGO_TARGET_DIR := $(TARGET_DIR)
export PATH := $(CURDIR)/build/tools/go/bin:$(HOME)/.cargo/bin:$(PATH)

# A run from an empty cache gains nothing from incremental builds and pays for them in disk.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

say = printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help
help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | column -t -s "$$(printf '\t')"

.PHONY: setup
setup: ## Install what building and testing need (apt packages, toolchains)
	@scripts/setup

.PHONY: build
build: setup ## Build bin/ichorctl and the node image (with what `make components` built, where it did)
	@$(call say,building the node and ichorctl (release))
	@ICHOR_COMMIT=$$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) \
		$(CARGO) build --release --locked -p ichor-init -p ichor-cli
	@mkdir -p bin build
	@install -s -m 0755 $(RELEASE)/ichorctl bin/ichorctl
	@install -s -m 0755 $(RELEASE)/ichor build/ichor
	@$(call say,building the root image)
	@$(CARGO) xtask image
	@$(CARGO) xtask image --bare --out build/bare.squashfs
	@ls -lh bin/ichorctl build/ichor build/rootfs.squashfs | awk '{print "    " $$9 "  " $$5}'

.PHONY: components
components: setup ## Build Kubernetes, etcd, containerd and the rest, and the images of a cluster
	@$(call say,components of a node)
	@scripts/components
	@$(CARGO) build --release --locked -p ichor-flannel
	@install -s -m 0755 $(RELEASE)/flannel build/components/flannel
	@$(CARGO) xtask images
	@mkdir -p bin && ln -sfn ../build/components/kube bin/kubectl

.PHONY: up
up: setup ## Build everything, then start a local Kubernetes cluster
	@$(MAKE) components
	@$(MAKE) build
	@$(call say,starting the cluster '$(CLUSTER)')
	@bin/ichorctl cluster create --name $(CLUSTER) --controlplanes $(CONTROLPLANES) --workers $(WORKERS)

.PHONY: down
down: ## Stop and remove the local cluster
	@bin/ichorctl cluster destroy --name $(CLUSTER)

.PHONY: lint
lint: setup ## Format check, clippy with warnings denied, the rules of the house
	@$(call say,lint)
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@$(CARGO) xtask tidy

.PHONY: test
test: setup ## All tests: units, live machines, parity with the original client, a real kernel
	@$(MAKE) lint
	@$(MAKE) test-unit
	@$(MAKE) components
	@$(MAKE) build
	@$(MAKE) test-live
	@$(MAKE) test-parity
	@$(MAKE) test-vm

.PHONY: test-unit
test-unit: setup ## Tests that need no machine
	@$(call say,unit tests)
	@$(CARGO) test --workspace --locked --quiet --exclude ichor-live

# `make test-unit` runs every target for a moment and always draws the same; this draws anew, and more.
FUZZ_SEED    := $(or $(FUZZ_SEED),$(shell date +%s))
FUZZ_SECONDS ?= 60
FUZZ_FACTOR  ?= 20

.PHONY: fuzz
fuzz: setup ## Everything that reads bytes from outside, for longer (FUZZ_SEED=, FUZZ_SECONDS= per target)
	@$(call say,fuzzing: FUZZ_SEED=$(FUZZ_SEED) FUZZ_SECONDS=$(FUZZ_SECONDS))
	@ICHOR_FUZZ_SEED=$(FUZZ_SEED) ICHOR_FUZZ_SECONDS=$(FUZZ_SECONDS) ICHOR_FUZZ_DIR=$(CURDIR)/build/fuzz \
		$(CARGO) test --locked --workspace --exclude ichor-live --test fuzz -- --nocapture
	@ICHOR_FUZZ_SEED=$(FUZZ_SEED) ICHOR_FUZZ_FACTOR=$(FUZZ_FACTOR) $(CARGO) test --locked -p ichor-config --test properties

LIVE_SUITES := api cluster config faults network status why dashboard etcd_client etcd \
	kubernetes kubernetes_kill kubernetes_life budgets security gateway containers kube_api control_plane machines joining operations

.PHONY: test-live
test-live: ## Tests on live sandbox machines (needs `make build`)
	@$(call say,live machines)
	@ICHOR_ROOT=$(CURDIR) scripts/live $(LIVE_SUITES)

.PHONY: test-life
test-life: ## Images and authorities of a cluster in use change (part of `make test-live`)
	@$(call say,the life of a cluster)
	@ICHOR_ROOT=$(CURDIR) $(CARGO) test --locked -p ichor-live --test kubernetes_life -- --test-threads=1 --nocapture

.PHONY: test-upgrade
test-upgrade: ## From the minor version of Kubernetes before to this one (builds that one too; needs `make components build`)
	@$(call say,another minor version)
	@scripts/kubernetes-before
	@$(CARGO) xtask images --before
	@ICHOR_ROOT=$(CURDIR) $(CARGO) test --locked -p ichor-live --test kubernetes_upgrade -- --nocapture

.PHONY: test-parity
test-parity: ## The original's own client library as the judge (needs `make build`)
	@$(call say,parity with the original client)
	@$(CARGO) build --locked -p ichor-cosi --example state-server
	@$(CARGO) build --locked -p ichor-resource -p ichor-config -p ichor-discovery -p ichor-cli --examples
	@cd tests/parity && ICHOR_ROOT=$(CURDIR) ICHOR_IMAGE=$(CURDIR)/build/bare.squashfs \
		ICHOR_STATE_SERVER=$(TARGET_DIR)/$(TRIPLE)/debug/examples/state-server \
		ICHOR_EXAMPLES=$(TARGET_DIR)/$(TRIPLE)/debug/examples \
		go test -count=1 -timeout 15m ./...

.PHONY: boot-vm
boot-vm: build ## Boot the node on a real kernel in QEMU and leave it running
	@scripts/vm run

.PHONY: test-vm
test-vm: ## Boot, configure, reboot and stop the node on a real kernel (needs `make build`)
	@$(call say,a real kernel)
	@scripts/vm test

.PHONY: test-clock
test-clock: ## Kubernetes on a real kernel whose clock moves forward by years (needs `make components build`; takes a while)
	@$(call say,a clock that moves forward)
	@scripts/vm clock

.PHONY: bench
bench: build ## One table of the numbers that matter, beside the original's where it can run
	@scripts/bench

.PHONY: deny
deny: ## Licences, bans and sources of dependencies (needs cargo-deny)
	@cargo deny check bans licenses sources

.PHONY: clean
clean: ## Remove what was built
	@rm -rf bin build $(TARGET_DIR)
