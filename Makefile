# Everything here works on a fresh Debian machine as root; hack/install-deps.sh brings what is missing.

.PHONY: demo run cluster cluster-demo swap-demo conformance conformance-subset conformance-storage install install-program uninstall release test-aarch64 test test-busy test-versions test-runtimes test-monitoring test-machine test-release soak histories faults measured-kubelet bench bench-load bench-go bench-cluster bench-containerd lint advisories lines fmt clean

TARGET := $(or $(CARGO_TARGET_DIR),target)

# Runs the example pods on a private containerd and takes them down again.
demo:
	hack/demo.sh

# The same, but stays until Ctrl-C.
run:
	hack/demo.sh --stay

# A cluster of two nodes made by kubeadm with this kubelet, in namespaces of its own, until Ctrl-C. KUBELET names a
# kubelet that is built already, also a Go one; ARGS=--metrics brings metrics-server. A minute until all pods are Ready.
cluster:
	hack/cluster.sh --stay $(ARGS)

# The same, but ends by itself when a Service answers and `kubeadm upgrade node` has changed the control plane: two minutes.
cluster-demo:
	hack/cluster.sh $(ARGS)

# Replaces the Go kubelet of a live node by this one (KUBELET, or a debug build), and back, under requests; fails if a
# container restarts, a request is lost, or the node is not Ready for a moment. Two minutes.
swap-demo:
	hack/swap-demo.sh

# Kubernetes' own node test suite, spec by spec, into docs/conformance.md; ARGS are those of the script. With
# ARGS="--vm --procs 1 --focus REGEX" in a virtual machine, for what wants cgroup v2, systemd, swap, CPUs or NUMA nodes.
conformance:
	hack/install-deps.sh --suite
	hack/conformance.py $(ARGS)

# The specs of it that are also Kubernetes' general conformance, with the kubelet that the tests use: minutes. Left out
# are those of probes, which wait for minutes each, and one that reads a log once as soon as its container runs, whether
# or not the container has written it.
conformance-subset:
	hack/install-deps.sh --suite
	cargo build --bin kubelet
	hack/conformance.py --kubelet $(TARGET)/debug/kubelet --label-filter '$(SUBSET)' --skip '$(LEFT_OUT)' --timeout 15m \
		--output $(TARGET)/conformance-subset --document $(TARGET)/conformance-subset/table.md
SUBSET := Conformance && NodeConformance && !Serial && !Slow && !Disruptive && !Flaky
LEFT_OUT := Probing container|retrieving logs from the container over websockets

# Kubernetes' own test suite of CSI volumes in a cluster of one node, spec by spec, into docs/conformance.md: half an hour.
# KUBELET names a kubelet that is built already, also a Go one, whose results stand beside ours. ARGS are those of the
# script.
conformance-storage:
	hack/install-deps.sh --suite
	hack/conformance.py --storage --procs 6 $(ARGS)

# The program (KUBELET, or a release build) with its unit and kubeadm's drop-in, the manual page and what completes the
# command line. KUBEADM=no leaves the drop-in out, for nodes without kubeadm and for those whose kubeadm package brings it.
# DESCRIBED_BY: a kubelet for this machine that prints manual and completions, where KUBELET is for another one.
PREFIX ?= /usr/local
KUBEADM ?= yes
DESCRIBED_BY ?= $(PROGRAM)
PROGRAM = $(or $(KUBELET),$(TARGET)/release/kubelet)
INTO = $(DESTDIR)$(PREFIX)
UNIT = $(INTO)/lib/systemd/system/kubelet.service
DROP_IN = $(UNIT).d/10-kubeadm.conf
MANUAL = $(INTO)/share/man/man8/kubelet.8
BASH = $(INTO)/share/bash-completion/completions/kubelet
ZSH = $(INTO)/share/zsh/site-functions/_kubelet
FISH = $(INTO)/share/fish/vendor_completions.d/kubelet.fish

install: install-program
	install -d $(dir $(MANUAL) $(BASH) $(ZSH) $(FISH))
	$(DESCRIBED_BY) man >$(MANUAL)
	$(DESCRIBED_BY) completion bash >$(BASH)
	$(DESCRIBED_BY) completion zsh >$(ZSH)
	$(DESCRIBED_BY) completion fish >$(FISH)

# What a node runs: a Go kubelet prints no manual.
install-program:
	@test -n "$(KUBELET)" || KUBELET_COMMIT=$$(git rev-parse --short=12 HEAD 2>/dev/null) cargo build --release --bin kubelet
	install -D -m 755 $(PROGRAM) $(INTO)/bin/kubelet
	install -d $(dir $(UNIT))
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' deploy/kubelet.service >$(UNIT)
	if [ "$(KUBEADM)" = yes ]; then install -d $(dir $(DROP_IN)) && \
		sed 's|/usr/local/bin/|$(PREFIX)/bin/|' deploy/10-kubeadm.conf >$(DROP_IN); fi

