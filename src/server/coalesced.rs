//! Texts that take a while to be made, for many who ask at once: each is made after all whom it is for have
//! asked, so nobody is told anything old, and there are never two in the making.

use bytes::Bytes;
use std::{
    io,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::{sync::Mutex, task::spawn_blocking};

/// The making of one kind of text.
#[derive(Debug, Default)]
pub(super) struct Coalesced {
    /// How many have been begun.
    begun: AtomicU64,
    /// Who has asked and has no text yet.
    waiting: AtomicUsize,
    /// Held while one is made.
    last: Mutex<Last>,
}

/// The text that was made last, for as long as somebody waits who may have it.
#[derive(Debug, Default)]
struct Last {
    number: u64,
    text: Option<Bytes>,
}

/// Somebody who waits.
struct Waiting<'a>(&'a Coalesced);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let others = self.0.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
        if others == 0
            && let Ok(mut last) = self.0.last.try_lock()
        {
            last.text = None;
        }
    }
}

impl Coalesced {
    /// The text, made on a thread for what blocks, after this was called.
    ///
    /// # Errors
    /// `make` panicked.
    pub(super) async fn get(
        &self,
        make: impl FnOnce() -> String + Send + 'static,
    ) -> io::Result<Bytes> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // The last to go takes the text along, after the lock is free.
        let _waiting = Waiting(self);
        let begun = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.number > begun
            && let Some(text) = &last.text
        {
            return Ok(text.clone());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let text = spawn_blocking(make).await.map_err(io::Error::other)?;
        let text = Bytes::from(text);
        *last = Last {
            number,
            text: Some(text.clone()),
        };
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[tokio::test]
    async fn who_asks_while_one_is_made_shares_the_next() {
        let (coalesced, made) = (Arc::new(Coalesced::default()), Arc::new(AtomicU64::new(0)));
        let (begins, begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let first = {
            let (coalesced, made) = (coalesced.clone(), made.clone());
            let make = move || {
                begins.send(()).unwrap();
                wait.recv().unwrap();
                format!("{}", made.fetch_add(1, Ordering::SeqCst))
            };
            tokio::spawn(async move { coalesced.get(make).await.unwrap() })
        };
        tokio::task::spawn_blocking(move || begun.recv().unwrap())
            .await
            .unwrap();
        let ask = || {
            let (coalesced, made) = (coalesced.clone(), made.clone());
            let make = move || format!("{}", made.fetch_add(1, Ordering::SeqCst));
            tokio::spawn(async move { coalesced.get(make).await.unwrap() })
        };
        let others: Vec<_> = (0..20).map(|_| ask()).collect();
        let gone = ask();
        while coalesced.waiting.load(Ordering::SeqCst) < 22 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        go.send(()).unwrap();
        assert_eq!(first.await.unwrap(), "0");
        for other in others {
            assert_eq!(other.await.unwrap(), "1");
        }
        assert!(gone.await.is_err());
        // Nothing is kept for nobody, and the next who asks is told what is so then.
        assert!(coalesced.last.lock().await.text.is_none());
        assert_eq!(ask().await.unwrap(), "2");
    }

    #[tokio::test]
    async fn one_that_fails_is_made_again_for_the_next() {
        let coalesced = Coalesced::default();
        assert!(coalesced.get(|| panic!("as told")).await.is_err());
        assert_eq!(coalesced.get(|| "well".into()).await.unwrap(), "well");
    }
}
