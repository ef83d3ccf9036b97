//! The one place that reads the time; `clippy.toml` disallows every other way.
//!
//! * **Monotonic time** ([`instant`], [`since`]) is tokio's, so a test that pauses and advances tokio's clock moves
//!   timers and measurements together. A release build reads the operating system's monotonic clock. A thread outside
//!   a tokio runtime always does.
//! * **Wall time** ([`timestamp`], [`system_time`], [`local_time`]) is the system's real-time clock, read every time,
//!   because NTP and administrators set it. It may jump, also backwards.
//! * **Simulated wall time**: a test gives a tokio runtime a [`SimulatedWallClock`]. It runs at the speed of that
//!   runtime's monotonic clock, from the time that the test chose, and the test may set it. All threads of the runtime
//!   read it, those for blocking work too. It belongs to a runtime, as tokio's paused clock does, because tests run
//!   beside one another in one process. Without one, a reading costs one relaxed load more than the system's clock.
//!
//! The kernel's own times are never simulated: modification times of files, start times of processes, the boot time.
//!
//! The type of monotonic times is [`Instant`], because tokio's sleeps take it. Only a condition variable needs the
//! standard library's.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::runtime::{Handle, Id};

pub use tokio::time::Instant;

/// The monotonic time.
#[expect(clippy::disallowed_methods, reason = "every other place reads it here")]
pub fn instant() -> Instant {
    Instant::now()
}

/// The monotonic time since `earlier`; zero if that is in the future.
pub fn since(earlier: Instant) -> Duration {
    instant().saturating_duration_since(earlier)
}

/// The wall time.
#[expect(clippy::disallowed_methods, reason = "every other place reads it here")]
pub fn timestamp() -> Timestamp {
    simulated().unwrap_or_else(Timestamp::now)
}

/// The wall time, for what compares it with times of files and certificates.
#[expect(clippy::disallowed_methods, reason = "every other place reads it here")]
pub fn system_time() -> SystemTime {
    simulated().map_or_else(SystemTime::now, SystemTime::from)
}

/// The wall time in the system's time zone.
pub fn local_time() -> Zoned {
    timestamp().to_zoned(TimeZone::system())
}

/// Whether a [`SimulatedWallClock`] was ever created: never in production.
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
/// Those in use.
static SIMULATED: RwLock<Vec<Arc<RuntimeClock>>> = RwLock::new(Vec::new());

/// The wall time of one runtime.
struct RuntimeClock {
    runtime: Id,
    /// A monotonic time and the wall time then.
    origin: Mutex<(Instant, Timestamp)>,
}

/// Whether the current runtime has a [`SimulatedWallClock`]: it runs in virtual time.
pub(super) fn is_simulated() -> bool {
    simulated().is_some()
}

fn simulated() -> Option<Timestamp> {
    if IS_SIMULATED.load(Ordering::Relaxed) { simulated_here() } else { None }
}

#[cold]
fn simulated_here() -> Option<Timestamp> {
    let runtime = Handle::try_current().ok()?.id();
    let clocks = SIMULATED.read();
    let clock = clocks.iter().rfind(|clock| clock.runtime == runtime)?;
    let (since_instant, at) = *clock.origin.lock();
    Some(later(at, since(since_instant)))
}

/// Saturates.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The wall clock of a tokio runtime, for tests, until it is dropped. The latest one counts.
#[must_use = "it ends when it is dropped"]
pub struct SimulatedWallClock {
    runtime: Handle,
    clock: Arc<RuntimeClock>,
}

impl SimulatedWallClock {
    /// Gives the runtime a wall clock that now shows this time.
    pub fn start(runtime: &Handle, now: Timestamp) -> Self {
        let entered = runtime.enter();
        let clock =
            Arc::new(RuntimeClock { runtime: runtime.id(), origin: Mutex::new((instant(), now)) });
        drop(entered);
        SIMULATED.write().push(Arc::clone(&clock));
        IS_SIMULATED.store(true, Ordering::Relaxed);
        let runtime = runtime.clone();
        Self { runtime, clock }
    }

