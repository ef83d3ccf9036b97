//! Changes of the pods that churn.

use std::time::{Duration, Instant};

use super::episode::{Episode, Side};
use super::oracle::Container;
use super::pods::{Kind, Version, ends_by_itself, manifest, ready_file, sick_file};

/// A liveness probe that fails and ends nothing, because there is no kubelet, is healed after this.
const SICK: Duration = Duration::from_secs(4);

impl<S: Side> Episode<'_, S> {
    /// Changes one thing after another until then.
    pub(super) async fn churn_until(&self, end: Instant) {
        loop {
            let gap = Duration::from_millis(self.random(self.plan.gap.clone()));
            let next = Instant::now() + gap;
            if next >= end {
                tokio::time::sleep_until(end.into()).await;
                return;
            }
            tokio::time::sleep_until(next.into()).await;
            self.change().await;
        }
    }

    async fn change(&self) {
        self.heal(false);
        let names = self.churning();
        let name = &names[self.random(0..names.len() as u64) as usize];
        let version = self.ledger.borrow().version(name);
        let Some(version) = version else {
            self.put(name, self.new_version());
            return;
        };
        match self.random(0..20) {
            0..4 => self.put(name, self.new_version()),
            4..8 => self.remove(name),
            8..10 => self.remove_and_put_back(name, version).await,
            10..14 => self.crash(name).await,
            14..16 => self.sicken(name, version.kind),
            16..18 => self.flip_readiness(name, version.kind),
            _ => self.write(name, version),
        }
    }

    fn new_version(&self) -> Version {
        let kind = Kind::ALL[self.random(0..Kind::ALL.len() as u64) as usize];
        let number = self.next_number();
        Version { kind, number }
    }

    /// The kubelet must not care about a file that is written again as it was.
    fn write(&self, name: &str, version: Version) {
        self.note(format!("write {name} {version:?}"));
        let text = manifest(name, version, &self.shared);
        self.manifests.put(&format!("{name}.yaml"), &text);
    }

    pub(super) fn put(&self, name: &str, version: Version) {
        self.set_ready(name, true);
        self.ledger.borrow_mut().want(Instant::now(), name, Some(version));
        self.write(name, version);
    }

    pub(super) fn remove(&self, name: &str) {
        self.note(format!("remove {name}"));
        self.ledger.borrow_mut().want(Instant::now(), name, None);
        self.manifests.remove(&format!("{name}.yaml"));
    }

    async fn remove_and_put_back(&self, name: &str, version: Version) {
        self.remove(name);
        let away = Duration::from_millis(self.random(0..50));
        tokio::time::sleep(away).await;
        self.put(name, version);
    }

    /// Ends a container that would run for ever.
    async fn crash(&self, name: &str) {
        let running = {
            let oracle = self.oracle.borrow();
            let lasting = |container: &&&Container| !ends_by_itself(&container.name);
            let running = oracle.latest().running(name);
            running.iter().find(lasting).map(|container| container.id.clone())
        };
        if let Some(id) = running {
            self.note(format!("crash {name} {id}"));
            // Before it happens: the oracle may see it at once.
            self.ledger.borrow_mut().crash(&id);
            self.side.crash(&id).await;
        }
    }

    fn sicken(&self, name: &str, kind: Kind) {
        let is_sick = self.ledger.borrow().sick().iter().any(|(sick, _)| sick == name);
        if kind == Kind::Probed && !is_sick {
            self.note(format!("sicken {name}"));
            self.ledger.borrow_mut().sicken(Instant::now(), name);
            std::fs::write(sick_file(&self.shared, name), "").expect("a file");
        }
    }

    /// Ends the sickness of pods whose container was ended for it, or of all.
    pub(super) fn heal(&self, all: bool) {
        let sick = self.ledger.borrow().sick();
        for (name, since) in sick {
            let runs = !self.oracle.borrow().latest().running(&name).is_empty();
            if all || !runs || since.elapsed() > SICK {
                self.note(format!("heal {name}"));
                std::fs::remove_file(sick_file(&self.shared, &name)).expect("the file");
                self.ledger.borrow_mut().heal(Instant::now(), &name);
            }
        }
    }

    fn flip_readiness(&self, name: &str, kind: Kind) {
        if kind == Kind::Probed {
            let ready = !self.ledger.borrow().is_ready(name);
            self.note(format!("{name} is ready: {ready}"));
            self.set_ready(name, ready);
        }
    }

    fn set_ready(&self, name: &str, ready: bool) {
        let file = ready_file(&self.shared, name);
        if ready {
            std::fs::write(file, "").expect("a file");
        } else {
            let _ = std::fs::remove_file(file);
        }
        self.ledger.borrow_mut().set_ready(name, ready);
    }
}
