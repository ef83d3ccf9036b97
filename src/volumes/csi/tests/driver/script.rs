//! What the driver does instead of what it is asked for.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tonic::Code;

/// How a call is answered.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    Honest,
    /// Returns this error; nothing is done.
    Fail(Code, String),
    /// Waits, then does it.
    Delay(Duration),
    /// Does it only after a release.
    Hang,
    /// Returns this error only after a release; nothing is done.
    HangThenFail(Code, String),
    /// Returns success; nothing is done.
    Skip,
    /// Does it and returns this error.
    DoThenFail(Code, String),
    /// Does it, and responds only after a release.
    DoThenHang,
}

impl Behaviour {
    pub(crate) fn fail(code: Code) -> Self {
        Self::Fail(code, "as scripted".into())
    }

    pub(crate) fn hang_then_fail(code: Code) -> Self {
        Self::HangThenFail(code, "as scripted".into())
    }

    pub(crate) fn do_then_fail(code: Code) -> Self {
        Self::DoThenFail(code, "as scripted".into())
    }
}

struct ScriptRule {
    method: String,
    /// Of one volume only.
    volume: Option<String>,
    /// How often it applies; `None` is always.
    times: Option<u32>,
    behaviour: Behaviour,
}

/// Rules for calls; the first that applies counts.
#[derive(Clone, Default)]
pub(crate) struct Script {
    rules: Arc<Mutex<Vec<ScriptRule>>>,
    releases: watch::Sender<u64>,
}

impl Script {
    /// The next call of the method, by its name in the specification, behaves so.
    pub(crate) fn once(&self, method: &str, behaviour: Behaviour) {
        self.add(method, None, Some(1), behaviour);
    }

    /// All calls of the method behave so.
    pub(crate) fn always(&self, method: &str, behaviour: Behaviour) {
        self.add(method, None, None, behaviour);
    }

    /// Calls of the method for one volume behave so.
    pub(crate) fn of_volume(&self, method: &str, volume: &str, behaviour: Behaviour) {
        self.add(method, Some(volume.into()), None, behaviour);
    }

    pub(crate) fn add(
        &self,
        method: &str,
        volume: Option<String>,
        times: Option<u32>,
        behaviour: Behaviour,
    ) {
        self.rules.lock().unwrap().push(ScriptRule {
            method: method.into(),
            volume,
            times,
            behaviour,
        });
    }

    /// Forgets all rules. Calls that hang still do.
    pub(crate) fn clear(&self) {
        self.rules.lock().unwrap().clear();
    }

    /// Lets all calls go on that have begun.
    pub(crate) fn release(&self) {
        self.releases.send_modify(|number| *number += 1);
    }

    /// Waits for the first release after this call.
    pub(super) fn next_release(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut releases = self.releases.subscribe();
        async move {
            let _ = releases.changed().await;
        }
    }

    pub(super) fn take(&self, method: &str, volume: &str) -> Behaviour {
        let mut rules = self.rules.lock().unwrap();
        let applies = |rule: &ScriptRule| {
            let of_volume = rule.volume.as_deref();
            rule.method == method && of_volume.is_none_or(|only| only == volume)
        };
        let Some(at) = rules.iter().position(applies) else {
            return Behaviour::Honest;
        };
        let rule = &mut rules[at];
        let behaviour = rule.behaviour.clone();
        if let Some(times) = &mut rule.times {
            *times -= 1;
            if *times == 0 {
                rules.remove(at);
            }
        }
        behaviour
    }
}
