# Everything here works on a fresh Debian machine as root; hack/install-deps.sh brings what is missing.

.PHONY: demo run test bench bench-containerd lint fmt clean

# Runs the example pods on a private containerd and takes them down again.
demo:
	hack/demo.sh

# The same, but stays until Ctrl-C.
run:
	hack/demo.sh --stay

# All tests. Those that need containerd say so and are skipped where it is missing, unless CI=true.
test:
	@hack/install-deps.sh || echo "going on without what could not be installed"
	@hack/build-images.sh || echo "going on without the images"
	cargo test --no-fail-fast

# Costs of a node on a simulated runtime, into target/bench/node.md.
bench:
	cargo bench --bench node

# Latencies on a real containerd, into target/bench/containerd.md.
bench-containerd:
	hack/install-deps.sh
	hack/build-images.sh
	cargo bench --bench node -- --containerd

lint:
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	@if command -v shellcheck >/dev/null; then shellcheck -x hack/*.sh; fi

fmt:
	cargo fmt

clean:
	cargo clean
