//! Evictions, as far as they do not need a machine that is really short of something.

use crate::api_source::{joined, path, wait_runs};
use crate::node::WAIT_LIMIT;
use crate::resize::sized;
use crate::support::fake_runtime::{Fault, Rpc};
use crate::support::wait::{holds, wait_for};

#[tokio::test]
async fn a_runtime_that_removes_images_slowly_does_not_delay_evictions_for_memory() {
    let (mut node, api) = joined().await;
    node.start().await;
    api.put(&path("web"), sized("web", 1, "64Mi"));
    wait_runs(&node, "web").await;
    node.stop().await;
    // Both are always met; the one for memory only after images are being removed.
    node.configure(
        "evictionHard: {nodefs.available: \"99.9%\"}\n\
         evictionSoft: {memory.available: \"99.9%\"}\n\
         evictionSoftGracePeriod: {memory.available: 3s}\n\
         imageMinimumGCAge: 1ns",
    );
    node.fake.add_image("localhost/unused:1");
    node.fake.inject(Fault::hang(Rpc::RemoveImage));
    node.start().await;
    let hangs = |calls: &[_]| {
        calls
            .iter()
            .any(|call: &crate::support::fake_runtime::Call| call.rpc == Rpc::RemoveImage)
    };
    node.fake
        .wait_for_calls("an image is removed", WAIT_LIMIT, hangs)
        .await;
    wait_for("the pod is evicted", WAIT_LIMIT, async || {
        let status = api.object(&path("web")).unwrap_or_default()["status"].clone();
        let message = status["message"].as_str().unwrap_or_default();
        let says = status["reason"] == "Evicted"
            && message.starts_with("The node was low on resource: memory. ");
        holds(says, status.to_string())
    })
    .await;
    node.fake.release(Rpc::RemoveImage);
}
