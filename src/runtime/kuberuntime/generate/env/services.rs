//! Service environment variables. Pure.

use super::Environment;
use crate::apiserver::service::{ClusterService, ServicePort};
use std::sync::Arc;

/// Upstream's `envvars.FromServices`.
pub fn variables_of_services(services: &[Arc<ClusterService>]) -> Environment {
    let mut variables = Environment::new();
    for service in services {
        let prefix = variable_name(&service.name);
        let mut add = |name: String, value: String| variables.push((name, value));
        add(format!("{prefix}_SERVICE_HOST"), service.cluster_ip.clone());
        let Some(first) = service.ports.first() else {
            continue;
        };
        add(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
            let name = variable_name(&port.name);
            add(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
        }
        add(format!("{prefix}_PORT"), url(service, first));
        for port in &service.ports {
            let protocol = port.protocol.to_uppercase();
            let name = format!("{prefix}_PORT_{}_{protocol}", port.port);
            add(format!("{name}_PROTO"), protocol.to_lowercase());
            add(format!("{name}_PORT"), port.port.to_string());
            add(format!("{name}_ADDR"), service.cluster_ip.clone());
            add(name, url(service, port));
        }
    }
    variables
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn url(service: &ClusterService, port: &ServicePort) -> String {
    let protocol = port.protocol.to_lowercase();
    let (ip, port) = (&service.cluster_ip, port.port);
    if ip.contains(':') {
        format!("{protocol}://[{ip}]:{port}")
    } else {
        format!("{protocol}://{ip}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, protocol: &str, port: i32) -> ServicePort {
        ServicePort { name: name.into(), protocol: protocol.into(), port }
    }

    #[test]
    fn a_service_has_its_address_and_each_of_its_ports() {
        let services = [
            ClusterService {
                name: "my-db".into(),
                cluster_ip: "10.0.0.3".into(),
                ports: vec![port("p-one", "TCP", 81), port("", "UDP", 82)],
            },
            ClusterService {
                name: "six".into(),
                cluster_ip: "fd00::1".into(),
                ports: vec![port("", "TCP", 443)],
            },
        ]
        .map(Arc::new);
        let mut lines: Vec<_> = variables_of_services(&services)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "MY_DB_PORT=tcp://10.0.0.3:81",
                "MY_DB_PORT_81_TCP=tcp://10.0.0.3:81",
                "MY_DB_PORT_81_TCP_ADDR=10.0.0.3",
                "MY_DB_PORT_81_TCP_PORT=81",
                "MY_DB_PORT_81_TCP_PROTO=tcp",
                "MY_DB_PORT_82_UDP=udp://10.0.0.3:82",
                "MY_DB_PORT_82_UDP_ADDR=10.0.0.3",
                "MY_DB_PORT_82_UDP_PORT=82",
                "MY_DB_PORT_82_UDP_PROTO=udp",
                "MY_DB_SERVICE_HOST=10.0.0.3",
                "MY_DB_SERVICE_PORT=81",
                "MY_DB_SERVICE_PORT_P_ONE=81",
                "SIX_PORT=tcp://[fd00::1]:443",
                "SIX_PORT_443_TCP=tcp://[fd00::1]:443",
                "SIX_PORT_443_TCP_ADDR=fd00::1",
                "SIX_PORT_443_TCP_PORT=443",
                "SIX_PORT_443_TCP_PROTO=tcp",
                "SIX_SERVICE_HOST=fd00::1",
                "SIX_SERVICE_PORT=443",
            ]
        );
    }
}
