//! `kubelet preflight` on a node that the Go kubelet runs, and the exchange that shows whether it was right.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::swap::{PODS, STATIC_POD, running, version};
use crate::cluster::{Cluster, DEADLINE, NODE};
use crate::inventory::{items, nothing_is_leaked};
use crate::kubelet::Flavour;
use crate::support::runner::Flavour as _;
use crate::support::wait::{holds, wait_for};

const ROOT: &str = "/var/lib/kubelet";
/// Asks for a sysctl that a node allows only by its configuration.
const REFUSED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: refused}
spec:
  nodeName: node1
  securityContext: {sysctls: [{name: net.core.somaxconn, value: '1024'}]}
  containers: [{name: main, image: 'localhost/busybox:dev', command: [sleep, '1000']}]
";

/// The report of a preflight beside the kubelet, and its exit code. `front` comes before the program.
fn preflight(cluster: &Cluster, front: &[&str], args: &[&str]) -> (Value, i32) {
    let program = Flavour::Rust.program();
    let program = [program.to_str().unwrap(), "preflight", "-o", "json"];
    let mut command = cluster.inside_command(&[front, &program, args].concat());
    let output = command.output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = report.unwrap_or_else(|error| panic!("{error}: {errors}"));
    (report, output.status.code().unwrap())
}

/// The outcome of each pod, by name.
fn outcomes(report: &Value) -> BTreeMap<String, String> {
    let pods = report["pods"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    pods.map(|pod| (text(&pod["name"]), text(&pod["outcome"]))).collect()
}

/// Runs a preflight, which reports that the node can be moved and that everything that runs is kept.
fn is_safe(cluster: &Cluster) {
    let (report, code) = preflight(cluster, &[], &[]);
    assert_eq!((code, &report["verdict"]), (0, &json!("safe")), "{report:#}");
    let pods = cluster.get(&["pods", "-A"]);
    let ended = ["Succeeded", "Failed"];
    let expected = items(&pods).map(|pod| {
        let has_ended = ended.contains(&pod["status"]["phase"].as_str().unwrap());
        let outcome = if has_ended { "ended" } else { "kept" };
        let name = pod["metadata"]["name"].as_str().unwrap();
        (name.to_owned(), outcome.to_owned())
    });
    assert_eq!(outcomes(&report), expected.collect(), "{report:#}");
}

/// Like [`is_safe`], while the kubelet is paused: no file, no cgroup and no object of the runtime changes, and the API
/// server only gets requests that read.
pub fn is_safe_and_changes_nothing(cluster: &Cluster) {
    cluster.kubelet.pause();
    let (before, since) = (snapshot(cluster), Timestamp::now());
    is_safe(cluster);
    let after = snapshot(cluster);
    let difference = after.lines().zip(before.lines()).find(|(after, before)| after != before);
    assert_eq!(difference, None);
    assert_eq!(after.len(), before.len());
    let requests = cluster.requests(since);
    let verbs: BTreeSet<_> = requests.iter().map(|one| one.verb.as_str()).collect();
    assert_eq!(verbs, BTreeSet::from(["get", "list"]), "{requests:#?}");
    assert!(requests.iter().any(|one| one.resource == "pods"), "{requests:#?}");
    cluster.kubelet.resume();
}

/// Everything that a preflight could change: files with their sizes, times and content, the runtime's objects, and the
/// cgroups of pods with their values. Of the logs of pods, which write them meanwhile, the names.
fn snapshot(cluster: &Cluster) -> String {
    let dir = cluster.dir().display();
    let pods = cluster.get(&["pods", "-A"]);
    let uids = items(&pods).map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned());
    let uids: Vec<_> = uids.collect();
    let of_uids = uids.iter().map(|uid| format!("-path '*{uid}*'"));
    let of_uids = of_uids.collect::<Vec<_>>().join(" -o ");
    let script = format!(
        "set -e
         find /var/log/pods | sort
         for d in {ROOT} {dir}/manifests {dir}/kubelet.yaml {dir}/private/kubelet.conf /etc/cni; do
             [ -e $d ] || continue
             find $d -xdev -printf '%p %y %s %m %T@ %C@ %l\\n'
             find $d -xdev -type f -exec sha256sum {{}} +
         done
         find /sys/fs/cgroup -type d \\( {of_uids} \\) | sort | while read d; do
             echo $d; cat $d/cgroup.procs $d/cpu.max $d/memory.max $d/cpu.cfs_quota_us $d/memory.limit_in_bytes 2>/dev/null || true
         done"
    );
    let files = cluster.inside(&["sh", "-c", &script]);
    assert!(files.lines().count() > 50, "{files}");
    let sandboxes = cluster.crictl(&["pods"]);
    let containers = cluster.crictl(&["ps", "-a"]);
    format!("{files}\n{sandboxes:#}\n{containers:#}")
}