    /// Sets it, forwards or backwards, as NTP or an administrator would; monotonic time goes on. A clock that drifts is
    /// set again and again.
    pub fn set(&self, now: Timestamp) {
        let _entered = self.runtime.enter();
        *self.clock.origin.lock() = (instant(), now);
    }
}

impl Drop for SimulatedWallClock {
    fn drop(&mut self) {
        let is_other = |clock: &Arc<RuntimeClock>| !Arc::ptr_eq(clock, &self.clock);
        SIMULATED.write().retain(is_other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const HOUR: Duration = Duration::from_secs(3600);

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn monotonic_and_simulated_wall_time_advance_together() {
        let _clock = SimulatedWallClock::start(&Handle::current(), t(1000));
        let begin = instant();
        for passed in [3600, 7200] {
            advance(HOUR).await;
            assert_eq!(since(begin).as_secs(), passed);
            assert_eq!(timestamp(), t(1000 + passed.cast_signed()));
            assert_eq!(system_time(), SystemTime::from(timestamp()));
            assert_eq!(local_time().timestamp(), timestamp());
        }
        tokio::time::sleep(HOUR).await;
        assert_eq!(since(begin), HOUR * 3);
        let ends = (begin + HOUR * 9).saturating_duration_since(instant());
        assert_eq!((ends, since(begin + HOUR * 9)), (HOUR * 6, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn setting_the_wall_clock_moves_only_wall_time() {
        let clock = SimulatedWallClock::start(&Handle::current(), t(1000));
        let begin = instant();
        for now in [t(50), t(100_000), Timestamp::MIN] {
            clock.set(now);
            assert_eq!((timestamp(), since(begin)), (now, Duration::ZERO));
        }
        clock.set(t(50));
        advance(HOUR).await;
        assert_eq!((timestamp(), since(begin)), (t(50 + 3600), HOUR));
        clock.set(Timestamp::MAX);
        advance(HOUR).await;
        assert_eq!(timestamp(), Timestamp::MAX);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread of the runtime is meant")]
    fn a_simulated_wall_clock_belongs_to_all_threads_of_one_runtime() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        };
        let (one, other) = (runtime(), runtime());
        let clock = SimulatedWallClock::start(one.handle(), t(1000));
        let blocking = || tokio::task::spawn_blocking(timestamp);
        let year = |at: Timestamp| at.to_zoned(TimeZone::UTC).year();
        let read = |runtime: &tokio::runtime::Runtime| {
            let worker = runtime.block_on(async { tokio::spawn(async { timestamp() }).await });
            let blocking = runtime.block_on(async { blocking().await });
            let outside = runtime.block_on(async { timestamp() });
            [worker.unwrap(), blocking.unwrap(), outside].map(year)
        };
        assert_eq!(read(&one), [1970; 3]);
        assert!(read(&other).iter().all(|year| *year > 2000));
        assert!(year(timestamp()) > 2000, "outside of runtimes");

        let inner = SimulatedWallClock::start(one.handle(), t(-1000));
        assert_eq!(read(&one), [1969; 3]);
        drop(inner);
        assert_eq!(read(&one), [1970; 3]);
        drop(clock);
        assert!(read(&one).iter().all(|year| *year > 2000));
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "compares with the system's clock")]
    async fn without_simulation_wall_time_is_the_systems() {
        advance(HOUR).await;
        let before = SystemTime::now();
        let (read, local, stamp) = (system_time(), local_time(), timestamp());
        let after = SystemTime::now();
        for read in [read, local.into(), stamp.into()] {
            assert!((before..=after).contains(&read), "{read:?}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares with the system's clock")]
    #[expect(clippy::disallowed_types, reason = "compares with the system's clock")]
    fn threads_outside_of_runtimes_read_the_systems_monotonic_clock() {
        let before = std::time::Instant::now();
        let read = std::thread::spawn(instant).join().unwrap();
        let after = std::time::Instant::now();
        assert!((before..=after).contains(&read.into_std()));
    }
}