# What `make install` with the same PREFIX, DESTDIR and KUBEADM has written. A kubelet that runs is not stopped.
uninstall:
	rm -f $(INTO)/bin/kubelet $(UNIT) $(MANUAL) $(BASH) $(ZSH) $(FISH)
	if [ "$(KUBEADM)" = yes ]; then rm -f $(DROP_IN); fi
	if [ -d $(dir $(DROP_IN)) ]; then rmdir --ignore-fail-on-non-empty $(dir $(DROP_IN)); fi

# Tarballs, packages, images, checksums and bills of materials of a release, into target/dist: a build for each
# architecture (minutes each), and the first time its tools. KUBELET packs a program that is built already.
release:
	hack/release.sh

# The tests for aarch64 on an emulated processor, those that need neither containers nor namespaces.
test-aarch64:
	hack/release.sh test aarch64

# All tests. Those that need containerd say so and are skipped where it is missing, unless CI=true. What failed
# is printed again at the end.
test:
	@hack/install-deps.sh || echo "going on without what could not be installed"
	@hack/build-images.sh || echo "going on without the images"
	@hack/build-containerd.sh || echo "going on without containerd 2"
	@hack/build-crio.sh || echo "going on without CRI-O"
	@hack/build-kubernetes.sh --control-plane --kubelet --kubeadm --metrics --storage || echo "going on without a cluster"
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-8} hack/failures.sh hack/tests.sh

# The same on a machine that is kept busy by other processes: half an hour.
test-busy:
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-8} hack/busy-test.sh

# The cluster's tests with the API servers of the version before and after the pinned one, which are built first:
# a quarter of an hour each. kubeadm takes one version alone.
VERSIONS ?= v1.35.4 v1.37.2
test-versions:
	@hack/install-deps.sh
	@hack/build-images.sh
	@hack/build-kubernetes.sh --control-plane --storage
	set -e; for version in $(VERSIONS); do \
		KUBERNETES_VERSION=$$version hack/build-kubernetes.sh --control-plane; \
		KUBERNETES_VERSION=$$version cargo test --test cluster -- rust-kubelet --skip kubeadm; done

# The runtimes that people have: the machine's containerd (Debian's is 1.6), containerd 1.7 and 2, CRI-O.
CONTAINERD_VERSIONS ?= v1.7.35
test-runtimes:
	@hack/install-deps.sh
	@hack/build-images.sh
	@hack/build-containerd.sh
	@hack/build-crio.sh
	CI=true cargo test --test containerd
	set -e; for version in $(CONTAINERD_VERSIONS); do \
		CONTAINERD_VERSION=$$version hack/build-containerd.sh; \
		CI=true CONTAINERD_VERSION=$$version cargo test --test containerd -- containerd::; done

# What needs systemd, logind, cgroup v2, project quotas, or servers of NFS and iSCSI, in a virtual machine: a node that is
# shut down, the usage of volumes by project quotas, volumes of those servers, the Debian package, a node that kubeadm
# makes with no check ignored, and the cgroups of pods beside those of the Go kubelet, with both drivers, exclusive CPUs
# and swap; then one kubelet takes the node of the other over, both ways.
# Software emulation: most of an hour.
test-machine:
	@hack/install-deps.sh
	@hack/build-images.sh
	@hack/build-kubernetes.sh --control-plane --kubelet --kubeadm
	cargo build
	hack/shutdown-test.sh
	hack/quota-test.sh
	hack/nfs-test.sh
	hack/iscsi-test.sh
	hack/package-test.sh
	hack/kubeadm-test.sh
	hack/cgroup-golden.py --vm --driver systemd --managers --swap --takeover
	hack/cgroup-golden.py --vm --managers --swap --takeover
	hack/cgroup-golden.py --vm --cgroup-v1 --driver systemd

# The pages of metrics of busy nodes of a cluster, with this kubelet and the Go kubelet, beside the recorded facts and the
# expressions of kubernetes-mixin; deploy/monitoring with a real Prometheus: every expression has data, each alert fires.
# RENEW_METRIC_FACTS=1 writes tests/metrics/go-kubelet.txt anew. Ten minutes with all that is built.
test-monitoring:
	@hack/install-deps.sh
	@hack/build-images.sh
	@hack/build-kubernetes.sh --control-plane --kubelet --kubeadm --metrics
	TEST_MONITORING=1 CI=true $(if $(RENEW_METRIC_FACTS),RENEW_METRIC_FACTS=1) cargo test --no-fail-fast --test cluster --test simulated -- monitoring:: of_a_busy_node --include-ignored

