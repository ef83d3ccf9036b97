//! Pulls that run ahead of their containers.

use super::*;
use crate::images::ImageToPrefetch;
use crate::model::PodExt;
use parking_lot::Mutex;

fn to_prefetch(pod: &Pod, container: &str, image: &str, policy: PullPolicy) -> ImageToPrefetch {
    ImageToPrefetch {
        secrets: Default::default(),
        object: ObjectRef::container(pod, container),
        image: image.into(),
        policy,
    }
}

impl World {
    fn prefetch(&self, pod: &Arc<Pod>, images: Vec<ImageToPrefetch>) {
        self.manager.prefetch(pod, images, &Default::default());
    }

    async fn ensure_for(
        &self,
        pod: &Pod,
        container: &str,
        image: &str,
        policy: PullPolicy,
    ) -> Result<String, ImageError> {
        let object = ObjectRef::container(pod, container);
        let request = ImageRequest {
            pod,
            object: &object,
            image,
            policy,
            secrets: &Default::default(),
            sandbox_config: None,
        };
        let ready = self.manager.ensure_image_exists(&request).await;
        ready.map(|image| image.reference)
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.events().iter().map(|event| event.1).collect()
    }

    async fn pulls_begun(&self, calls: usize) {
        let script = self.runtime.script.clone();
        until("pulls have begun", || script.calls("PullImage") == calls).await;
    }
}

#[tokio::test]
async fn pulls_of_later_containers_begin_before_their_turn_and_are_waited_for_in_it() {
    let world = world(&PullConfig::default());
    world.absent();
    world.runtime.script.on("PullImage", |_| {
        let reply = Reply::message(&PullImageResponse { image_ref: "sha256:1".into() });
        Reply::After(Duration::from_millis(100), Box::new(reply))
    });
    let pod = Arc::new(pod("uid-1"));
    let images = [("a", "x"), ("b", "y"), ("c", "z")];
    let all = images.map(|(name, image)| to_prefetch(&pod, name, image, IfNotPresent));
    world.prefetch(&pod, all.to_vec());
    world.pulls_begun(3).await;
    // A second sync finds them under way.
    world.prefetch(&pod, all.to_vec());
    for (name, image) in images {
        let got = world.ensure_for(&pod, name, image, IfNotPresent).await;
        assert_eq!(got.unwrap(), "sha256:1");
    }
    assert_eq!(world.runtime.script.calls("PullImage"), 3);
    let reported = ["Pulling", "Pulling", "Pulling", "Pulled", "Pulled", "Pulled"];
    assert_eq!(world.reasons(), reported);
}

#[tokio::test]
async fn an_image_that_is_there_is_looked_for_once_and_told_of_in_its_containers_turn() {
    let world = world(&PullConfig::default());
    world.present("sha256:here");
    let pod = Arc::new(pod("uid-1"));
    let both = vec![
        to_prefetch(&pod, "a", "x", IfNotPresent),
        to_prefetch(&pod, "b", "y", IfNotPresent),
        to_prefetch(&pod, "c", "n", Never),
    ];
    world.prefetch(&pod, both.clone());
    let script = world.runtime.script.clone();
    until("both were looked for", || script.calls("ImageStatus") == 2).await;
    world.prefetch(&pod, both);
    assert!(world.events().is_empty(), "no container has requested it yet");
    for (name, image, policy) in [("a", "x", IfNotPresent), ("b", "y", IfNotPresent)] {
        let got = world.ensure_for(&pod, name, image, policy).await;
        assert_eq!(got.unwrap(), "sha256:here");
    }
    assert_eq!(world.runtime.script.calls("ImageStatus"), 2);
    assert_eq!(world.reasons(), ["Pulled", "Pulled"]);
    // What was taken is used up: a restart looks again.
    world.ensure_for(&pod, "a", "x", IfNotPresent).await.unwrap();
    assert_eq!(world.runtime.script.calls("ImageStatus"), 3);
    assert_eq!(world.runtime.script.calls("PullImage"), 0);
}

