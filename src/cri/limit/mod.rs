//! Admission of heavy calls: as many at once as the runtime does well with, first come first served.
//! A call that overstays keeps running but gives its place back, so one hung pod delays no other.

mod state;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::rpc::Rpc;
use state::{LimitState, Ticket};

/// One lane. Clones share it.
#[derive(Clone)]
pub struct Limiter {
    queue: Arc<Mutex<Queue>>,
}

struct Queue {
    state: LimitState,
    waiters: HashMap<Ticket, oneshot::Sender<()>>,
}

impl Queue {
    /// Lets everyone go who may.
    fn dispatch(&mut self) {
        while let Some(ticket) = self.state.grant() {
            // A waiter that is gone gives the place back itself, when its `Waiting` drops.
            if let Some(waiter) = self.waiters.remove(&ticket) {
                let _ = waiter.send(());
            }
        }
    }
}

impl Default for Limiter {
    fn default() -> Limiter {
        let queue = Queue {
            state: LimitState::new(),
            waiters: HashMap::new(),
        };
        Limiter {
            queue: Arc::new(Mutex::new(queue)),
        }
    }
}

impl Limiter {
    /// Calls that may be under way at once, right now.
    pub fn limit(&self) -> u32 {
        self.queue.lock().state.limit()
    }

    /// Waits for a place and makes the call. `well` tells whether the call's duration says anything
    /// about the runtime's speed. Dropping the future gives the place, in the queue or under way, back.
    pub async fn run<F>(&self, rpc: Rpc, call: F, well: fn(&F::Output) -> bool) -> F::Output
    where
        F: Future,
    {
        let place = self.enter(rpc).await;
        let begin = Instant::now();
        let stay = self.queue.lock().state.stay(rpc);
        let mut call = std::pin::pin!(call);
        match timeout_at(begin + stay, call.as_mut()).await {
            Ok(output) => {
                let now = Instant::now();
                place.leave(|state| match well(&output) {
                    true => state.done(rpc, now - begin, now),
                    false => state.abandon(),
                });
                output
            }
            Err(_) => {
                place.leave(|state| state.overstay(rpc, stay));
                tracing::debug!(%rpc, ?stay, "call is slow; others no longer wait for it");
                let output = call.await;
                if well(&output) {
                    self.queue.lock().state.late(rpc, begin.elapsed());
                }
                output
            }
        }
    }

    async fn enter(&self, rpc: Rpc) -> Place {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut queue = self.queue.lock();
            let ticket = queue.state.arrive(rpc, Instant::now());
            queue.waiters.insert(ticket, sender);
            queue.dispatch();
            ticket
        };
        let place = Place {
            limiter: self.clone(),
            ticket,
            held: true,
        };
        // The sender is only dropped after sending or by `place`, which is alive.
        let _ = receiver.await;
        place
    }
}

/// A place in the queue, then under way; given back when dropped.
struct Place {
    limiter: Limiter,
    ticket: Ticket,
    held: bool,
}

impl Place {
    fn leave(mut self, how: impl FnOnce(&mut LimitState)) {
        self.held = false;
        let mut queue = self.limiter.queue.lock();
        how(&mut queue.state);
        queue.dispatch();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.held {
            return;
        }
        let mut queue = self.limiter.queue.lock();
        queue.waiters.remove(&self.ticket);
        if !queue.state.leave(self.ticket) {
            queue.state.abandon();
        }
        queue.dispatch();
    }
}
