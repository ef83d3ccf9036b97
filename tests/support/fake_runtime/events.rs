//! Container events: a bounded queue per subscriber; what does not fit is lost, as in real life.

use kubelet::cri::v1::ContainerEventResponse;
use tokio::sync::mpsc;
use tonic::Status;

/// What one subscriber may lag behind.
const QUEUE: usize = 1000;

#[derive(Default)]
pub struct Subscribers {
    senders: Vec<mpsc::Sender<Result<ContainerEventResponse, Status>>>,
    /// So many events are swallowed before the next is sent.
    lose: u32,
    /// Events that were dropped although there was a listener.
    pub lost: u64,
}

impl Subscribers {
    pub fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    pub fn len(&self) -> usize {
        self.senders.iter().filter(|sender| !sender.is_closed()).count()
    }

    pub fn subscribe(&mut self) -> mpsc::Receiver<Result<ContainerEventResponse, Status>> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        self.senders.push(sender);
        receiver
    }

    pub fn lose_next(&mut self, n: u32) {
        self.lose = n;
    }

    /// Ends all streams, with an error or as if the runtime closed them.
    pub fn end(&mut self, error: Option<Status>) {
        for sender in self.senders.drain(..) {
            if let Some(error) = &error {
                let _ = sender.try_send(Err(error.clone()));
            }
        }
    }

    pub fn send(&mut self, event: &ContainerEventResponse) {
        if self.lose > 0 {
            self.lose -= 1;
            self.lost += 1;
            return;
        }
        self.senders.retain(|sender| !sender.is_closed());
        for sender in &self.senders {
            if sender.try_send(Ok(event.clone())).is_err() {
                self.lost += 1;
            }
        }
    }
}
