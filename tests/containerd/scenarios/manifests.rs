//! Manifests that are good, broken, changed and alike.

use std::time::Duration;

use crate::node::{Node, WAIT_LIMIT, condition, manifest, phase};
use crate::support::wait::{holds, wait_for};

const SLEEPER: &str =
    "containers:\n- { name: c, image: \"localhost/busybox:dev\", command: [sleep, \"1000\"] }";

pub async fn one_name_in_two_namespaces_is_two_pods() {
    let node = Node::start().await;
    for namespace in ["blue", "green"] {
        let text = manifest("twin", SLEEPER)
            .replace("  name: twin\n", &format!("  name: twin\n  namespace: {namespace}\n"));
        node.put(namespace, &text);
    }
    wait_for("both are ready", WAIT_LIMIT, || async {
        let pods = node.kubelet.pods().await.unwrap_or_default();
        holds(
            pods.len() == 2 && pods.iter().all(|pod| condition(pod, "Ready") == Some(true)),
            format!("{pods:?}"),
        )
    })
    .await;
    let mut found = node
        .runtime
        .sandboxes()
        .into_iter()
        .map(|pod| (pod.namespace, pod.name))
        .collect::<Vec<_>>();
    found.sort();
    let named = |namespace: &str| (namespace.to_owned(), "twin-node1".to_owned());
    assert_eq!(found, [named("blue"), named("green")]);

    let green = node.runtime.containers().into_iter().find(|c| c.namespace == "green").unwrap();
    node.remove("blue");
    wait_for("blue is gone", WAIT_LIMIT, || async {
        let left = node.runtime.sandboxes();
        holds(left.iter().all(|pod| pod.namespace == "green"), format!("{left:?}"))
    })
    .await;
    assert_eq!(node.runtime.running(), [green]);
}

pub async fn broken_manifests_stand_beside_good_ones() {
    let node = Node::start().await;
    let put = |name: &str, text: &str| node.kubelet.manifests.put(name, text);
    put("a-not-yaml.yaml", "{ [ this is : not yaml");
    put("b-not-a-pod.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: x }\n");
    put("c-no-containers.yaml", "apiVersion: v1\nkind: Pod\nmetadata: { name: empty }\nspec: {}\n");
    put("d-empty.yaml", "");
    put(
        "e-bomb.yaml",
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
    );
    put("f-binary.yaml", "\u{1}\u{2}\u{fffd}\u{0}");
    node.put("good", &manifest("good", SLEEPER));
    node.put("later", "apiVersion: v1\nkind: Pod\nmetadata: { name: lat");
    node.ready("good").await;
    // The half-written one is finished.
    node.put("later", &manifest("later", SLEEPER));
    node.ready("later").await;
    let before = node.runtime.containers();
    assert_eq!(before.len(), 2, "{before:?}");

    // A good one breaks: what runs stays. A third pod shows that the change was read.
    node.put("good", "apiVersion: v1\nkind: Pod\nmetadata: [");
    node.put("third", &manifest("third", SLEEPER));
    node.ready("third").await;
    let running = node.runtime.running();
    assert!(before.iter().all(|c| running.contains(c)), "{before:?} {running:?}");
    assert_eq!(phase(&node.ready("good").await), "Running");
}

pub async fn a_changed_manifest_replaces_the_pod() {
    let node = Node::start().await;
    let shared = node.shared();
    let text = |word: &str| {
        manifest("change", &format!(r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap 'sleep 1; echo {word} ends >> /shared/story; exit 0' TERM; echo {word} starts >> /shared/story; while true; do sleep 0.05; done"]
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#, shared.display())).replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 10")
    };
    node.put("change", &text("old"));
    let old = node.ready("change").await;
    wait_for("the old one is up", WAIT_LIMIT, || async {
        holds(node.shared_file("story") == "old starts\n", "no")
    })
    .await;
    node.put("change", &text("new"));
    wait_for("the new one is up", Duration::from_secs(90), || async {
        let story = node.shared_file("story");
        holds(story.ends_with("new starts\n"), story)
    })
    .await;
    let story = node.shared_file("story");
    assert_eq!(story.lines().collect::<Vec<_>>(), ["old starts", "old ends", "new starts"]);
    let new =
        node.pod_when("change", "is the new one", |pod| pod.metadata.uid != old.metadata.uid).await;
    assert_ne!(new.metadata.uid, old.metadata.uid);
    wait_for("the old sandbox is gone", Duration::from_secs(90), || async {
        let left = node.runtime.sandboxes();
        holds(left.len() == 1, format!("{left:?}"))
    })
    .await;
}