fn assert_said(report: &Value, code: i32, expected: i32, words: &[&str]) {
    assert_eq!(code, expected, "{report:#}");
    let text = report.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {report:#}");
    }
}

/// What is not safe or not known is said so, whatever else is well.
fn bad_input_is_never_safe(cluster: &Cluster) {
    // No API server.
    let dir = cluster.dir();
    let away = std::fs::read_to_string(dir.join("private/kubelet.conf")).unwrap();
    let away = away.replace("server: https://", "server: https://127.0.0.1:1/#");
    std::fs::write(dir.join("private/away.conf"), away).unwrap();
    let config = dir.join("kubelet.yaml");
    let flags = |kubeconfig: &str| {
        let kubeconfig = dir.join(kubeconfig);
        [
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={NODE}"),
        ]
    };
    let away = flags("private/away.conf");
    let away: Vec<_> = away.iter().map(String::as_str).collect();
    let (report, code) = preflight(cluster, &[], &away);
    assert_said(&report, code, 2, &["notKnown", "API server"]);
    std::fs::remove_file(dir.join("private/away.conf")).unwrap();

    // No permission.
    let powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let (report, code) = preflight(cluster, &powerless, &[]);
    assert_said(&report, code, 2, &["notKnown", "run this as root"]);

    // A checkpoint that was cut short, and one that cannot be read.
    let state = format!("{ROOT}/cpu_manager_state");
    let backup = dir.join("cpu_manager_state");
    let backup = backup.to_str().unwrap();
    cluster.inside(&["cp", "-p", &state, backup]);
    cluster.inside(&["sh", "-c", &format!("head -c 20 {backup} >{state}")]);
    let (report, code) = preflight(cluster, &[], &[]);
    assert_said(&report, code, 1, &["notSafe", &state]);
    cluster.inside(&["cp", "-p", backup, &state]);

    // A setting of the wrong form, and two kubelets at once.
    let wrong = dir.join("wrong.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&wrong, format!("{text}maxPods: many\n")).unwrap();
    let flag = format!("--config={}", wrong.display());
    let (report, code) = preflight(cluster, &[], &[&flag]);
    let line = format!("wrong.yaml:{}", text.lines().count() + 1);
    assert_said(&report, code, 1, &["notSafe", &line]);
    let second = "(exec -a kubelet sleep -- 1000) &
        until [ \"$(tr '\\0' ' ' </proc/$!/cmdline)\" = 'kubelet -- 1000 ' ]; do sleep 0.1; done
        \"$@\"; code=$?; kill $!; exit $code";
    let (report, code) = preflight(cluster, &["bash", "-c", second, "bash"], &[]);
    assert_said(&report, code, 1, &["2 kubelets run on this node", "--pid"]);
    // Another user's process is no kubelet: its flags would have root run that user's programs.
    let second = "setpriv --reuid=65534 --clear-groups bash -c 'exec -a kubelet sleep -- 1000' &
        until [ \"$(tr '\\0' ' ' </proc/$!/cmdline)\" = 'kubelet -- 1000 ' ]; do sleep 0.1; done
        \"$@\"; code=$?; kill $!; exit $code";
    let (report, code) = preflight(cluster, &["bash", "-c", second, "bash"], &[]);
    assert_said(&report, code, 0, &["runs as another user"]);

    // One of two that was chosen, and its proxy, which does not answer.
    let second = "HTTPS_PROXY=http://127.0.0.1:9 bash -c 'exec -a kubelet sleep 1000' &
        until [ \"$(tr '\\0' ' ' </proc/$!/cmdline)\" = 'kubelet 1000 ' ]; do sleep 0.1; done
        \"$@\" --pid $!; code=$?; kill $!; exit $code";
    let own = flags("private/kubelet.conf");
    let own: Vec<_> = own.iter().map(String::as_str).collect();
    let (report, code) = preflight(cluster, &["bash", "-c", second, "bash"], &own);
    let words = [
        "another kubelet runs on this node",
        "requests to the API server go through http://127.0.0.1:9",
        "the API server could not be read",
    ];
    assert_said(&report, code, 1, &words);

    // A unit with quotes, variables and a drop-in, which would start other flags than the process has.
    let unit = "/etc/systemd/system/kubelet.service";
    let text =
        "[Service]\nEnvironment='A=--v=2 --root-dir=\"/a b\"'\nExecStart=/usr/bin/kubelet $A\n";
    let script = format!(
        "mkdir -p {unit}.d && printf '%s' \"$1\" >{unit} &&
         printf '[Service]\\nEnvironment=A=--v=3\\n' >{unit}.d/10.conf"
    );
    cluster.inside(&["sh", "-c", &script, "sh", text]);
    let (report, code) = preflight(cluster, &[], &[]);
    let places = [
        &format!("{unit}.d/10.conf:2: A is given here and at {unit}:2; this one counts"),
        &format!("{unit}:3: a restart of the unit starts other flags"),
        "only the unit: --v=3; ",
    ];
    assert_said(&report, code, 1, &places);
    cluster.inside(&["rm", "-r", unit, &format!("{unit}.d")]);

    // A client certificate of a kind that is not supported.
    let key = dir.join("private/secp256k1");
    let key = key.to_str().unwrap();
    cluster.inside(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:secp256k1",
        "-nodes",
        "-subj",
        "/O=system:nodes/CN=system:node:node1",
        "-keyout",
        key,
        "-out",
        &format!("{key}.crt"),
    ]);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "c", "user": {"client-certificate": format!("{key}.crt"), "client-key": key}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    std::fs::write(dir.join("private/secp256k1.conf"), kubeconfig.to_string()).unwrap();
    let flags = flags("private/secp256k1.conf");
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    // Without the rotated certificate, which would replace it.
    let none = format!("--cert-dir={}", dir.join("none").display());
    flags.push(&none);
    let (report, code) = preflight(cluster, &[], &flags);
    assert_said(&report, code, 1, &["secp256k1.conf: ", "invalid private key"]);
}

pub async fn a_preflight_changes_nothing_and_the_exchange_does_what_it_said() {
    Flavour::Go.make_current();
    let mut cluster = Cluster::start();
    let go = version(&cluster);
    cluster.create(PODS);
    cluster.manifests().put("static.yaml", STATIC_POD);
    cluster.rolled_out("web");
    cluster.wait("create", "pod/static-node1");
    cluster.wait("condition=Ready", "pod/static-node1");
    cluster.wait("jsonpath={.status.phase}=Failed", "pod/once");
    is_safe_and_changes_nothing(&cluster);
    bad_input_is_never_safe(&cluster);
    is_safe(&cluster);

    // A static pod that has another image by then, and a pod that is not admitted.
    cluster.kubelet.pause();
    let changed = STATIC_POD.replace("name: main", "name: other");
    cluster.manifests().put("static.yaml", &changed);
    cluster.create(REFUSED);
    let (report, code) = preflight(&cluster, &[], &[]);
    assert_eq!(code, 1, "{report:#}");
    let said = outcomes(&report);
    let outcome = |name: &str| said.get(name).map(String::as_str);
    assert_eq!(outcome("static-node1"), Some("restarted"), "{report:#}");
    assert_eq!(outcome("refused"), Some("refused"), "{report:#}");
    let kept = said.iter().filter(|(name, _)| name.starts_with("web-"));
    assert!(kept.clone().count() == 2 && kept.clone().all(|(_, is)| is == "kept"));
    let containers = running(&cluster);

    Flavour::Rust.make_current();
    cluster.restart_kubelet();
    wait_for("this kubelet reports the node", DEADLINE, || async {
        holds(version(&cluster) != go, "the Go kubelet's report")
    })
    .await;
    cluster.wait("jsonpath={.status.reason}=SysctlForbidden", "pod/refused");
    wait_for("the changed static pod runs", DEADLINE, || async {
        let running = running(&cluster).join("\n");
        holds(running.contains("\"other\""), running)
    })
    .await;
    let mut kept = running(&cluster);
    kept.retain(|one| containers.contains(one));
    assert_eq!(kept.len() + 1, containers.len(), "only the static pod's container is another one");

    cluster.manifests().remove("static.yaml");
    cluster.kubectl(&["delete", "deployment/web", "pod/once", "pod/refused"]);
    cluster.wait("delete", "pod/static-node1");
    nothing_is_leaked(&cluster).await;
}
