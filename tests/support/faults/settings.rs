//! How many faults of which kind, from environment variables.

use std::ops::Range;

use super::findings::Goal;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The kubelet is killed, and started again at once or a little later.
    Kill,
    /// The runtime's socket is away for a while.
    RuntimeAway,
    /// Nothing can be written to the root directory for a while.
    DiskFull,
    /// Files that are no manifests lie in the manifest directory for a while.
    Garbage,
    /// Reading the status of some containers hangs for a while.
    HangingStatus,
}

impl Fault {
    pub fn text(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9 of the kubelet",
            Fault::RuntimeAway => "runtime away",
            Fault::DiskFull => "root directory full",
            Fault::Garbage => "garbage manifests",
            Fault::HangingStatus => "hanging ContainerStatus",
        }
    }
}

/// One episode.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub number: usize,
    pub fault: Fault,
    pub faults: usize,
    /// Names of pods that churn.
    pub names: usize,
    /// Between two changes, in milliseconds.
    pub gap: Range<u64>,
    /// From the recovery's begin to the next fault, in milliseconds.
    pub life: Range<u64>,
    /// How long a fault lasts, in milliseconds.
    pub lasts: Range<u64>,
}

impl Plan {
    pub fn rng(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_add(self.number as u64))
    }

    /// The variables with which the episode can be lived again.
    pub fn again(&self) -> String {
        format!("FAULTS_SEED={} FAULTS_EPISODE={}", self.seed, self.number)
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Ok(value) = text.parse() else { panic!("{name} is not a number: {text}") };
    Some(value)
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    /// Faults of each kind.
    pub faults: Vec<(Fault, usize)>,
    /// Faults of one episode.
    pub each: usize,
    /// Only this episode.
    pub only: Option<usize>,
    /// Episodes at once.
    pub lanes: usize,
    /// Figures are wanted and not only a test.
    pub is_measured: bool,
    /// What cannot be counted on this runtime.
    pub uncounted: &'static [Goal],
}

impl Settings {
    /// `kills` is the variable for the number of kills, with the number in a plain run of the tests; `others`
    /// the one for the number of each further kind of fault, of which there are none in a plain run. An
    /// episode has so many faults of `each` kind at most.
    pub fn read(
        (kills, usual): (&str, usize),
        (number, others): (&str, &[Fault]),
        each: usize,
    ) -> Settings {
        let given = variable(kills);
        let number = variable(number).unwrap_or(0);
        let others = others.iter().map(|fault| (*fault, number));
        let mut faults = vec![(Fault::Kill, given.unwrap_or(usual))];
        faults.extend(others.filter(|(_, number)| *number > 0));
        Settings {
            seed: variable("FAULTS_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000)),
            faults,
            each,
            only: variable("FAULTS_EPISODE"),
            lanes: variable("FAULTS_LANES").unwrap_or(3),
            is_measured: given.is_some(),
            uncounted: &[],
        }
    }

    /// All episodes; `plan` fills in the pace.
    pub fn plans(&self, plan: impl Fn(Plan) -> Plan) -> Vec<Plan> {
        let mut plans = Vec::new();
        for (fault, number) in &self.faults {
            let mut left = *number;
            while left > 0 {
                let faults = left.min(self.each);
                left -= faults;
                plans.push(plan(Plan {
                    seed: self.seed,
                    number: plans.len(),
                    fault: *fault,
                    faults,
                    names: 10,
                    gap: 0..60,
                    life: 0..1200,
                    lasts: 0..60,
                }));
            }
        }
        plans.retain(|plan| self.only.is_none_or(|only| only == plan.number));
        plans
    }
}
