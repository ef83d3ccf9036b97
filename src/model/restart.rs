//! Whether a container that ended runs again: its own rules, then its own policy, then its pod's.

use super::{Pod, PodExt, RestartPolicy};
use k8s_openapi::api::core::v1::Container;

impl RestartPolicy {
    /// The policy that holds for one container: its own, else the pod's. It alone decides where there
    /// is no exit code to decide by, as for a container that failed its probe.
    pub fn of(pod: &Pod, container: &Container) -> Self {
        let own = container.restart_policy.as_deref();
        own.and_then(Self::parse)
            .unwrap_or_else(|| pod.restart_policy())
    }
}

/// What a rule of `restartPolicyRules` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// The container runs again, whatever its policy.
    Restart,
    /// All containers of the pod run again, in the same sandbox.
    RestartAllContainers,
}

/// The action of the first of a container's rules that matches an exit code. A rule that is not understood
/// matches nothing; upstream's `FindMatchingContainerRestartRule`.
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

/// Whether a container runs again after an exit with this code. Upstream's `ContainerShouldRestart`.
pub fn runs_again(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    restart_action(container, exit_code).is_some()
        || RestartPolicy::of(pod, container).restarts_after(exit_code)
}

/// Whether some exit of some container would restart all of them.
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
            let mut container = Container {
                restart_policy: own.map(str::to_owned),
                ..Container::default()
            };
            if with_rule {
                let made = rules(&json!([rule("Restart", "In", &[42])]));
                container.restart_policy_rules = made.restart_policy_rules;
            }
            let pod: Pod = serde_json::from_value(json!({
                "spec": {"restartPolicy": of_pod, "containers": []}
            }))
            .unwrap();
            let decisions = [0, 1, 42].map(|code| runs_again(&pod, &container, code));
            let case = (of_pod, own, with_rule);
            assert_eq!(decisions, [after_0, after_1, after_42], "{case:?}");
        }
    }
}
