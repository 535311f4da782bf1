# Ichor: two commands matter, `make up` and `make test`. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

TARGET_DIR  ?= $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
TRIPLE      := x86_64-unknown-linux-gnu
# `dev` is what tests, their images and local clusters share; `release` is for what is published and measured.
PROFILE     ?= dev
# What one build makes. Dependencies get the features of everything that is selected, so tests select everything, and
# once: another selection would build half of the dependencies a second time.
SELECT      ?= -p ichor-init -p ichor-cli -p ichor-flannel -p ichor-xtask
EVERYTHING  := --workspace --all-targets
BUILT       := $(TARGET_DIR)/$(TRIPLE)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
CARGO       ?= cargo
# A cluster of the newcomer's own; tests use other names.
CLUSTER     ?= ichor
# `sandbox` machines are namespaces of this host, `qemu` machines have a kernel of their own.
PROVIDER    ?= sandbox
CONTROLPLANES ?= $(if $(filter qemu,$(PROVIDER)),1,3)
WORKERS     ?= 1

export CARGO_TARGET_DIR := $(TARGET_DIR)
export PATH := $(CURDIR)/build/vm/bin:$(CURDIR)/build/tools/go/bin:$(HOME)/.cargo/bin:$(PATH)

# The same for every step: two programs hold it, and would be built anew with all their tests where it differs.
export ICHOR_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

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

# A release is optimized for what a node was seen to do (`make profile`): what it does often for speed, the rest for size.
ifeq ($(PROFILE),release)
SEEN := $(CURDIR)/build/release.profdata
PROFILED := --config "target.$(TRIPLE).rustflags=['-C', 'profile-use=$(SEEN)', '-C', 'llvm-args=-disable-vp -no-pgo-warn-mismatch']"
endif

$(CURDIR)/build/release.profdata: crates/init/release.profdata.xz
	@mkdir -p build && xz -dc $< > $@

COMPILE = $(CARGO) $(PROFILED) build --profile $(PROFILE) --locked $(SELECT)
XTASK = $(BUILT)/ichor-xtask

.PHONY: build
build: setup $(SEEN) ## Build bin/ichorctl and the node image (with what `make components` built, where it did)
	@$(call say,building the node and ichorctl ($(PROFILE)))
	@$(COMPILE)
	@mkdir -p bin build
	@install -s -m 0755 $(BUILT)/ichorctl bin/ichorctl
	@install -s -m 0755 $(BUILT)/ichor build/ichor
	@$(call say,building the root image)
	@$(XTASK) image
	@$(XTASK) image --bare --out build/bare.squashfs
	@ls -lh bin/ichorctl build/ichor build/rootfs.squashfs | awk '{print "    " $$9 "  " $$5}'

.PHONY: release
release: ## The same as it is published and measured: with link-time and profile-guided optimization (takes minutes)
	@$(MAKE) components build PROFILE=release

.PHONY: profile
profile: setup ## Let a node work and write what it does often for `make release` (needs root; takes twice as long)
	@$(COMPILE)
	@XTASK=$(XTASK) SELECT="$(SELECT)" scripts/profile

.PHONY: images-os
images-os: ## Fetch kernel and boot loaders, then build a disk image and an ISO (needs `make build`; ICHOR_KERNEL_PACKAGE= for other kernels)
	@$(call say,images of the operating system)
	@scripts/os-parts
	@mkdir -p build/os/images
	@bin/ichorctl image build metal --output build/os/images/metal-amd64.raw
	@bin/ichorctl image build iso --output build/os/images/metal-amd64.iso
	@bin/ichorctl image build installer --output build/os/images/installer-amd64.tar

.PHONY: components
components: setup $(SEEN) ## Build Kubernetes, etcd, containerd and the rest, and the images of a cluster
	@$(call say,components of a node)
	@scripts/components
	@$(COMPILE)
	@install -s -m 0755 $(BUILT)/flannel build/components/flannel
	@$(XTASK) images
	@mkdir -p bin && ln -sfn ../build/components/kube bin/kubectl

# Steps whose output nobody reads go to a file; a failed one shows the end of it.
UP_LOG := build/up.log

.PHONY: up
up: ## Build everything, then start a local Kubernetes cluster (PROVIDER=qemu for virtual machines)
	@scripts/preflight $$(($(CONTROLPLANES) + $(WORKERS)))
	@mkdir -p build && : > $(UP_LOG)
	@echo "Output of the steps goes to $(UP_LOG)."
	@scripts/step 1/4 "packages and toolchains" $(UP_LOG) scripts/setup
	@scripts/step 2/4 "Kubernetes, etcd, containerd and the rest" $(UP_LOG) $(MAKE) components
	@scripts/step 3/4 "the node and ichorctl" $(UP_LOG) $(MAKE) build
	@if [ "$(PROVIDER)" = qemu ]; then scripts/vm prepare >> $(UP_LOG) 2>&1; fi
	@echo "[4/4] the cluster '$(CLUSTER)'"
	@if bin/ichorctl cluster show --name $(CLUSTER) >/dev/null 2>&1; then \
		bin/ichorctl cluster start --name $(CLUSTER); \
	else \
		bin/ichorctl cluster create $(PROVIDER) --name $(CLUSTER) --controlplanes $(CONTROLPLANES) --workers $(WORKERS); \
	fi

.PHONY: down
down: ## Stop and remove the local cluster
	@bin/ichorctl cluster destroy --name $(CLUSTER)

