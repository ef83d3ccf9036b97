//! The kubelet on a real containerd, beside a bare client that does the least.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::bare_client::{self, Client};
use crate::process::{middle_and_worst, wall_now};
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::report::{self, Table};

const PODS: usize = 50;
const SAMPLES: usize = 5;

/// A private containerd that ends with this process at the latest.
struct Containerd {
    dir: PathBuf,
}

impl Containerd {
    fn start(dir: &Path) -> (Containerd, String) {
        let containerd = Containerd { dir: dir.to_owned() };
        containerd.script("start", &[&std::process::id().to_string()]);
        let endpoint = containerd.script("endpoint", &[]).trim().to_owned();
        (containerd, endpoint)
    }

    fn script(&self, word: &str, args: &[&str]) -> String {
        let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/containerd.sh");
        let mut command = Command::new(script);
        let output = command
            .arg(word)
            .arg(&self.dir)
            .args(args)
            .env("CARGO_TARGET_DIR", target)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.script("stop", &[]);
    }
}

pub async fn measure() {
    let dir = tempfile::Builder::new().prefix("kb").tempdir().unwrap();
    let (_containerd, endpoint) = Containerd::start(dir.path());
    let root = endpoint.split('/').rev().nth(1).unwrap().to_owned();
    let mut client = bare_client::connect(&endpoint).await;
    let mut table = Table::new(
        "On containerd",
        &["who", "one pod ms (mid/max)", "50 pods: middle s", "50 pods: last s"],
    );
    for in_flight in [1, 4, PODS] {
        let singles =
            if in_flight == 1 { bare_singles(&mut client, &root).await } else { Vec::new() };
        let many = bare_many(&client, &root, in_flight).await;
        table.row(row(&format!("bare client, {in_flight} in flight"), singles, many));
    }
    let mut settings = Settings::new(&dir.path().join("kubelet"), &endpoint);
    std::fs::create_dir_all(&settings.dir).unwrap();
    settings.config = format!("cgroupRoot: /{root}\n");
    let kubelet = KubeletProcess::start(settings).await;
    let singles = kubelet_run(&kubelet, &mut client, "one", SAMPLES, true).await;
    let many = kubelet_run(&kubelet, &mut client, "many", PODS, false).await;
    table.row(row("kubelet: rename to running", singles, many));
    drop(kubelet);
    report::write("bench", "containerd.md", &[table]);
}

fn row(who: &str, singles: Vec<f64>, mut many: Vec<f64>) -> Vec<String> {
    many.sort_by(f64::total_cmp);
    let seconds = |value: Option<&f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    vec![
        who.to_owned(),
        middle_and_worst(singles),
        seconds(many.get(many.len() / 2)),
        seconds(many.last()),
    ]
}

async fn bare_singles(client: &mut Client, root: &str) -> Vec<f64> {
    let mut seconds = Vec::new();
    for i in 0..SAMPLES {
        let start = Instant::now();
        let pod =
            bare_client::run_pod(client, &format!("single{i}"), &format!("/{root}/bare")).await;
        seconds.push(start.elapsed().as_secs_f64());
        bare_client::remove_pods(client, vec![pod]).await;
    }
    seconds
}

/// Seconds from the beginning until each pod ran.
async fn bare_many(client: &Client, root: &str, in_flight: usize) -> Vec<f64> {
    let (mut tasks, mut seconds, mut pods) = (JoinSet::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    for i in 0..PODS {
        if tasks.len() >= in_flight {
            let (pod, took) = tasks.join_next().await.unwrap().unwrap();
            pods.push(pod);
            seconds.push(took);
        }
        let (mut client, root) = (client.clone(), root.to_owned());
        tasks.spawn(async move {
            let pod =
                bare_client::run_pod(&mut client, &format!("many{i}"), &format!("/{root}/bare"))
                    .await;
            (pod, start.elapsed().as_secs_f64())
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (pod, took) = done.unwrap();
        pods.push(pod);
        seconds.push(took);
    }
    bare_client::remove_pods(&mut client.clone(), pods).await;
    seconds
}

/// Drops manifests, all at once or one by one; seconds from the rename until containerd says it started.
async fn kubelet_run(
    kubelet: &KubeletProcess,
    client: &mut Client,
    prefix: &str,
    n: usize,
    one_by_one: bool,
) -> Vec<f64> {
    let aside = kubelet.settings().dir.join("prepared");
    std::fs::create_dir_all(&aside).unwrap();
    let name = |i: usize| format!("{prefix}{i}");
    for i in 0..n {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
             - name: c\n    image: localhost/busybox:dev\n    command: [sleep, \"1000000\"]\n",
            name(i)
        );
        std::fs::write(aside.join(name(i)), text).unwrap();
    }
    let mut seconds = Vec::new();
    let batches = if one_by_one {
        (0..n).map(|i| vec![i]).collect()
    } else {
        vec![(0..n).collect::<Vec<_>>()]
    };
    for batch in batches {
        let dropped = wall_now();
        for i in &batch {
            let place = kubelet.manifests.dir().join(format!("{}.yaml", name(*i)));
            std::fs::rename(aside.join(name(*i)), place).unwrap();
        }
        let names = batch.iter().map(|i| format!("{}-node1", name(*i))).collect::<Vec<_>>();
        let times = all_started(client, &names).await;
        seconds.extend(times.into_iter().map(|at| at - dropped));
    }
    seconds
}

/// Waits, looking rarely so as not to disturb, until all of these pods run.
async fn all_started(client: &mut Client, names: &[String]) -> Vec<f64> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let times = bare_client::start_times(client).await;
        let found = names.iter().filter_map(|name| times.get(name).copied()).collect::<Vec<_>>();
        if found.len() == names.len() {
            return found;
        }
        assert!(Instant::now() < deadline, "only {} of {} pods started", found.len(), names.len());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
