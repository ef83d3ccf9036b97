//! Generates the gRPC clients and servers from `proto/` without needing `protoc`.

use std::error::Error;

/// What sandboxes and containers are made from; it can be shown as JSON.
const SHOWN: &[&str] = &[
    "PodSandboxConfig",
    "PodSandboxMetadata",
    "DNSConfig",
    "PortMapping",
    "LinuxPodSandboxConfig",
    "LinuxSandboxSecurityContext",
    "NamespaceOption",
    "UserNamespace",
    "IDMapping",
    "SELinuxOption",
    "Int64Value",
    "SecurityProfile",
    "LinuxContainerResources",
    "HugepageLimit",
    "ContainerConfig",
    "ContainerMetadata",
    "ImageSpec",
    "KeyValue",
    "Mount",
    "Device",
    "CDIDevice",
    "LinuxContainerConfig",
    "LinuxContainerSecurityContext",
    "Capability",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let protos = [
        "proto/cri/v1/api.proto",
        "proto/containerd/events.proto",
        "proto/health/health.proto",
        "proto/otlp/trace.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    let mut builder = tonic_prost_build::configure();
    for message in SHOWN {
        let path = format!(".runtime.v1.{message}");
        builder = builder.type_attribute(path, "#[derive(serde::Serialize)]");
    }
    for foreign in ["PodSandboxConfig.windows", "ContainerConfig.windows"] {
        let path = format!(".runtime.v1.{foreign}");
        builder = builder.field_attribute(path, "#[serde(skip)]");
    }
    let as_text = "#[serde(serialize_with = \"crate::cri::as_text\")]";
    builder
        .field_attribute(".runtime.v1.KeyValue.value", as_text)
        .build_client(true)
        .build_server(true)
        // They hold secrets; `cri::secrets` says what of them may be shown.
        .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
        .codec_path("crate::cri::SmallBuffers")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
