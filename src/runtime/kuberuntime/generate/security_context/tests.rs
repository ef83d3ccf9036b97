use super::*;
use crate::runtime::kuberuntime::fixtures::{pod, pod_with, settings};
use serde_json::{Value, json};

fn security(
    pod: &Pod,
    user: ImageUser,
    seccomp_default: bool,
) -> v1::LinuxContainerSecurityContext {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(dir.path());
    settings.seccomp_default = seccomp_default;
    container_security_context(pod, &pod.containers()[0], &user, &settings, None).unwrap()
}

#[test]
fn the_images_user_counts_when_the_pod_names_none() {
    let plain = pod_with(json!({}));
    let by_name = security(&plain, ImageUser::Name("app".into()), false);
    assert_eq!((by_name.run_as_user, by_name.run_as_username.as_str()), (None, "app"));
    let by_number = security(&plain, ImageUser::Uid(12), false);
    assert_eq!(by_number.run_as_user.unwrap().value, 12);
    let image = |uid: Option<i64>, username: &str| {
        ImageUser::of(&ReadyImage { reference: "sha256:1".into(), uid, username: username.into() })
    };
    assert_eq!(image(None, ""), ImageUser::Uid(0));
    assert_eq!(image(Some(5), ""), ImageUser::Uid(5));
    assert_eq!(image(None, "app"), ImageUser::Name("app".into()));
}

#[test]
fn the_nodes_seccomp_default_is_for_those_who_name_nothing() {
    let kind = |pod: &Pod, default| {
        let security = security(pod, ImageUser::Uid(1), default);
        security.seccomp.unwrap().profile_type()
    };
    let plain = pod_with(json!({}));
    let open = pod_with(json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}));
    assert_eq!(kind(&plain, false), ProfileType::Unconfined);
    assert_eq!(kind(&plain, true), ProfileType::RuntimeDefault);
    assert_eq!(kind(&open, true), ProfileType::Unconfined);
}

#[test]
fn profiles_without_a_name_or_outside_their_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |context: Value| {
        let pod = pod_with(json!({"securityContext": context}));
        container_security_context(
            &pod,
            &pod.containers()[0],
            &ImageUser::Uid(1),
            &settings(dir.path()),
            None,
        )
        .unwrap_err()
        .to_string()
    };
    let seccomp =
        |name: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": name}});
    assert_eq!(
        refused(seccomp("")),
        "localhostProfile must be set if seccompProfile type is Localhost."
    );
    assert!(refused(seccomp("../x")).contains("leads out"));
    assert!(refused(seccomp("/etc/x")).contains("leads out"));
    assert!(refused(json!({"appArmorProfile": {"type": "Localhost"}})).contains("missing"));
}

#[test]
fn escalation_is_barred_when_the_pod_says_so_and_apparmor_may_come_from_an_annotation() {
    let mut pod = pod_with(json!({"securityContext": {"allowPrivilegeEscalation": false}}));
    let key = "container.apparmor.security.beta.kubernetes.io/c".to_string();
    pod.metadata.annotations = Some([(key, "localhost/mine".to_string())].into());
    let security = security(&pod, ImageUser::Uid(1), false);
    assert!(security.no_new_privs);
    assert_eq!(security.apparmor.unwrap().localhost_ref, "mine");
}

#[test]
fn sharing_a_process_namespace_is_the_pods_choice() {
    let pod = pod(json!({"shareProcessNamespace": true, "containers": [{"name": "c"}],
        "securityContext": {"supplementalGroupsPolicy": "Strict"}}));
    let security = sandbox_security_context(&pod, None);
    assert_eq!(security.namespace_options.unwrap().pid(), v1::NamespaceMode::Pod);
    assert_eq!(security.supplemental_groups_policy, v1::SupplementalGroupsPolicy::Strict as i32);
}

#[test]
fn run_as_non_root_is_verified_with_upstreams_messages() {
    let context = |own: Value, level: Value| {
        pod(
            json!({"securityContext": level, "containers": [{"name": "c", "securityContext": own}]}),
        )
    };
    let must = json!({"runAsNonRoot": true});
    let root = ImageUser::Uid(0);
    let name = ImageUser::Name("app".into());
    for (pod, user, refusal) in [
        (context(json!({}), json!({})), &root, None),
        (context(json!({"runAsNonRoot": false}), must.clone()), &root, None),
        (context(must.clone(), json!({})), &ImageUser::Uid(5), None),
        (context(must.clone(), json!({"runAsUser": 5})), &root, None),
        (
            context(json!({}), must.clone()),
            &root,
            Some(
                "container has runAsNonRoot and image will run as root (pod: \"web_shop(u-1)\", container: c)",
            ),
        ),
        (
            context(must.clone(), json!({"runAsUser": 0})),
            &ImageUser::Uid(5),
            Some(
                "container's runAsUser breaks non-root policy (pod: \"web_shop(u-1)\", container: c)",
            ),
        ),
        (
            context(must.clone(), json!({})),
            &name,
            Some(
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify user \
                 is non-root (pod: \"web_shop(u-1)\", container: c)",
            ),
        ),
    ] {
        let verified = verify_run_as_non_root(&pod, &pod.containers()[0], user);
        assert_eq!(verified.err().map(|e| e.to_string()).as_deref(), refusal);
    }
}

#[test]
fn run_as_group_without_user_is_not_set_on_the_sandbox() {
    let pod = pod(json!({"securityContext": {"runAsGroup": 3000}, "containers": [{"name": "c"}]}));
    assert_eq!(sandbox_security_context(&pod, None).run_as_group, None);
    let container = security(&pod, ImageUser::Uid(0), false);
    assert_eq!(container.run_as_group.map(|group| group.value), Some(3000));
}
