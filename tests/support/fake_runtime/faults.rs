//! What goes wrong on demand: late, failed, hanging and lost answers, and lies.

use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Status};

use super::calls::{Rpc, Subject};

#[derive(Clone)]
enum Kind {
    Delay(Duration),
    Fail(Code, String),
    LoseAnswer(Code, String),
    Hang(watch::Receiver<bool>),
}

/// One fault; built with a constructor, narrowed with `only` and `times`.
#[derive(Clone)]
pub struct Fault {
    rpc: Rpc,
    word: Option<String>,
    kind: Kind,
    left: Option<u32>,
    release: Option<watch::Sender<bool>>,
}

impl Fault {
    fn new(rpc: Rpc, kind: Kind) -> Self {
        Fault { rpc, word: None, kind, left: None, release: None }
    }

    /// The call is answered later.
    pub fn delay(rpc: Rpc, by: Duration) -> Self {
        Self::new(rpc, Kind::Delay(by))
    }

    /// The call fails and changes nothing.
    pub fn fail(rpc: Rpc, code: Code, message: &str) -> Self {
        Self::new(rpc, Kind::Fail(code, message.to_owned()))
    }

    /// The call does its work and reports a failure.
    pub fn lose_answer(rpc: Rpc, code: Code, message: &str) -> Self {
        Self::new(rpc, Kind::LoseAnswer(code, message.to_owned()))
    }

    /// The call does not go on until `release` or `clear_faults`.
    pub fn hang(rpc: Rpc) -> Self {
        let (release, hung) = watch::channel(false);
        Fault { release: Some(release), ..Self::new(rpc, Kind::Hang(hung)) }
    }

    /// Only calls about this pod, container, `pod/container`, uid or id.
    pub fn only(mut self, word: &str) -> Self {
        self.word = Some(word.to_owned());
        self
    }

    /// Only so many calls; without it all of them.
    pub fn times(mut self, n: u32) -> Self {
        self.left = Some(n);
        self
    }
}

/// The faults in force.
#[derive(Default)]
pub struct Faults {
    faults: Vec<Fault>,
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Ends all faults and lets hanging calls go on.
    pub fn clear(&mut self) {
        self.release(None);
        self.faults.clear();
    }

    /// Lets hanging calls of one kind go on, and later ones through.
    pub fn release(&mut self, rpc: Option<Rpc>) {
        for fault in &self.faults {
            if let Some(release) = &fault.release
                && rpc.is_none_or(|rpc| rpc == fault.rpc)
            {
                release.send_replace(true);
            }
        }
    }

    /// The faults that hit this call; each use counts.
    pub fn hitting(&mut self, rpc: Rpc, subject: &Subject) -> Hits {
        let mut hits = Hits::default();
        for fault in &mut self.faults {
            if fault.rpc != rpc || fault.word.as_ref().is_some_and(|word| !subject.matches(word)) {
                continue;
            }
            match &mut fault.left {
                Some(0) => continue,
                Some(left) => *left -= 1,
                None => {}
            }
            hits.kinds.push(fault.kind.clone());
        }
        hits
    }
}

/// The faults of one call.
#[derive(Default)]
pub struct Hits {
    kinds: Vec<Kind>,
}

impl Hits {
    /// What happens before the work.
    pub async fn before(&mut self) -> Result<(), Status> {
        for kind in &mut self.kinds {
            match kind {
                Kind::Delay(by) => tokio::time::sleep(*by).await,
                Kind::Fail(code, message) => return Err(Status::new(*code, message.clone())),
                Kind::Hang(hung) => {
                    // An error means that the fault itself is gone, which releases too.
                    let _ = hung.wait_for(|released| *released).await;
                }
                Kind::LoseAnswer(..) => {}
            }
        }
        Ok(())
    }

    /// What happens after the work.
    pub fn after(&self) -> Result<(), Status> {
        for kind in &self.kinds {
            if let Kind::LoseAnswer(code, message) = kind {
                return Err(Status::new(*code, message.clone()));
            }
        }
        Ok(())
    }
}

/// Nonsense in otherwise successful answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distortion {
    /// Sandbox statuses carry no IP.
    NoIp,
    /// Containers have this state number; 3 is UNKNOWN, others do not exist.
    State(i32),
    /// Lists name each container a second time under another id.
    DuplicateNames,
    /// Labels and metadata carry another pod uid.
    WrongUid(String),
    /// Lists are empty.
    EmptyLists,
    /// Lists leave out every second item.
    HalfLists,
}
