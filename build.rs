//! Generates the gRPC clients and servers from `proto/` without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

/// Messages of CSI with secrets, tokens or confidential mount options.
const CSI_SECRETS: [&str; 10] = [
    ".csi.v1.NodeStageVolumeRequest",
    ".csi.v1.NodePublishVolumeRequest",
    ".csi.v1.NodeExpandVolumeRequest",
    ".csi.v1.VolumeCapability.MountVolume",
    ".csi.v1.CreateVolumeRequest",
    ".csi.v1.DeleteVolumeRequest",
    ".csi.v1.ControllerPublishVolumeRequest",
    ".csi.v1.ControllerUnpublishVolumeRequest",
    ".csi.v1.ValidateVolumeCapabilitiesRequest",
    ".csi.v1.ControllerExpandVolumeRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let protos = [
        "proto/cri/v1/api.proto",
        "proto/containerd/events.proto",
        "proto/csi/csi.proto",
        "proto/deviceplugin/v1beta1/api.proto",
        "proto/dra/health/api.proto",
        "proto/dra/v1/api.proto",
        "proto/health/health.proto",
        "proto/otlp/trace.proto",
        "proto/pluginregistration/v1/api.proto",
        "proto/podresources/v1/api.proto",
        "proto/podresources/v1alpha1/api.proto",
        "proto/pprof/profile.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        // The same response is encoded the same way each time.
        .btree_map(".v1beta1")
        .btree_map(".csi.v1")
        // They hold secrets; `cri::secrets` and `volumes::csi::messages` say what of them may be shown.
        .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
        .skip_debug(CSI_SECRETS)
        .codec_path("crate::cri::SmallBuffers")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    pods_api()
}

/// The Pods API has the package of another one, so it has a directory of its own. Its pods are encoded by descriptors.
fn pods_api() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?).join("pods_api");
    fs::create_dir_all(&out)?;
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.open_file("core/v1/pod.proto")?;
    fs::write(out.join("pod.desc"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .codec_path("crate::cri::SmallBuffers")
        .emit_rerun_if_changed(false)
        .out_dir(out)
        .compile_fds(protox::compile(["proto/pods/v1alpha1/api.proto"], ["proto"])?)?;
    Ok(())
}
