//! What is found, and whether the node can be moved. Pure.

use crate::app::{Finding, Level};
use crate::base::named_enum;
use serde::Serialize;

/// Whether the node can be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Every pod stays as it is, and the kubelet starts.
    Safe,
    /// Something would end, restart or fail.
    NotSafe,
    /// Nothing speaks against it, but not everything could be found out.
    NotKnown,
}

named_enum! {
    /// What would become of a pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub enum Outcome {
        /// Running containers are stopped, and started again.
        Restarted = "restarted",
        /// Running containers are stopped for good.
        Stopped = "stopped",
        /// It is not accepted or not admitted.
        Refused = "refused",
        /// It keeps running, but what it needs for its next start is not supported here.
        CannotStartAgain = "cannot start again",
        /// What would become of it could not be found out.
        Unknown = "not known",
        /// Its termination continues.
        Ending = "ending",
        /// What runs stays as it is, and more is started, as by any kubelet.
        Starts = "starts",
        /// It stays as it is.
        Kept = "kept",
        /// It has ended before.
        Ended = "ended",
    }
}

impl Outcome {
    fn verdict(self) -> Verdict {
        match self {
            Self::Restarted | Self::Stopped | Self::Refused | Self::CannotStartAgain => {
                Verdict::NotSafe
            }
            Self::Unknown => Verdict::NotKnown,
            Self::Ending | Self::Starts | Self::Kept | Self::Ended => Verdict::Safe,
        }
    }
}

/// What would become of one pod, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodForecast {
    /// Its namespace.
    pub namespace: String,
    /// Its name; a static pod has the node's name as suffix.
    pub name: String,
    /// The UID under which it runs.
    pub uid: String,
    /// `api`, `file` or `http`.
    pub source: String,
    /// What would become of it.
    pub outcome: Outcome,
    /// Why, and what else is to be said about it.
    pub reasons: Vec<String>,
}

/// The result of a preflight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreflightReport {
    /// Whether the node can be moved.
    pub verdict: Verdict,
    /// The verdict in one line.
    pub summary: String,
    /// The pods, the worst outcome first.
    pub pods: Vec<PodForecast>,
    /// What concerns the node.
    pub findings: Vec<Finding>,
    /// What a later return to the other kubelet would cost.
    pub way_back: Vec<String>,
}

impl PreflightReport {
    /// Makes the report. `pods` is `None` if they could not be read.
    pub(super) fn new(
        pods: Option<Vec<PodForecast>>,
        mut findings: Vec<Finding>,
        way_back: Vec<String>,
    ) -> Self {
        let are_known = pods.is_some();
        let mut pods = pods.unwrap_or_default();
        pods.sort_by(|a, b| {
            let key = |pod: &PodForecast| (pod.outcome, pod.namespace.clone(), pod.name.clone());
            key(a).cmp(&key(b))
        });
        findings.sort_by_key(|finding| match finding.level {
            Level::Error => 0,
            Level::Unknown => 1,
            Level::Warning => 2,
            Level::Ok => 3,
        });
        let verdict = verdict(&pods, &findings, are_known);
        let summary = summary(verdict, &pods, &findings, are_known);
        Self { verdict, summary, pods, findings, way_back }
    }
}

/// Whatever is not safe counts more than what is not known, and that more than all that is safe.
fn verdict(pods: &[PodForecast], findings: &[Finding], are_known: bool) -> Verdict {
    let of_pods = pods.iter().map(|pod| pod.outcome.verdict());
    let of_findings = findings.iter().map(|finding| match finding.level {
        Level::Error => Verdict::NotSafe,
        Level::Unknown => Verdict::NotKnown,
        Level::Warning | Level::Ok => Verdict::Safe,
    });
    let all: Vec<_> = of_pods.chain(of_findings).collect();
    if all.contains(&Verdict::NotSafe) {
        Verdict::NotSafe
    } else if all.contains(&Verdict::NotKnown) || !are_known {
        Verdict::NotKnown
    } else {
        Verdict::Safe
    }
}

