//! Faults other than kills.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Episode, Side};
use crate::support::faults::pods::{self, Kind, Version};
use crate::support::faults::settings::Fault;

impl<S: Side> Episode<'_, S> {
    pub(super) async fn other_fault(&self) {
        self.note(format!("begin {:?}", self.plan.fault));
        let mut rng = self.rng.borrow_mut().fork();
        match self.plan.fault {
            Fault::DiskFull => fill(&self.root.join("full")),
            Fault::Garbage => self.garbage(true),
            fault => self.side.begin(fault, &mut rng).await,
        }
        let lasts = self.random(self.plan.lasts.clone());
        self.churn_until(Instant::now() + Duration::from_millis(lasts)).await;
        self.note(format!("end {:?}", self.plan.fault));
        match self.plan.fault {
            Fault::DiskFull => {
                std::fs::remove_file(self.root.join("full")).expect("the file that fills it")
            }
            Fault::Garbage => self.garbage(false),
            fault => self.side.end(fault).await,
        }
        self.recover().await;
        self.check_kubelet();
    }

    /// Puts files that are no manifests beside the others, or takes them away.
    fn garbage(&self, put: bool) {
        let half = pods::manifest("half", Version { kind: Kind::Plain, number: 0 }, &self.shared);
        let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let files = [
            ("garbage-empty.yaml", Vec::new()),
            ("garbage-half.yaml", half.as_bytes()[..half.len() / 2].to_vec()),
            ("garbage-bytes.yaml", (0..=255).cycle().take(100_000).collect()),
            ("garbage-list.yaml", b"- a\n- b\n".to_vec()),
            ("garbage-kind.yaml", b"apiVersion: v1\nkind: Node\nmetadata: {name: n}\n".to_vec()),
            ("garbage-nested.yaml", nested.into_bytes()),
            (
                "garbage-pod.yaml",
                b"apiVersion: v1\nkind: Pod\nmetadata: {name: Bad_Name}\nspec: {containers: []}\n"
                    .to_vec(),
            ),
        ];
        for (name, bytes) in files {
            let path = self.manifests.dir().join(name);
            if put {
                std::fs::write(path, bytes).expect("write garbage");
            } else {
                std::fs::remove_file(path).expect("remove garbage");
            }
        }
    }
}

/// Writes until nothing more can be written.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).expect("a file that fills the directory");
    for size in [1 << 16, 1 << 12, 1 << 8, 1] {
        let bytes = vec![b'x'; size];
        while file.write_all(&bytes).is_ok() {}
    }
}