#[tokio::test]
async fn serial_pulls_queue_in_the_order_of_the_containers() {
    let world = world(&serial());
    let order = Arc::new(Mutex::new(Vec::new()));
    // The earlier a container starts, the longer its check takes.
    world.runtime.script.on("ImageStatus", |request| {
        let name = ImageStatusRequest::decode(request).unwrap().image.unwrap();
        let delay = match name.image.as_str() {
            "a:latest" => 60,
            "b:latest" => 30,
            _ => 0,
        };
        let reply = Reply::message(&ImageStatusResponse::default());
        Reply::After(Duration::from_millis(delay), Box::new(reply))
    });
    world.runtime.script.on("PullImage", {
        let order = order.clone();
        move |request| {
            let spec = PullImageRequest::decode(request).unwrap().image.unwrap();
            order.lock().push(spec.image);
            Reply::message(&PullImageResponse { image_ref: "sha256:1".into() })
        }
    });
    let pod = Arc::new(pod("uid-1"));
    let all = ["a", "b", "c"].map(|name| to_prefetch(&pod, name, name, IfNotPresent));
    world.prefetch(&pod, all.to_vec());
    world.pulls_begun(3).await;
    assert_eq!(*order.lock(), ["a:latest", "b:latest", "c:latest"]);
}

#[tokio::test]
async fn a_pull_that_failed_ahead_is_that_containers_failure_and_waits_as_any_other() {
    let world = world(&PullConfig::default());
    world.absent();
    world.pull_fails(Code::Unknown, "no such manifest");
    let pod = Arc::new(pod("uid-1"));
    let one = vec![to_prefetch(&pod, "b", "x", IfNotPresent)];
    world.prefetch(&pod, one.clone());
    let recorder = world.recorder.clone();
    until("the failure is reported", || recorder.recent().len() == 2).await;
    let error = world.ensure_for(&pod, "b", "x", IfNotPresent).await;
    assert_eq!(error.unwrap_err().reason, reasons::ERR_IMAGE_PULL);
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
    // Neither prefetched nor pulled before the back-off is over, and without another lookup.
    let looks = world.runtime.script.calls("ImageStatus");
    world.prefetch(&pod, one);
    let error = world.ensure_for(&pod, "b", "x", IfNotPresent).await;
    assert_eq!(error.unwrap_err().reason, reasons::IMAGE_PULL_BACK_OFF);
    assert_eq!(world.runtime.script.calls("ImageStatus"), looks + 1);
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
    assert_eq!(world.reasons(), ["Pulling", "Failed", "BackOff"]);
}

#[tokio::test]
async fn a_pod_that_ends_gives_up_its_pulls_but_not_those_that_another_pod_wants() {
    let world = world(&PullConfig::default());
    world.absent();
    let (begun, _release) = slow_pulls(&world);
    let (one, two) = (Arc::new(pod("uid-1")), Arc::new(pod("uid-2")));
    world.prefetch(&one, vec![to_prefetch(&one, "b", "x", IfNotPresent)]);
    world.prefetch(&two, vec![to_prefetch(&two, "b", "x", IfNotPresent)]);
    let recorder = world.recorder.clone();
    until("both wait for it", || recorder.recent().len() == 2 && begun.load(Ordering::SeqCst) == 1)
        .await;
    world.manager.stop_prefetches(&one.uid());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.runtime.script.aborted("PullImage"), 0);
    world.manager.forget_pod(&two.uid());
    let script = world.runtime.script.clone();
    until("it is given up", || script.aborted("PullImage") == 1).await;
}

#[tokio::test]
async fn what_no_container_is_to_have_any_more_is_given_up() {
    let world = world(&PullConfig::default());
    world.absent();
    let (begun, _release) = slow_pulls(&world);
    let pod = Arc::new(pod("uid-1"));
    world.prefetch(&pod, vec![to_prefetch(&pod, "b", "old", IfNotPresent)]);
    until("it has begun", || begun.load(Ordering::SeqCst) == 1).await;
    world.prefetch(&pod, vec![to_prefetch(&pod, "b", "new", IfNotPresent)]);
    let script = world.runtime.script.clone();
    until("it is given up", || script.aborted("PullImage") == 1).await;
    until("the new one has begun", || begun.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn what_was_learnt_a_while_ago_is_not_believed() {
    let world = world(&PullConfig::default());
    world.present("sha256:here");
    let pod = Arc::new(pod("uid-1"));
    let one = vec![to_prefetch(&pod, "b", "x", IfNotPresent)];
    world.prefetch(&pod, one.clone());
    let script = world.runtime.script.clone();
    until("it was looked for", || script.calls("ImageStatus") == 1).await;
    // The answer is in once the task has run to its end.
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    // It holds up another prefetch, but its container checks for itself.
    world.prefetch(&pod, one);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.runtime.script.calls("ImageStatus"), 1);
    world.ensure_for(&pod, "b", "x", IfNotPresent).await.unwrap();
    assert_eq!(world.runtime.script.calls("ImageStatus"), 2);
}
