//! Validates probes and lifecycle hooks.

use super::{Errors, Path, names};
use crate::model::ProbeKind;
use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub(super) fn validate_probe(probe: &Probe, kind: ProbeKind, path: &Path<'_>, errors: &mut Errors) {
    let handler = ProbeHandler {
        exec: probe.exec.as_ref(),
        http: probe.http_get.as_ref(),
        tcp: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    handler.validate(None, path, errors);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        errors.non_negative(&path.child(field), value.map(i64::from));
    }
    if kind != ProbeKind::Readiness
        && let Some(threshold) = probe.success_threshold
        && threshold != 1
    {
        errors.invalid_raw(&path.child("successThreshold"), threshold, "must be 1");
    }
    let at = path.child("terminationGracePeriodSeconds");
    match probe.termination_grace_period_seconds {
        Some(value) if kind == ProbeKind::Readiness => {
            errors.invalid_raw(&at, value, "must not be set for readinessProbes");
        }
        Some(value) if value <= 0 => errors.invalid_raw(&at, value, "must be greater than 0"),
        _ => {}
    }
}

/// Validates a postStart or preStop hook; a preStop `sleep` must not exceed the pod's grace period (`grace`, in
/// seconds).
pub(super) fn validate_hook(
    hook: &LifecycleHandler,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let handler = ProbeHandler {
        exec: hook.exec.as_ref(),
        http: hook.http_get.as_ref(),
        tcp: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    };
    handler.validate(grace, path, errors);
}

struct ProbeHandler<'a> {
    exec: Option<&'a ExecAction>,
    http: Option<&'a HTTPGetAction>,
    tcp: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl ProbeHandler<'_> {
    fn validate(&self, grace: Option<i64>, path: &Path<'_>, errors: &mut Errors) {
        let given = [
            ("exec", self.exec.is_some()),
            ("httpGet", self.http.is_some()),
            ("tcpSocket", self.tcp.is_some()),
            ("grpc", self.grpc.is_some()),
            ("sleep", self.sleep.is_some()),
        ];
        let mut given = given.iter().filter(|(_, given)| *given);
        if given.next().is_none() {
            errors.required(path, "must specify a handler type");
        }
        for (name, _) in given {
            let detail = "may not specify more than 1 handler type";
            errors.forbidden(&path.child(name), detail);
        }
        if let Some(exec) = self.exec
            && exec.command.as_ref().is_none_or(Vec::is_empty)
        {
            errors.required(&path.child("exec").child("command"), "");
        }
        if let Some(http) = self.http {
            validate_http(http, &path.child("httpGet"), errors);
        }
        if let Some(tcp) = self.tcp {
            validate_port(&tcp.port, &path.child("tcpSocket").child("port"), errors);
        }
        if let Some(grpc) = self.grpc {
            let at = path.child("grpc");
            port_number(i64::from(grpc.port), &at.child("port"), errors);
        }
        if let Some(sleep) = self.sleep {
            validate_sleep(sleep.seconds, grace, &path.child("sleep"), errors);
        }
    }
}

fn validate_sleep(seconds: i64, grace: Option<i64>, path: &Path<'_>, errors: &mut Errors) {
    let max = grace.unwrap_or(i64::MAX);
    if seconds < 0 || seconds > max {
        let detail = match grace {
            Some(grace) => format!("must be between 0 and terminationGracePeriodSeconds ({grace})"),
            None => "must be greater than or equal to 0".into(),
        };
        errors.invalid_raw(&path.child("seconds"), seconds, detail);
    }
}

fn validate_http(http: &HTTPGetAction, path: &Path<'_>, errors: &mut Errors) {
    if http.path.as_deref().is_none_or(str::is_empty) {
        errors.required(&path.child("path"), "");
    }
    validate_port(&http.port, &path.child("port"), errors);
    errors.one_of(&path.child("scheme"), http.scheme.as_deref(), &["HTTP", "HTTPS"]);
    for (index, header) in http.http_headers.iter().flatten().enumerate() {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let list = path.child("httpHeaders");
        let at = list.index(index);
        if header.name.is_empty() || !header.name.chars().all(token) {
            errors.invalid(&at.child("name"), &header.name, "must be an HTTP header name");
        }
        if header.value.contains(['\r', '\n', '\0']) {
            errors.invalid(&at.child("value"), "", "must be one line of text");
        }
    }
}

fn validate_port(port: &IntOrString, path: &Path<'_>, errors: &mut Errors) {
    match port {
        IntOrString::Int(number) => port_number(i64::from(*number), path, errors),
        IntOrString::String(name) => errors.check(path, name, names::port_name),
    }
}

/// A port number from 1 to 65535.
pub(super) fn port_number(number: i64, path: &Path<'_>, errors: &mut Errors) {
    if !(1..=65535).contains(&number) {
        errors.invalid_raw(path, number, "must be between 1 and 65535, inclusive");
    }
}
