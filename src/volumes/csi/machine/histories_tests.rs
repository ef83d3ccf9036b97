//! What holds in every history, with a driver that fails, loses answers, finishes late and goes away, and a kubelet that is
//! killed at any time.

use super::*;
use crate::base::clock;
use proptest::prelude::*;
use std::collections::BTreeSet;

const PODS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    /// The driver does nothing, and says so.
    Failed,
    /// It does it, and the answer is lost.
    UnknownDid,
    UnknownDidNot,
    /// The answer is lost, and the driver does it later.
    UnknownLater,
    NotCalled,
}

#[derive(Clone, Debug)]
enum Event {
    Want(usize),
    Unwant(usize),
    /// Begins the next step, if there is one.
    Begin,
    End(End),
    Kill,
    /// The driver finishes what it does late.
    Late,
    Driver(bool),
    Attached(bool),
    Confirmed(bool),
    PodsKnown,
    Republish(usize),
    /// The size has to be checked for a pod, before it uses the volume or not.
    Grown(usize, bool),
    /// The mount of a pod whose containers have ended is dead, and with `true` also the staged one.
    Dead(usize, bool),
    Advance(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..PODS.len();
    let end = prop_oneof![
        6 => Just(End::Done),
        2 => Just(End::Failed),
        2 => Just(End::UnknownDid),
        2 => Just(End::UnknownDidNot),
        2 => Just(End::UnknownLater),
        1 => Just(End::NotCalled),
    ];
    prop_oneof![
        4 => pod.clone().prop_map(Event::Want),
        4 => pod.clone().prop_map(Event::Unwant),
        12 => Just(Event::Begin),
        12 => end.prop_map(Event::End),
        1 => Just(Event::Kill),
        2 => Just(Event::Late),
        2 => any::<bool>().prop_map(Event::Driver),
        2 => any::<bool>().prop_map(Event::Attached),
        1 => any::<bool>().prop_map(Event::Confirmed),
        2 => Just(Event::PodsKnown),
        1 => pod.clone().prop_map(Event::Republish),
        2 => (pod.clone(), any::<bool>()).prop_map(|(pod, before)| Event::Grown(pod, before)),
        2 => (pod, any::<bool>()).prop_map(|(pod, stage)| Event::Dead(pod, stage)),
        4 => (0..200_000_u64).prop_map(Event::Advance),
    ]
}

/// What the driver really has.
#[derive(Clone, Debug, Default)]
struct Driver {
    staged: bool,
    published: BTreeSet<PodUid>,
    late: Option<Step>,
}

impl Driver {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Stage => self.staged = true,
            Step::Unstage => self.staged = false,
            Step::Publish(uid) | Step::Republish(uid) => {
                self.published.insert(uid.clone());
            }
            Step::Unpublish(uid) => {
                self.published.remove(uid);
            }
            Step::Expand(_) => {}
        }
    }

    fn finish_late(&mut self) {
        if let Some(step) = self.late.take() {
            self.apply(&step);
        }
    }

    fn has_anything(&self) -> bool {
        let comes = matches!(self.late, Some(Step::Stage | Step::Publish(_)));
        self.staged || !self.published.is_empty() || comes
    }
}

/// What this kubelet has on disk.
#[derive(Clone, Debug, Default)]
struct Disk {
    staged: bool,
    pods: BTreeSet<PodUid>,
}

struct World {
    volume: Option<NodeVolume>,
    driver: Driver,
    disk: Disk,
    /// The pods whose containers may run.
    running: BTreeSet<PodUid>,
    /// Of these, those whose containers have ended because the mount is dead.
    dead: BTreeSet<PodUid>,
    /// The pods whose wishes this kubelet knows.
    known: BTreeSet<PodUid>,
    facts: VolumeFacts,
    single: bool,
    stages: bool,
    now: Instant,
}

impl World {
    fn new(stages: bool, single: bool) -> Self {
        Self {
            volume: None,
            driver: Driver::default(),
            disk: Disk::default(),
            running: BTreeSet::new(),
            dead: BTreeSet::new(),
            known: BTreeSet::new(),
            facts: VolumeFacts {
                driver: Some(DriverFacts { stages }),
                attach_required: true,
                is_confirmed_in_use: true,
                is_attached: true,
                pods_are_known: true,
            },
            single,
            stages,
            now: clock::instant(),
        }
    }

    fn want(&mut self, uid: &PodUid) {
        self.running.insert(uid.clone());
        self.known.insert(uid.clone());
        let new = || NodeVolume::new(Lifecycle::Persistent);
        let volume = self.volume.get_or_insert_with(new);
        volume.want(uid, self.single);
    }

