//! When and where to reconnect after the event stream ended, and what to log. Pure.

use std::time::Duration;

use super::changes::RuntimeEventSource;
use crate::cri::error::CriError;

const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Maximum delay before reconnecting to a runtime that is unavailable.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Maximum delay before reconnecting to a runtime that returned an error.
const MAX_WAIT_AFTER_ERROR: Duration = Duration::from_secs(30);
/// Minimum and maximum delay before a runtime without events is tried again, because it may have been upgraded or
/// reconfigured.
const WAIT_WITHOUT_EVENTS: Duration = Duration::from_secs(60);
const MAX_WAIT_WITHOUT_EVENTS: Duration = Duration::from_secs(300);
/// A stream that lasted this long was stable: the next failure counts as the first one.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// After this many streams in a row that were closed immediately without an event, the runtime counts as having none.
/// CRI-O does this unless its `enable_pod_events` is set.
pub(super) const MAX_EMPTY_STREAMS: u32 = 3;

/// How the event stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventsEnded {
    /// The runtime closed the stream without an error.
    #[error("the runtime closed its event stream")]
    Closed { any_event: bool },
    #[error(transparent)]
    Failed(#[from] CriError),
}

/// What to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventsReport {
    Lost,
    NoEvents,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reconnect {
    pub(super) wait: Duration,
    pub(super) report: Option<EventsReport>,
}

/// The state of reconnecting.
#[derive(Debug)]
pub(super) struct ReconnectState {
    /// The source to try next; never [`RuntimeEventSource::None`].
    source: RuntimeEventSource,
    /// The last wait before reconnecting; zero after a stable stream.
    wait: Duration,
    /// The last delay for a runtime without events; zero if it may have some.
    wait_without_events: Duration,
    empty_streams: u32,
}

impl ReconnectState {
    pub(super) fn new() -> ReconnectState {
        ReconnectState {
            source: RuntimeEventSource::Cri,
            wait: Duration::ZERO,
            wait_without_events: Duration::ZERO,
            empty_streams: 0,
        }
    }

    pub(super) fn source(&self) -> RuntimeEventSource {
        self.source
    }

    /// Decides how to go on after a stream ended that had lasted for `lasted`.
    pub(super) fn after(&mut self, ended: &EventsEnded, lasted: Duration) -> Reconnect {
        let source = std::mem::replace(&mut self.source, RuntimeEventSource::Cri);
        match ended {
            EventsEnded::Failed(CriError::Unimplemented { .. })
                if source == RuntimeEventSource::Cri =>
            {
                self.source = RuntimeEventSource::Containerd;
                Reconnect { wait: Duration::ZERO, report: None }
            }
            EventsEnded::Failed(CriError::Unimplemented { .. }) => self.no_events(),
            EventsEnded::Closed { any_event: false } if lasted < STABLE_AFTER => {
                self.empty_stream()
            }
            EventsEnded::Failed(error) if !error.is_unavailable() => {
                self.lost(lasted, MAX_WAIT_AFTER_ERROR)
            }
            EventsEnded::Failed(_) | EventsEnded::Closed { .. } => self.lost(lasted, MAX_WAIT),
        }
    }

    fn empty_stream(&mut self) -> Reconnect {
        self.empty_streams = self.empty_streams.saturating_add(1);
        if self.empty_streams >= MAX_EMPTY_STREAMS {
            return self.no_events();
        }
        Reconnect { wait: FIRST_WAIT * self.empty_streams, report: None }
    }

    fn no_events(&mut self) -> Reconnect {
        let known = !self.wait_without_events.is_zero();
        self.wait_without_events =
            (self.wait_without_events * 2).clamp(WAIT_WITHOUT_EVENTS, MAX_WAIT_WITHOUT_EVENTS);
        Reconnect {
            wait: self.wait_without_events,
            report: (!known).then_some(EventsReport::NoEvents),
        }
    }