fn summary(
    verdict: Verdict,
    pods: &[PodForecast],
    findings: &[Finding],
    are_known: bool,
) -> String {
    let of_level = |level| findings.iter().filter(|one| one.level == level).count();
    let of_outcome = |outcome| pods.iter().filter(|pod| pod.outcome == outcome).count();
    let mut parts = Vec::new();
    let mut add = |count: usize, one: &str, many: &str| match count {
        0 => {}
        1 => parts.push(format!("1 {one}")),
        _ => parts.push(format!("{count} {many}")),
    };
    add(of_level(Level::Error), "error", "errors");
    add(of_level(Level::Unknown), "thing could not be found out", "things could not be found out");
    for (outcome, text) in [
        (Outcome::Restarted, "restarted"),
        (Outcome::Stopped, "stopped"),
        (Outcome::Refused, "refused"),
    ] {
        add(of_outcome(outcome), &format!("pod is {text}"), &format!("pods are {text}"));
    }
    let again = of_outcome(Outcome::CannotStartAgain);
    add(again, "pod cannot start again", "pods cannot start again");
    add(of_outcome(Outcome::Unknown), "pod is not known", "pods are not known");
    if are_known {
        let kept = of_outcome(Outcome::Kept);
        match kept {
            0 => parts.push("no pod runs that would be kept".to_owned()),
            1 => parts.push("1 pod is kept as it is".to_owned()),
            _ => parts.push(format!("{kept} pods are kept as they are")),
        }
    }
    let mut add = |outcome, text: &str| match of_outcome(outcome) {
        0 => {}
        count => parts.push(format!("{count} {text}")),
    };
    add(Outcome::Starts, "being started");
    add(Outcome::Ending, "ending");
    add(Outcome::Ended, "ended before");
    let begin = match verdict {
        Verdict::Safe => "safe",
        Verdict::NotSafe => "not safe",
        Verdict::NotKnown => "not known whether it is safe",
    };
    format!("{begin}: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(outcome: Outcome) -> PodForecast {
        PodForecast {
            namespace: "n".to_owned(),
            name: outcome.as_str().to_owned(),
            uid: "u".to_owned(),
            source: "api".to_owned(),
            outcome,
            reasons: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_safe_that_is_not_known_and_what_is_not_safe_counts_more() {
        use Outcome::{
            CannotStartAgain, Ended, Ending, Kept, Refused, Restarted, Starts, Stopped, Unknown,
        };
        let finding = |level| match level {
            Level::Error => Finding::error("s", "m"),
            Level::Unknown => Finding::unknown("s", "m"),
            Level::Warning => Finding::warning("s", "m"),
            Level::Ok => Finding::ok("s", "m"),
        };
        for (pods, levels, verdict, summary) in [
            (
                Some(vec![Kept, Kept, Starts, Ended, Ending]),
                vec![Level::Ok, Level::Warning],
                Verdict::Safe,
                "safe: 2 pods are kept as they are, 1 being started, 1 ending, 1 ended before",
            ),
            (Some(vec![]), vec![], Verdict::Safe, "safe: no pod runs that would be kept"),
            (None, vec![], Verdict::NotKnown, "not known whether it is safe: "),
            (
                Some(vec![Kept]),
                vec![Level::Unknown],
                Verdict::NotKnown,
                "not known whether it is safe: 1 thing could not be found out, 1 pod is kept as it is",
            ),
            (
                None,
                vec![Level::Unknown, Level::Error],
                Verdict::NotSafe,
                "not safe: 1 error, 1 thing could not be found out",
            ),
            (
                Some(vec![Kept, Unknown]),
                vec![],
                Verdict::NotKnown,
                "not known whether it is safe: 1 pod is not known, 1 pod is kept as it is",
            ),
            (
                Some(vec![Restarted, Restarted, Stopped, Refused, CannotStartAgain]),
                vec![],
                Verdict::NotSafe,
                "not safe: 2 pods are restarted, 1 pod is stopped, 1 pod is refused, 1 pod cannot start again, no pod runs that would be kept",
            ),
        ] {
            let pods = pods.map(|pods| pods.into_iter().map(pod).collect());
            let findings = levels.into_iter().map(finding).collect();
            let report = PreflightReport::new(pods, findings, Vec::new());
            assert_eq!((report.verdict, report.summary.as_str()), (verdict, summary));
        }
        for outcome in [Restarted, Stopped, Refused, CannotStartAgain, Unknown] {
            let report = PreflightReport::new(Some(vec![pod(outcome)]), Vec::new(), Vec::new());
            assert_ne!(report.verdict, Verdict::Safe, "{outcome:?}");
        }
    }

    #[test]
    fn the_worst_comes_first() {
        let pods = [Outcome::Ended, Outcome::Kept, Outcome::Restarted].map(pod);
        let findings = vec![Finding::ok("s", "m"), Finding::error("s", "m")];
        let report = PreflightReport::new(Some(pods.to_vec()), findings, Vec::new());
        assert_eq!(report.pods[0].outcome, Outcome::Restarted);
        assert_eq!(report.findings[0].level, Level::Error);
    }
}