    fn unwant(&mut self, uid: &PodUid) {
        self.running.remove(uid);
        self.known.insert(uid.clone());
        if let Some(volume) = &mut self.volume {
            volume.unwant(uid);
        }
    }

    fn begin(&mut self) -> Result<(), TestCaseError> {
        let Some(volume) = &mut self.volume else {
            return Ok(());
        };
        match volume.evaluate(&self.facts, self.now) {
            Next::Do(step) => {
                prop_assert!(volume.begin(step.clone(), self.now), "{} does not begin", step);
                self.check_begin(&step)?;
                match &step {
                    Step::Stage => self.disk.staged = true,
                    Step::Publish(uid) => {
                        self.disk.pods.insert(uid.clone());
                    }
                    _ => {}
                }
            }
            Next::Forget => {
                prop_assert!(!self.driver.has_anything(), "forgotten: {:?}", self.driver);
                prop_assert!(!self.disk.staged && self.disk.pods.is_empty());
                self.volume = None;
            }
            Next::Wait(_) | Next::Idle => {}
        }
        Ok(())
    }

    /// What a strict driver would refuse, and what would harm a pod.
    fn check_begin(&self, step: &Step) -> Result<(), TestCaseError> {
        prop_assert!(self.facts.driver.is_some());
        match step {
            Step::Publish(uid) => {
                prop_assert!(self.driver.staged || !self.stages, "publish unstaged");
                let mut others = self.driver.published.iter();
                let other = others.find(|other| *other != uid);
                prop_assert!(!self.single || other.is_none(), "two pods");
                prop_assert!(self.facts.is_attached && self.facts.is_confirmed_in_use);
            }
            Step::Stage => {
                prop_assert!(self.stages);
                prop_assert!(self.facts.is_attached && self.facts.is_confirmed_in_use);
            }
            Step::Unstage => {
                let none = self.driver.published.is_empty();
                prop_assert!(none, "unstage while published");
                prop_assert!(self.facts.pods_are_known);
            }
            Step::Unpublish(uid) => {
                let runs = self.running.contains(uid) && !self.dead.contains(uid);
                prop_assert!(!runs, "unpublish of a running pod");
            }
            Step::Republish(uid) | Step::Expand(uid) => {
                prop_assert!(self.driver.published.contains(uid), "{} of nothing", step);
            }
        }
        Ok(())
    }

    fn end(&mut self, mut end: End) {
        let Some(volume) = &mut self.volume else {
            return;
        };
        let Some(step) = volume.in_progress().cloned() else {
            return;
        };
        // The driver has an operation for the volume that has not ended (`Aborted`).
        if self.driver.late.is_some() && !matches!(end, End::NotCalled) {
            end = End::UnknownDidNot;
        }
        let open = || CallOutcome::Unknown("open".into());
        let outcome = match end {
            End::Done => {
                self.driver.apply(&step);
                CallOutcome::Done
            }
            End::Failed => CallOutcome::Failed("final".into()),
            End::UnknownDid => {
                self.driver.apply(&step);
                open()
            }
            End::UnknownDidNot => open(),
            End::UnknownLater => {
                self.driver.late = Some(step.clone());
                open()
            }
            End::NotCalled => CallOutcome::NotCalled("nothing".into()),
        };
        let is_done = outcome == CallOutcome::Done;
        assert!(volume.ended(&step, outcome, self.now));
        if let (Step::Publish(uid), true) = (&step, is_done) {
            self.dead.remove(uid);
        }
        // The record follows what is known.
        match step.pod() {
            None => self.disk.staged = volume.staged() != Known::No,
            Some(uid) if !volume.is_held_by(uid) => {
                self.disk.pods.remove(uid);
            }
            Some(_) => {}
        }
    }

    fn kill(&mut self, end: End) {
        // The call in progress ends somehow, and its answer is lost.
        if let Some(step) = self.volume.as_ref().and_then(|volume| volume.in_progress()) {
            let is_free = self.driver.late.is_none();
            match end {
                End::Done | End::UnknownDid if is_free => self.driver.apply(&step.clone()),
                End::UnknownLater if is_free => self.driver.late = Some(step.clone()),
                _ => {}
            }
        }
        let pods = self.disk.pods.clone();
        let left = self.disk.staged || !pods.is_empty();
        let recover = || NodeVolume::recovered(Lifecycle::Persistent, self.disk.staged, pods);
        self.volume = left.then(recover);
        self.dead.clear();
        self.known.clear();
        self.facts.pods_are_known = false;
    }

