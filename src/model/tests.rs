use super::*;
use k8s_openapi::api::core::v1::Container;

fn container(name: &str, image: &str) -> Container {
    Container { name: name.into(), image: Some(image.into()), ..Container::default() }
}

#[test]
fn container_hash_equals_upstreams_golden_vectors() {
    assert_eq!(container_hash(&container("test_container", "foo/image:v1")), "8e45cbd0");
    assert_eq!(container_hash(&container("foo", "bar")), "11a6d6d6");
}

#[test]
fn container_hash_depends_on_nothing_but_name_and_image() {
    let plain = container("foo", "bar");
    let changed = Container { command: Some(vec!["sh".into()]), ..plain.clone() };
    assert_eq!(container_hash(&plain), container_hash(&changed));
    assert_ne!(container_hash(&plain), container_hash(&container("foo", "bar:2")));
}

#[test]
fn back_off_key_changes_with_the_image_and_the_resources() {
    let plain = container("c", "a");
    let key = |c: &Container| back_off_key("p", "ns", "u", c);
    assert_eq!(key(&plain), key(&plain.clone()));
    assert_ne!(key(&plain), key(&container("c", "b")));
    let resized = Container {
        resources: Some(k8s_openapi::api::core::v1::ResourceRequirements {
            limits: Some(
                [(
                    "cpu".to_string(),
                    k8s_openapi::apimachinery::pkg::api::resource::Quantity("1".into()),
                )]
                .into(),
            ),
            ..Default::default()
        }),
        ..plain.clone()
    };
    assert_ne!(key(&plain), key(&resized));
}

#[test]
fn statuses_sort_newest_first() {
    let at = |id: &str, created_at| ContainerStatus {
        id: id.into(),
        created_at,
        name: "c".into(),
        ..Default::default()
    };
    let mut status =
        PodStatus { containers: vec![at("old", 1), at("new", 2)], ..Default::default() };
    status.sort();
    assert_eq!(status.newest("c").unwrap().id.as_str(), "new");
}

#[test]
fn a_clock_that_was_set_back_makes_no_instance_older_than_the_one_it_replaced() {
    let instance = |id: &str, restart_count, created_at| ContainerStatus {
        id: id.into(),
        restart_count,
        created_at,
        name: "c".into(),
        ..Default::default()
    };
    let mut status = PodStatus {
        containers: vec![instance("before", 3, 2_000), instance("after", 4, 1_000)],
        ..Default::default()
    };
    status.sort();
    assert_eq!(status.newest("c").unwrap().id.as_str(), "after");
}
