//! Time that passes only when nothing else is left to do, so that no bound depends on the machine's load.
//!
//! A node's test is in virtual time: its kubelet, its runtime and its API server share one thread, whose clock goes to the
//! next timer as soon as nothing is ready. What is ready after a system call is known at once there, because the other
//! side is on the same thread. Another process or thread would never get its time, so a test with one says [`real_time`].

use std::cell::{Cell, OnceCell};

use jiff::Timestamp;
use kubelet::base::clock::SimulatedWallClock;
use tokio::runtime::Handle;

thread_local! {
    static CLOCK: OnceCell<SimulatedWallClock> = const { OnceCell::new() };
    static IS_REAL: Cell<bool> = const { Cell::new(false) };
}

/// Puts this test's runtime into virtual time.
pub(crate) fn begin() {
    if IS_REAL.get() {
        return;
    }
    CLOCK.with(|clock| {
        clock.get_or_init(|| {
            tokio::time::pause();
            SimulatedWallClock::start(&Handle::current(), Timestamp::now())
        });
    });
}

/// Keeps this test in real time, before it has a node. The reason is for the reader.
pub(crate) fn real_time(_because: &str) {
    let is_begun = CLOCK.with(|clock| clock.get().is_some());
    assert!(!is_begun, "this test is in virtual time already");
    IS_REAL.set(true);
}
