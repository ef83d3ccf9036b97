//! Images that providers of logins gave for service accounts.

use super::{World, ensure, world_of};
use crate::images::PullConfig;
use crate::images::PullPolicy::IfNotPresent;
use crate::images::credentials::plugin_tests::{
    World as Providers, answer, issuer, pod_with_account, with_account,
};
use crate::images::credentials::{Keyring, NodeFiles};
use crate::images::records::{PullRecords, VerificationPolicy};
use serde_json::json;

#[tokio::test]
async fn an_image_that_was_pulled_for_a_service_account_is_here_for_its_other_pods_and_for_no_others()
 {
    let server = issuer().await;
    let more = with_account("ServiceAccount", ", requireServiceAccount: true");
    let mut world = Providers::new().provider("p", &answer("Image", "u", ""), &more);
    world.api = Some(server.client().await);
    let keyring = Keyring::new(NodeFiles::default(), world.load().unwrap());
    let records = tempfile::tempdir().unwrap();
    let open = || {
        let policy = VerificationPolicy::NeverVerifyPreloadedImages;
        let records = PullRecords::open(records.path(), policy).unwrap();
        world_of(&PullConfig::default(), keyring.clone(), records)
    };
    let images = open();
    images.absent();
    images.pulls("sha256:1");
    let get = async |images: &World, pod: &str, account: &str| {
        let pod = pod_with_account(pod, account);
        let got = ensure(&images.manager, &pod, "r.io/x:1", IfNotPresent).await;
        assert_eq!(got.unwrap(), "sha256:1");
        images.runtime.script.calls("PullImage")
    };
    assert_eq!(get(&images, "one", "puller").await, 1);
    images.present("sha256:1");
    assert_eq!(get(&images, "two", "puller").await, 1, "of the same account");
    assert_eq!(get(&images, "three", "plain").await, 2, "of another one");
    assert_eq!(get(&images, "four", "plain").await, 2, "it is recorded");
    // A pod without an account pulls anonymously, which opens the image to all: another test's matter. After a restart
    // the account still counts, and an account that was made again is another one.
    let images = open();
    images.present("sha256:1");
    images.pulls("sha256:1");
    assert_eq!(get(&images, "five", "puller").await, 0);
    let again = json!({"metadata": {"uid": "made-again"}});
    server.put("serviceaccounts", "ns", "puller", again);
    assert_eq!(get(&images, "six", "puller").await, 1);
}
