//! Generates the gRPC clients and servers from `proto/` without needing `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let protos = [
        "proto/cri/v1/api.proto",
        "proto/containerd/events.proto",
        "proto/health/health.proto",
        "proto/otlp/trace.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        // They hold secrets; `cri::secrets` says what of them may be shown.
        .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
        .codec_path("crate::cri::SmallBuffers")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
