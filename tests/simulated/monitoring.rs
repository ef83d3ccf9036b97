//! The rules and the dashboard of `deploy/monitoring` beside real kubelets and a real Prometheus: every expression
//! returns data, and each alert fires when its fault is made. `make test-monitoring` runs this.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kubelet::base::panics::{PanicScope, catch_panic};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tonic::Code;

use crate::api_source::{path, wait_runs};
use crate::csi::driver::{Behaviour, CsiDriver};
use crate::csi::{VOLUME, joined_and_mounting, of_claim, put_claim, put_driver, start_driver};
use crate::node::{Node, full, put};
use crate::pki::Authority;
use crate::pods::{container, exec_probe, pod, simple, with};
use crate::support::api_server::{FakeApiServer, Mode};
use crate::support::fake_runtime::{FakeRuntime, Fault, Options, Rpc};
use crate::support::kubelet_process::{KubeletProcess, Settings, free_ports};
use crate::support::prometheus::{Prometheus, promtool};
use crate::support::wait::{holds, wait_for};

/// Far longer than a fault takes to be seen, of those that take minutes on a real node only for the durations in the
/// rules.
const SEEN: Duration = Duration::from_secs(180);

fn deployed(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring");
    directory.join(name)
}

fn rules() -> String {
    std::fs::read_to_string(deployed("rules.yaml")).unwrap()
}

