//! What a node costs: memory, idle work, latencies, on a simulated runtime or on a real containerd.
//!
//! `cargo bench --bench node` measures against the fake runtime in a process of its own and writes
//! `target/bench/node.md`; `-- --containerd` measures against a private containerd and writes
//! `target/bench/containerd.md`; `-- --load` requests `/pods` and `/metrics` two thousand times a second, and
//! writes into `target/bench/load.md` what that does to the probes and starts of pods. `BENCH_PODS=0,100` and `BENCH_WINDOW=10` (seconds) make it shorter.
// What it observes happens in real time, so it reads the real clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub
)]

mod bare_client;
mod containerd;
mod fake_process;
mod generator;
mod load;
mod probed;
mod process;
mod simulated;

#[allow(dead_code, unused_imports)]
#[path = "../../tests/support/mod.rs"]
mod support;

fn main() {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let args = args.iter().map(String::as_str).collect::<Vec<_>>();
    // As many threads as the work needs; the kubelet and the runtime need the cores.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    match args.as_slice() {
        ["--fake-runtime", socket, events] => {
            runtime.block_on(fake_process::serve(socket.as_ref(), *events == "events"));
        }
        words if words.contains(&"--containerd") => runtime.block_on(containerd::measure()),
        words if words.contains(&"--load") => runtime.block_on(load::measure()),
        _ => runtime.block_on(simulated::measure()),
    }
}