    fn lost(&mut self, lasted: Duration, cap: Duration) -> Reconnect {
        let repeated = !self.wait.is_zero() && lasted < STABLE_AFTER;
        let doubled = if repeated { self.wait * 2 } else { Duration::ZERO };
        *self = ReconnectState { wait: doubled.clamp(FIRST_WAIT, cap), ..ReconnectState::new() };
        Reconnect { wait: self.wait, report: (!repeated).then_some(EventsReport::Lost) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::rpc::Rpc;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(3600);
    const EMPTY: EventsEnded = EventsEnded::Closed { any_event: false };
    const ENDED: EventsEnded = EventsEnded::Closed { any_event: true };

    fn unimplemented() -> EventsEnded {
        let (rpc, message) = (Rpc::GetContainerEvents, String::new());
        EventsEnded::Failed(CriError::Unimplemented { rpc, message })
    }

    fn away() -> EventsEnded {
        EventsEnded::Failed(CriError::unavailable(Rpc::GetContainerEvents, "away"))
    }

    fn broken() -> EventsEnded {
        EventsEnded::Failed(CriError::invalid(Rpc::GetContainerEvents, "broken"))
    }

    /// The waits in milliseconds and the reports of attempts that end so.
    fn history(
        reconnect: &mut ReconnectState,
        ends: &[(&EventsEnded, Duration)],
    ) -> Vec<(u128, Option<EventsReport>)> {
        let next = ends.iter().map(|(ended, lasted)| {
            let next = reconnect.after(ended, *lasted);
            (next.wait.as_millis(), next.report)
        });
        next.collect()
    }

    #[test]
    fn streams_that_are_closed_at_once_are_given_up_and_tried_rarely() {
        let mut reconnect = ReconnectState::new();
        let ends = [(&EMPTY, SHORT); 7];
        assert_eq!(
            history(&mut reconnect, &ends),
            [
                (100, None),
                (200, None),
                (60_000, Some(EventsReport::NoEvents)),
                (120_000, None),
                (240_000, None),
                (300_000, None),
                (300_000, None),
            ]
        );
        assert_eq!(reconnect.source(), RuntimeEventSource::Cri);
        // An event proves that there are some again.
        let ends = [(&ENDED, SHORT), (&EMPTY, SHORT)];
        let expected = [(100, Some(EventsReport::Lost)), (100, None)];
        assert_eq!(history(&mut reconnect, &ends), expected);
    }

    #[test]
    fn a_quiet_stream_that_lasted_is_no_empty_one() {
        let mut reconnect = ReconnectState::new();
        let ends = [(&EMPTY, LONG); 5];
        let expected = [(100, Some(EventsReport::Lost)); 5];
        assert_eq!(history(&mut reconnect, &ends), expected);
    }

    #[test]
    fn an_outage_between_empty_streams_resets_their_count() {
        let mut reconnect = ReconnectState::new();
        let away = away();
        history(&mut reconnect, &[(&EMPTY, SHORT), (&EMPTY, SHORT)]);
        let ends = [(&away, SHORT), (&EMPTY, SHORT), (&EMPTY, SHORT)];
        let expected = [(100, Some(EventsReport::Lost)), (100, None), (200, None)];
        assert_eq!(history(&mut reconnect, &ends), expected);
    }

    #[test]
    fn without_the_call_containerds_events_are_tried_before_it_is_given_up() {
        let mut reconnect = ReconnectState::new();
        let missing = unimplemented();
        let mut sources = vec![];
        let mut next = vec![];
        for _ in 0..4 {
            sources.push(reconnect.source());
            next.extend(history(&mut reconnect, &[(&missing, SHORT)]));
        }
        let (cri, containerd) = (RuntimeEventSource::Cri, RuntimeEventSource::Containerd);
        assert_eq!(sources, [cri, containerd, cri, containerd]);
        let report = Some(EventsReport::NoEvents);
        let expected = [(0, None), (60_000, report), (0, None), (120_000, None)];
        assert_eq!(next, expected);
    }

    #[test]
    fn waits_grow_to_a_cap_and_a_good_stream_starts_them_over() {
        let table = [(away(), 3_000), (broken(), 30_000), (ENDED, 3_000)];
        for (ended, cap) in table {
            let mut reconnect = ReconnectState::new();
            let next = history(&mut reconnect, &[(&ended, SHORT); 12]);
            let (waits, reports): (Vec<_>, Vec<_>) = next.into_iter().unzip();
            assert_eq!(waits[..4], [100, 200, 400, 800], "{ended}");
            assert_eq!(waits.last(), Some(&cap), "{ended}");
            assert_eq!(reports.iter().flatten().count(), 1, "{ended}");
            let next = history(&mut reconnect, &[(&ended, LONG)]);
            assert_eq!(next, [(100, Some(EventsReport::Lost))], "{ended}");
        }
    }
}
