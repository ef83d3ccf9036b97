//! A pod with ids of its own.

use super::{container_with_ids, sandbox_with_ids, web_pod};
use crate::cri::v1::{self, NamespaceMode};
use crate::runtime::kuberuntime::generate::security_context::ImageUser;
use crate::runtime::kuberuntime::generate::user_namespaces::ranges::IdRange;

#[test]
fn sandbox_container_and_every_mount_name_the_same_ids() {
    let range = IdRange { host_id: 131_072, length: 65536 };
    let mapping = [v1::IdMapping { host_id: 131_072, container_id: 0, length: 65536 }];
    let sandbox = sandbox_with_ids(&web_pod(), Some(range)).unwrap();
    let security = sandbox.linux.unwrap().security_context.unwrap();
    let container = container_with_ids(&web_pod(), ImageUser::Uid(0), Some(range)).unwrap();
    for mount in &container.mounts {
        assert_eq!(mount.uid_mappings, mapping, "{}", mount.container_path);
        assert_eq!(mount.gid_mappings, mapping, "{}", mount.container_path);
    }
    assert_eq!(container.mounts.len(), 4);
    let of_container = container.linux.unwrap().security_context.unwrap();
    for options in [security.namespace_options, of_container.namespace_options] {
        let users = options.unwrap().userns_options.unwrap();
        assert_eq!(users.mode(), NamespaceMode::Pod);
        assert_eq!(users.uids, mapping);
        assert_eq!(users.gids, mapping);
    }
}