# Pods with three volumes each come and go on private containerds, and nothing may be left of them: no mount,
# directory, process, cgroup or memory. Prints what it counts.
soak:
	@hack/install-deps.sh
	@hack/build-images.sh
	SOAK_PODS=$${SOAK_PODS:-100} SOAK_ROUNDS=$${SOAK_ROUNDS:-10} SCENARIO_SECONDS=$${SCENARIO_SECONDS:-7200} \
		RUST_TEST_THREADS=1 cargo test --test containerd pods_come_and_go_and_leave_nothing

# The kubelet that is measured is the one that is shipped, not the one built with the test features.
MEASURED := $(abspath $(TARGET))/bench/kubelet
BENCH := KUBELET_UNDER_TEST=$(MEASURED) cargo bench --bench node --

measured-kubelet:
	cargo build --release --bin kubelet
	mkdir -p $(dir $(MEASURED))
	cp $(TARGET)/release/kubelet $(MEASURED)

# A few tests of the kubelet that is shipped, on a simulated runtime: `make bench` begins with them. They are no part of
# `make test`, because its link takes minutes.
test-release: measured-kubelet
	KUBELET_UNDER_TEST=$(MEASURED) cargo test --test simulated -- kubelet_restarts:: service::

# Histories of the whole node in virtual time: the kubelet, a container runtime and an API server in one thread, with
# users, faults and kills by a seed, which repeats one to the last call. HISTORIES says how many; SEED=N alone lives and
# prints one, with LOG=1 and the kubelet's log.
histories:
	$(if $(SEED)$(HISTORIES),,HISTORIES=1000) cargo test --profile bench --test histories

# The kubelet is killed at random moments while pods churn, and more goes wrong: on a simulated runtime, there also with
# volumes of CSI drivers that hang, fail, crash and lie, and on private containerds. Prints what it counts, into
# target/faults, and fails when a goal is missed; the story of each episode that failed is there too. FAULTS_SEED and
# FAULTS_EPISODE repeat one.
faults: measured-kubelet
	@hack/install-deps.sh
	@hack/build-images.sh
	@hack/build-containerd.sh || echo "going on without containerd 2"
	KUBELET_UNDER_TEST=$(MEASURED) FAULTS_KILLS=$${FAULTS_KILLS:-1000} FAULTS_OTHERS=$${FAULTS_OTHERS:-100} \
		FAULTS_CSI_KILLS=$${FAULTS_CSI_KILLS:-500} \
		FAULTS_CONTAINERD_KILLS=$${FAULTS_CONTAINERD_KILLS:-100} \
		FAULTS_CONTAINERD_OTHERS=$${FAULTS_CONTAINERD_OTHERS:-20} \
		SCENARIO_SECONDS=$${SCENARIO_SECONDS:-7200} RUST_TEST_THREADS=1 \
		cargo test --no-fail-fast --test simulated --test containerd faults_under_churn -- --nocapture
	$(MAKE) histories

# Costs of a node on a simulated runtime, into target/bench/node.md.
bench: test-release
	$(BENCH)

# What two thousand requests a second do to probes and to starts of pods, into target/bench/load.md.
bench-load: measured-kubelet
	$(BENCH) --load

# The same as bench for the Go kubelet, built from its module; changes some of the machine's sysctls and puts them back.
bench-go:
	hack/go-kubelet.sh build
	KUBELET_UNDER_TEST=$(abspath hack/go-kubelet.sh) cargo bench --bench node; \
		result=$$?; hack/go-kubelet.sh restore; exit $$result

# The node of a real cluster beside the Go kubelet, alternating, into target/bench/cluster.md. ARGS=--volumes measures pods
# with CSI volumes instead: ten minutes once all is built.
bench-cluster: measured-kubelet
	hack/install-deps.sh --suite
	hack/build-images.sh
	hack/build-kubernetes.sh --control-plane --kubelet
	hack/bench-cluster.py $(ARGS) here=$(MEASURED) go=$(TARGET)/tools/kubernetes/kubelet

# Latencies on a real containerd, into target/bench/containerd.md.
bench-containerd: measured-kubelet
	hack/install-deps.sh
	hack/build-images.sh
	$(BENCH) --containerd

# The tools that only this needs come with `hack/install-deps.sh --lint`.
lint:
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	@if command -v shellcheck >/dev/null; then (cd hack && shellcheck -x *.sh ../.ci/run); else echo "no shellcheck"; fi
	@deny=$$(command -v cargo-deny || echo $(TARGET)/tools/cargo-deny); if [ -x "$$deny" ]; then \
		"$$deny" --locked check licenses bans sources; else echo "no cargo-deny"; fi

# Known vulnerabilities of the crates, from a database on the internet, which lint does not use.
advisories:
	@hack/install-deps.sh --lint
	PATH="$$PATH:$(abspath $(TARGET))/tools" cargo deny --locked check advisories

# Lines of code and of tests by area with their budgets, long functions, comments, and the word "of". TREE names another
# checkout to count.
lines:
	cargo test --quiet --test architecture areas_stay_within -- --nocapture

fmt:
	cargo fmt

clean:
	cargo clean