.PHONY: lint
lint: setup ## Format check, clippy with warnings denied, the rules of the house
	@$(call say,lint)
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@$(COMPILE)
	@$(XTASK) tidy

.PHONY: test
test: export SELECT := $(EVERYTHING)
test: setup ## All tests: units, live machines, parity with the original client, a real kernel
	@rm -f build/flaky
	@$(MAKE) lint
	@$(MAKE) test-unit
	@$(MAKE) components
	@$(MAKE) build
	@$(MAKE) test-live
	@$(MAKE) test-conformance
	@$(MAKE) test-parity
	@$(MAKE) test-vm
	@if [ -s build/flaky ]; then $(call say,flaky: passed at the second try only: $$(tr '\n' ' ' < build/flaky)); fi

.PHONY: test-unit
test-unit: setup ## Tests that need no machine
	@$(call say,unit tests)
	@scripts/unit

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

# Longest first, so that the lanes end together.
LIVE_SUITES := kubernetes_life machines etcd joining control_plane kubernetes operations kubernetes_kill containers security \
	why network config api cluster status dashboard etcd_client kube_api
# These measure time or memory: nothing else may run beside them.
LIVE_ALONE := faults gateway budgets

.PHONY: test-live
test-live: ## Tests on live sandbox machines (needs `make build`)
	@$(call say,live machines)
	@ICHOR_ROOT=$(CURDIR) scripts/live $(LIVE_SUITES) --alone $(LIVE_ALONE)

.PHONY: test-life
test-life: ## Images and authorities of a cluster in use change (part of `make test-live`)
	@$(call say,the life of a cluster)
	@ICHOR_ROOT=$(CURDIR) scripts/live kubernetes_life

.PHONY: test-upgrade
test-upgrade: ## From the minor version of Kubernetes before to this one (builds that one too; needs `make components build`)
	@$(call say,another minor version)
	@scripts/kubernetes-before
	@$(COMPILE)
	@$(XTASK) images --before
	@ICHOR_ROOT=$(CURDIR) scripts/live kubernetes_upgrade

# FOCUS=… runs the tests whose names match, BEFORE=1 those of the minor version before, LANES=… so many at the same time;
# PATCH=FILE changes the machine configurations, FAULT=… breaks what tests/conformance/faults names, KEEP=1 leaves the cluster running.
CONFORMANCE = $(if $(FOCUS),--focus '$(FOCUS)') $(if $(BEFORE),--before) $(if $(LANES),--parallel $(LANES)) $(if $(PATCH),--patch '$(PATCH)') $(if $(FAULT),--fault '$(FAULT)') $(if $(KEEP),--keep)

.PHONY: conformance
conformance: components build conformance-images ## Kubernetes' own conformance tests on a local cluster (FOCUS=, BEFORE=1; takes an hour)
	@$(call say,conformance tests of Kubernetes)
	@XTASK=$(XTASK) scripts/conformance $(CONFORMANCE)

.PHONY: conformance-faults
conformance-faults: components build conformance-images ## Breaks a cluster in several ways and checks that the right conformance tests notice
	@for fault in tests/conformance/faults/*; do \
		$(call say,a fault on purpose: $$(basename $$fault)); \
		XTASK=$(XTASK) scripts/conformance --fault $$(basename $$fault); \
	done

.PHONY: conformance-images
conformance-images: # The tests and the images they use (needs `make components`)
	@$(call say,the tests of Kubernetes and their images)
	@scripts/components debian busybox conformance$(if $(BEFORE),-before)
	@$(if $(BEFORE),scripts/kubernetes-before)
	@$(COMPILE)
	@$(XTASK) images --conformance $(if $(BEFORE),--before)

.PHONY: test-conformance
test-conformance: conformance-images ## A few of Kubernetes' conformance tests (needs `make components build`)
	@$(call say,conformance tests of Kubernetes: a few)
	@XTASK=$(XTASK) scripts/conformance --smoke

.PHONY: test-parity
test-parity: ## The original's own client library as the judge (needs `make build`)
	@$(call say,parity with the original client)
	@$(CARGO) build --locked $(EVERYTHING)
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

.PHONY: test-qemu
test-qemu: ## Machines of QEMU as `ichorctl cluster create qemu` makes them: power, snapshots, leftovers (needs `make build`)
	@$(call say,machines of QEMU)
	@scripts/vm provider

.PHONY: test-os
test-os: ## Images of the operating system, each started by real firmware in QEMU, and their installation, upgrades (bad ones, too), power cuts (needs `make components build`; takes more than an hour)
	@$(call say,images that boot)
	@scripts/vm os

.PHONY: test-clock
test-clock: ## Kubernetes on a real kernel whose clock moves forward by years (needs `make components build`; takes a while)
	@$(call say,a clock that moves forward)
	@scripts/vm clock

.PHONY: test-newcomer
test-newcomer: ## A cluster on Debian 12 and 13 with systemd in QEMU, and set-up from nothing (needs `make components build`; takes half an hour)
	@$(call say,the machine of a newcomer)
	@scripts/newcomer

.PHONY: bench
bench: release ## One table of the numbers that matter, beside the original's where it can run
	@scripts/bench

.PHONY: deny
deny: ## Licences, bans and sources of dependencies (needs cargo-deny)
	@cargo deny check bans licenses sources

.PHONY: clean
clean: ## Remove what was built
	@rm -rf bin build $(TARGET_DIR)
