//! The container runtime interface.

/// The generated CRI v1 messages, clients and servers.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