    /// All pods tell what they want.
    fn tell(&mut self) {
        for uid in PODS.map(PodUid::from) {
            if !self.known.contains(&uid) {
                if self.running.contains(&uid) {
                    self.want(&uid);
                } else {
                    self.unwant(&uid);
                }
            }
        }
        self.facts.pods_are_known = true;
    }

    fn apply(&mut self, event: Event, kill_end: End) -> Result<(), TestCaseError> {
        match event {
            Event::Want(pod) => self.want(&PODS[pod].into()),
            Event::Unwant(pod) => self.unwant(&PODS[pod].into()),
            Event::Begin => self.begin()?,
            Event::End(end) => self.end(end),
            Event::Kill => self.kill(kill_end),
            Event::Late => self.driver.finish_late(),
            Event::Driver(there) => {
                let stages = self.stages;
                self.facts.driver = there.then_some(DriverFacts { stages });
                if let (true, Some(volume)) = (there, &mut self.volume) {
                    volume.driver_registered();
                }
            }
            Event::Attached(attached) => self.facts.is_attached = attached,
            Event::Confirmed(confirmed) => self.facts.is_confirmed_in_use = confirmed,
            Event::PodsKnown => self.tell(),
            Event::Republish(pod) => {
                if let Some(volume) = &mut self.volume {
                    volume.request_republish(&PODS[pod].into());
                }
            }
            Event::Grown(pod, before_use) => {
                if let Some(volume) = &mut self.volume {
                    volume.request_expansion(&PODS[pod].into(), before_use);
                }
            }
            Event::Dead(pod, is_stage_dead) => {
                let uid = PODS[pod].into();
                if let Some(volume) = &mut self.volume
                    && volume.is_ready(&uid)
                {
                    volume.remount(&uid);
                    if is_stage_dead {
                        volume.replace_stage();
                    }
                    self.dead.insert(uid);
                }
            }
            Event::Advance(millis) => self.now += Duration::from_millis(millis),
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let in_use = self.volume.as_ref().is_some_and(NodeVolume::is_in_use);
        prop_assert!(in_use || !self.driver.has_anything(), "unused: {:?}", self.driver);
        prop_assert!(!self.single || self.driver.published.len() <= 1, "two pods");
        let Some(volume) = &self.volume else {
            return Ok(());
        };
        for uid in PODS.map(PodUid::from) {
            let ready = volume.is_ready(&uid);
            prop_assert!(!ready || self.driver.published.contains(&uid), "{uid} is not published");
        }
        Ok(())
    }

    /// The driver behaves from now on, until nothing is left to do.
    fn finish(&mut self) -> Result<Next, TestCaseError> {
        let stages = self.stages;
        self.tell();
        self.facts = VolumeFacts {
            driver: Some(DriverFacts { stages }),
            attach_required: true,
            is_confirmed_in_use: true,
            is_attached: true,
            pods_are_known: true,
        };
        for _ in 0..100 {
            self.driver.finish_late();
            self.end(End::Done);
            self.check()?;
            let Some(volume) = &self.volume else {
                return Ok(Next::Forget);
            };
            match volume.next(&self.facts, self.now) {
                Next::Wait(wait) if wait.retry_at.is_some() => {
                    self.now = wait.retry_at.unwrap();
                }
                Next::Do(_) | Next::Forget => self.begin()?,
                Next::Wait(VolumeWait { reason: WaitReason::StaleStage(Some(holder)), .. }) => {
                    // The containers of this pod end as well, because the staged mount is dead.
                    self.dead.insert(holder.clone());
                    if let Some(volume) = &mut self.volume {
                        volume.remount(&holder);
                    }
                }
                next => return Ok(next),
            }
        }
        Err(TestCaseError::fail("no end"))
    }
}

fn kill_end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Done), Just(End::UnknownLater), Just(End::UnknownDidNot)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_is_done_twice_forgotten_or_left(
        events in prop::collection::vec((event(), kill_end()), 0..80),
        stages: bool,
        single: bool,
    ) {
        let mut world = World::new(stages, single);
        for (event, kill_end) in events {
            world.apply(event, kill_end)?;
        }
        let next = world.finish()?;
        if !single {
            // Everything that pods want is there.
            let expected = if world.running.is_empty() { Next::Forget } else { Next::Idle };
            prop_assert_eq!(next, expected);
            prop_assert_eq!(&world.driver.published, &world.running);
        }
        for uid in PODS.map(PodUid::from) {
            world.unwant(&uid);
        }
        prop_assert_eq!(world.finish()?, Next::Forget);
        prop_assert!(!world.driver.has_anything());
    }
}
