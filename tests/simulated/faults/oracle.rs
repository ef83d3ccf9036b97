//! The oracle finds what it is there to find.

use std::time::{Duration, Instant};

use crate::support::faults::oracle::{Container, Oracle, Sandbox, Snapshot, State};
use crate::support::faults::pods::{Kind, Version};
use crate::support::faults::{Goal, Ledger};

const VERSION: Version = Version { kind: Kind::Plain, number: 1 };

struct Story {
    started_at: Instant,
    oracle: Oracle,
    ledger: Ledger,
}

impl Story {
    fn new() -> Story {
        let started_at = Instant::now();
        let mut ledger = Ledger::default();
        ledger.want(started_at, "web", Some(VERSION));
        Story { started_at, oracle: Oracle::default(), ledger }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.started_at + Duration::from_secs(seconds)
    }

    /// Containers of the one sandbox: id, name and state.
    fn sees(&mut self, seconds: u64, containers: &[(&str, &str, State)]) {
        let container = |(id, name, state): &(&str, &str, State)| Container {
            id: (*id).to_owned(),
            sandbox: "s".to_owned(),
            name: (*name).to_owned(),
            state: *state,
        };
        let snapshot = Snapshot {
            sandboxes: vec![sandbox("s")],
            containers: containers.iter().map(container).collect(),
        };
        self.oracle.observe(self.at(seconds), snapshot);
    }

    fn goals(&self) -> Vec<Goal> {
        let findings = self.oracle.judge(&self.ledger);
        findings.into_iter().map(|finding| finding.goal).collect()
    }
}

fn sandbox(id: &str) -> Sandbox {
    Sandbox { id: id.to_owned(), pod: "web-node1".to_owned(), version: VERSION.number, ready: true }
}

#[test]
fn a_healthy_container_that_ended_is_found_and_one_with_a_reason_is_not() {
    let ended = || {
        let mut story = Story::new();
        story.sees(10, &[("a", "main", State::Running)]);
        story.sees(20, &[("a", "main", State::Exited)]);
        story
    };
    assert_eq!(ended().goals(), [Goal::HealthyRestart]);
    let mut crashed = ended();
    crashed.ledger.crash("a");
    assert_eq!(crashed.goals(), []);
    let mut removed = ended();
    removed.ledger.want(removed.at(15), "web", None);
    assert_eq!(removed.goals(), []);
    let mut removed_later = ended();
    removed_later.ledger.want(removed_later.at(21), "web", None);
    assert_eq!(removed_later.goals(), [Goal::HealthyRestart]);
    let mut sick = ended();
    sick.ledger.sicken(sick.at(18), "web");
    sick.ledger.heal(sick.at(19), "web");
    assert_eq!(sick.goals(), []);
    let mut sick_before = ended();
    sick_before.ledger.sicken(sick_before.at(1), "web");
    sick_before.ledger.heal(sick_before.at(2), "web");
    assert_eq!(sick_before.goals(), [Goal::HealthyRestart]);
}

#[test]
fn a_container_that_is_gone_has_ended() {
    let mut story = Story::new();
    story.sees(10, &[("a", "main", State::Running)]);
    story.sees(20, &[("b", "main", State::Running)]);
    assert_eq!(story.goals(), [Goal::HealthyRestart]);
}

#[test]
fn a_container_that_never_started_may_go() {
    let mut story = Story::new();
    story.sees(10, &[("a", "main", State::Created)]);
    story.sees(20, &[("b", "main", State::Running), ("c", "job", State::CutShort)]);
    story.sees(30, &[("b", "main", State::Running), ("d", "job", State::Running)]);
    assert_eq!(story.goals(), [Goal::StartCutShort]);
}

#[test]
fn two_running_containers_of_one_name_are_found_also_when_one_has_ended_since() {
    let mut story = Story::new();
    story.sees(10, &[("a", "main", State::Running), ("b", "main", State::Running)]);
    story.ledger.crash("a");
    story.sees(20, &[("b", "main", State::Running), ("c", "side", State::Running)]);
    assert_eq!(story.goals(), [Goal::Duplicate]);
}

#[test]
fn two_sandboxes_of_one_pod_are_found() {
    let mut story = Story::new();
    let snapshot = Snapshot { sandboxes: vec![sandbox("s"), sandbox("t")], containers: Vec::new() };
    story.oracle.observe(story.at(10), snapshot);
    assert_eq!(story.goals(), [Goal::Duplicate]);
}

#[test]
fn a_job_may_run_as_often_as_it_was_wanted() {
    let mut story = Story::new();
    story.sees(10, &[("a", "job", State::Exited)]);
    assert_eq!(story.goals(), []);
    story.sees(20, &[("a", "job", State::Exited), ("b", "job", State::Running)]);
    assert_eq!(story.goals(), [Goal::RunAgain]);
    story.ledger.want(story.at(12), "web", None);
    story.ledger.want(story.at(13), "web", Some(VERSION));
    assert_eq!(story.goals(), []);
}
