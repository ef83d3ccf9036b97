//! A kubelet on threads of its own, so that it can die as a process does: all it does ends where it is.

use std::thread::JoinHandle;

use kubelet::app::{App, Periods};
use kubelet::config::KubeletConfig;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::support::log::{self, Log};

/// As few as can get into each other's way.
const THREADS: usize = 2;

/// How it is to end.
enum End {
    Requested,
    Killed,
}

/// A running kubelet. It is killed when dropped.
pub(crate) struct ThreadedKubelet {
    end: Option<oneshot::Sender<End>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl ThreadedKubelet {
    /// Starts it; returns once its sockets are open.
    pub(crate) async fn start(
        config: KubeletConfig,
        periods: Periods,
        log: Log,
    ) -> anyhow::Result<ThreadedKubelet> {
        let (built, is_built) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let of_its_threads = log.clone();
            let runtime = Builder::new_multi_thread()
                .worker_threads(THREADS)
                .enable_all()
                .on_thread_start(move || std::mem::forget(log::keep(&of_its_threads)))
                .build()?;
            let _log = log::keep(&log);
            runtime.block_on(live(config, periods, built, ended))
        });
        let kubelet = ThreadedKubelet { end: Some(end), thread: Some(thread) };
        is_built.await??;
        Ok(kubelet)
    }

    /// As SIGTERM does it.
    pub(crate) async fn stop(mut self) {
        self.end(End::Requested).await.expect("the kubelet ends well");
    }

    /// As kill -9 does it; what it was writing to the disk at the moment is written.
    pub(crate) async fn kill(mut self) {
        self.end(End::Killed).await.expect("nothing went wrong");
    }

    async fn end(&mut self, how: End) -> anyhow::Result<()> {
        if let Some(end) = self.end.take() {
            let _ = end.send(how);
        }
        let thread = self.thread.take().expect("it runs");
        let joined = tokio::task::spawn_blocking(move || thread.join());
        joined.await?.expect("no panic")
    }
}

impl Drop for ThreadedKubelet {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // Why a test fails is said by the test.
            let _ = thread.join();
        }
    }
}

async fn live(
    config: KubeletConfig,
    periods: Periods,
    built: oneshot::Sender<anyhow::Result<()>>,
    ended: oneshot::Receiver<End>,
) -> anyhow::Result<()> {
    let mut app = match App::build(config).await {
        Ok(app) => app,
        Err(error) => {
            let _ = built.send(Err(error));
            return Ok(());
        }
    };
    let _ = built.send(Ok(()));
    let (stop, stop_requested) = oneshot::channel::<()>();
    let stop_requested = async move {
        let _ = stop_requested.await;
        "the test"
    };
    app.periods = periods;
    let running = app.run_until(stop_requested);
    tokio::pin!(running);
    tokio::select! {
        early = &mut running => early,
        end = ended => match end {
            Ok(End::Requested) => {
                drop(stop);
                running.await
            }
            Ok(End::Killed) | Err(_) => Ok(()),
        },
    }
}