/// The names of all alerts.
fn alerts() -> BTreeSet<String> {
    let text = rules();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// The rules without the minutes that a fault has to last, which `promtool test rules` checks.
fn impatient_rules() -> String {
    let text = rules()
        .replace("kubelet_pleg_last_seen_seconds > 180", "kubelet_pleg_last_seen_seconds > 10");
    let lines = text.lines().filter(|line| !line.trim().starts_with("for: "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The expressions of the dashboard, as Grafana asks them for all instances.
fn dashboard() -> Vec<String> {
    let text = std::fs::read_to_string(deployed("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions = targets.map(|target| {
        let expression = target["expr"].as_str().unwrap();
        let expression = expression.replace("$__rate_interval", "5m");
        expression.replace("$instance", ".*")
    });
    expressions.collect()
}

#[test]
#[ignore = "`make test-monitoring` runs it"]
fn rules_and_durations_are_right_by_promtool() {
    let file = |path: PathBuf| path.to_str().unwrap().to_owned();
    promtool(&["check", "rules", &file(deployed("rules.yaml"))]).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/metrics/rules-test.yaml");
    let text = std::fs::read_to_string(&tests).unwrap();
    for alert in alerts() {
        let named = format!("alertname: {alert},");
        assert!(text.contains(&named), "{alert} has no test of its duration");
    }
    promtool(&["test", "rules", &file(tests)]).unwrap();
}

/// The kubelets of the test. Everything ends with it.
struct Kubelets {
    /// With an API server, a CSI driver, probes: the whole app in this process.
    node: Node,
    api: FakeApiServer,
    driver: CsiDriver,
    /// Its log goes into a pipe that is not read.
    unread: KubeletProcess,
    unread_runtime: FakeRuntime,
    /// Its client certificate ends within an hour; its runtime has no events.
    ending: KubeletProcess,
    ending_runtime: FakeRuntime,
    _directories: [tempfile::TempDir; 2],
}

/// A kubeconfig whose client certificate ends within an hour, for an API server that is not there.
fn ending_kubeconfig(directory: &Path) -> PathBuf {
    let authority = Authority::new("ca");
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::new()).unwrap();
    let request = params.serialize_request(&key).unwrap();
    let name = "system:node:node1";
    let certificate = authority.sign(request.der(), name, -3600, 3600);
    for (file, text) in [
        ("client.crt", certificate),
        ("client.key", key.serialize_pem()),
        ("ca.crt", authority.pem()),
    ] {
        std::fs::write(directory.join(file), text).unwrap();
    }
    let file = |name: &str| directory.join(name).display().to_string();
    let [port] = free_ports();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": file("ca.crt"),
        }}],
        "users": [{"name": "u", "user": {
            "client-certificate": file("client.crt"), "client-key": file("client.key"),
        }}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

impl Kubelets {
    /// `None`, with a loud line, where the test may not mount.
    async fn start() -> Option<Self> {
        let (mut node, api) = joined_and_mounting().await?;
        node.configure("featureGates: {CSIVolumeHealth: true}");
        node.configure("volumeStatsAggPeriod: 1s");
        put_driver(&api, json!({"attachRequired": false}));
        put_claim(&api);
        node.start().await;
        let mut driver = start_driver(&node);
        driver.registered().await;
        driver.restart(|config| config.volume_condition = true);
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [quiet, short] = &directories;
        let unread_runtime = FakeRuntime::start(Options::default()).await;
        let mut settings = Settings::new(quiet.path(), &unread_runtime.endpoint());
        settings.piped_log = true;
        settings.args.push("--v=10".to_owned());
        let unread = KubeletProcess::start(settings).await;
        let mut options = Options::default();
        options.features.events = false;
        let ending_runtime = FakeRuntime::start(options).await;
        let mut settings = Settings::new(short.path(), &ending_runtime.endpoint());
        settings.config = format!(
            "rotateCertificates: true\nvolumePluginDir: {}\n",
            short.path().join("plugins").display()
        );
        let kubeconfig = ending_kubeconfig(short.path());
        settings.args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--cert-dir={}", short.path().join("pki").display()),
        ];
        let ending = KubeletProcess::start(settings).await;
        Some(Self {
            node,
            api,
            driver,
            unread,
            unread_runtime,
            ending,
            ending_runtime,
            _directories: directories,
        })
    }

    /// Entries of `scrape_configs`.
    fn jobs(&self) -> String {
        let targets = [
            ("cluster", self.node.read_only_port()),
            ("unread", self.unread.read_only_port),
            ("ending", self.ending.read_only_port),
        ];
        let jobs = targets.map(|(instance, port)| {
            format!(
                "- {{job_name: {instance}, static_configs: [{{targets: [\"127.0.0.1:{port}\"], labels: {{instance: {instance}}}}}]}}\n"
            )
        });
        jobs.concat()
    }

    /// What goes on before anything goes wrong.
    async fn work(&self) {
        let probed = with(container("main"), json!({"readinessProbe": exec_probe("is-ready")}));
        self.node.put(&pod("probed", &[probed]));
        self.api.put(&path("web"), of_claim("web"));
        wait_runs(&self.node, "web").await;
        put(&self.ending.manifests, &simple("other"));
    }

    /// Each fault, but for that of the certificate, which is there from the start.
    async fn fail(&self) {
        let panics = catch_panic(PanicScope::Probe, async { panic!("made by the test") }).await;
        assert!(panics.is_err());
        // Hangs until it is cut long after its timeout; the probe of another pod goes on.
        self.node.fake.inject(Fault::hang(Rpc::ExecSync).only(&full("hangs")));
        let hanging =
            json!({"exec": {"command": ["hangs"]}, "periodSeconds": 1, "timeoutSeconds": 1});
        let hanging = with(container("main"), json!({"readinessProbe": hanging}));
        self.node.put(&pod("hangs", &[hanging]));
        self.driver.volumes.change(VOLUME, |volume| {
            volume.abnormal = Some("the disk has bad blocks".into());
        });
        for call in ["NodeStageVolume", "NodePublishVolume"] {
            let fails = Behaviour::fail(Code::Internal);
            self.driver.script.always(call, fails);
        }
        for number in 0..3 {
            let name = format!("waits{number}");
            self.api.put(&path(&name), of_claim(&name));
        }
        let refuses = Fault::fail(Rpc::RunPodSandbox, Code::Internal, "made by the test");
        self.unread_runtime.inject(refuses);
        for number in 0..300 {
            put(&self.unread.manifests, &simple(&format!("web{number}")));
        }
        for rpc in [
            Rpc::ListPodSandbox,
            Rpc::StreamPodSandboxes,
            Rpc::ListContainers,
            Rpc::StreamContainers,
            Rpc::PodSandboxStatus,
            Rpc::ContainerStatus,
        ] {
            self.ending_runtime.inject(Fault::hang(rpc));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "`make test-monitoring` runs it"]
async fn every_expression_returns_data_and_each_alert_fires_on_its_fault() {
    let Some(kubelets) = Kubelets::start().await else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    std::fs::write(&rules, impatient_rules()).unwrap();
    let [port] = free_ports();
    let wrap = |program: &str| Command::new(program);
    let prometheus =
        Prometheus::start(directory.path(), port, &kubelets.jobs(), Some(&rules), wrap);
    kubelets.work().await;
    let firing = || {
        let firing = prometheus.query("ALERTS{alertstate=\"firing\"}");
        firing.unwrap_or_default()
    };
    let fires = |alert: &str| {
        let named = format!("alertname=\"{alert}\"");
        firing().iter().any(|series| series.contains(&named))
    };
    let certificate = "KubeletClientCertificateEnds";
    wait_for("nothing but the certificate is wrong", SEEN, || async {
        let scraped = prometheus.query("sum(up) == 3").unwrap_or_default();
        let names: BTreeSet<_> = alerts().into_iter().filter(|alert| fires(alert)).collect();
        let quiet = names == BTreeSet::from([certificate.to_owned()]);
        // The lists of a runtime with events are minutes apart.
        let quiet = quiet
            || names == BTreeSet::from([certificate.to_owned(), "KubeletPlegStopped".to_owned()]);
        holds(!scraped.is_empty() && quiet, format!("{names:?}\n{}", prometheus.log()))
    })
    .await;
    kubelets.fail().await;
    // Events are written first, so that there is one to drop.
    kubelets.api.answer(Mode::Status(422));
    for number in 0..3 {
        kubelets.node.put(&simple(&format!("late{number}")));
    }
    wait_for("events are dropped", SEEN, || async {
        holds(fires("KubeletEventsDropped"), format!("{:#?}", firing()))
    })
    .await;
    kubelets.api.answer(Mode::Well);
    wait_for("each alert fires", SEEN, || async {
        let silent: Vec<_> = alerts().into_iter().filter(|alert| !fires(alert)).collect();
        let pleg = firing()
            .iter()
            .any(|series| series.contains("KubeletPlegStopped") && series.contains("\"ending\""));
        holds(silent.is_empty() && pleg, format!("silent: {silent:?}\n{:#?}", firing()))
    })
    .await;
    let expressions = dashboard();
    wait_for("each expression has data", SEEN, || async {
        let empty = prometheus.without_data(expressions.iter().map(String::as_str));
        holds(empty.is_empty(), format!("{empty:#?}"))
    })
    .await;
}
