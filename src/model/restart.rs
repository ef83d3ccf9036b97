//! Whether an exited container is restarted: by its restart rules, else by its own policy, else by its pod's.

use super::{Pod, PodExt, RestartPolicy};
use k8s_openapi::api::core::v1::Container;

impl RestartPolicy {
    /// The effective policy of a container: its own, else the pod's. It alone decides if there is no exit code, as
    /// for a container that failed its probe.
    pub fn of(pod: &Pod, container: &Container) -> Self {
        let own = container.restart_policy.as_deref();
        own.and_then(Self::parse).unwrap_or_else(|| pod.restart_policy())
    }
}

/// The action of a rule in `restartPolicyRules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// Restart the container, whatever its policy.
    Restart,
    /// Restart all containers of the pod, in the same sandbox.
    RestartAllContainers,
}

/// The action of the container's first rule that matches the exit code (upstream's
/// `FindMatchingContainerRestartRule`). An unknown rule matches nothing.
pub fn restart_action(container: &Container, exit_code: i32) -> Option<RestartAction> {
    let rules = container.restart_policy_rules.as_deref()?;
    let matching = rules.iter().find(|rule| {
        let Some(codes) = &rule.exit_codes else {
            return false;
        };
        let listed = codes.values.iter().flatten().any(|c| *c == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })?;
    match matching.action.as_str() {
        "Restart" => Some(RestartAction::Restart),
        "RestartAllContainers" => Some(RestartAction::RestartAllContainers),
        _ => None,
    }
}

/// Whether the container is restarted after an exit with this code (upstream's `ContainerShouldRestart`).
pub fn container_should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    restart_action(container, exit_code).is_some()
        || RestartPolicy::of(pod, container).restarts_after(exit_code)
}

/// Whether any container has a rule that restarts all containers.
pub fn may_restart_all(pod: &Pod) -> bool {
    let mut all = pod.init_containers().iter().chain(pod.containers());
    all.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use RestartAction::{Restart, RestartAllContainers};
    use serde_json::json;

    fn rules(rules: &serde_json::Value) -> Container {
        let made = json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": rules});
        serde_json::from_value(made).unwrap()
    }

    fn rule(action: &str, operator: &str, values: &[i32]) -> serde_json::Value {
        json!({"action": action, "exitCodes": {"operator": operator, "values": values}})
    }

    #[test]
    fn the_first_rule_that_matches_the_exit_code_counts() {
        let container = rules(&json!([
            rule("Restart", "In", &[42, 43]),
            rule("RestartAllContainers", "In", &[43, 88]),
            rule("Restart", "NotIn", &[0, 1]),
        ]));
        for (code, expected) in [
            (42, Some(Restart)),
            (43, Some(Restart)),
            (88, Some(RestartAllContainers)),
            (2, Some(Restart)),
            (-1, Some(Restart)),
            (0, None),
            (1, None),
        ] {
            assert_eq!(restart_action(&container, code), expected, "{code}");
        }
    }

    #[test]
    fn lists_may_be_empty_and_what_is_not_understood_matches_nothing() {
        for (rule, expected) in [
            (rule("Restart", "In", &[]), None),
            (rule("Restart", "NotIn", &[]), Some(Restart)),
            (rule("Restart", "Within", &[7]), None),
            (rule("Explode", "In", &[7]), None),
            (json!({"action": "Restart"}), None),
        ] {
            let container = rules(&json!([rule]));
            assert_eq!(restart_action(&container, 7), expected, "{rule}");
        }
        assert_eq!(restart_action(&Container::default(), 7), None);
    }

    #[test]
    fn rules_come_before_the_containers_policy_and_that_before_the_pods() {
        for (of_pod, own, with_rule, after_0, after_1, after_42) in [
            ("Always", None, false, true, true, true),
            ("OnFailure", None, false, false, true, true),
            ("Never", None, false, false, false, false),
            ("Never", Some("Always"), false, true, true, true),
            ("Never", Some("OnFailure"), false, false, true, true),
            ("Always", Some("Never"), false, false, false, false),
            ("Always", Some("Never"), true, false, false, true),
            ("Never", Some("OnFailure"), true, false, true, true),
        ] {
            let mut container =
                Container { restart_policy: own.map(str::to_owned), ..Container::default() };
            if with_rule {
                let made = rules(&json!([rule("Restart", "In", &[42])]));
                container.restart_policy_rules = made.restart_policy_rules;
            }
            let pod: Pod = serde_json::from_value(json!({
                "spec": {"restartPolicy": of_pod, "containers": []}
            }))
            .unwrap();
            let decisions = [0, 1, 42].map(|code| container_should_restart(&pod, &container, code));
            let case = (of_pod, own, with_rule);
            assert_eq!(decisions, [after_0, after_1, after_42], "{case:?}");
        }
    }
}
