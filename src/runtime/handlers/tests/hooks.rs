use super::server::{Server, reply};
use super::*;
use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::cri::{CriError, Rpc};
use crate::model::fixture;
use crate::state::events::{EventRecorder, ObjectRef};
use k8s_openapi::api::core::v1::{ExecAction, SleepAction};

struct Bench {
    hooks: Hooks,
    events: EventRecorder,
    metrics: Metrics,
}

fn bench(exec: ExecFn) -> Bench {
    let (events, metrics) = (EventRecorder::new(), Metrics::new());
    Bench { hooks: Hooks::new(exec, events.clone(), &metrics), events, metrics }
}

fn pod() -> ObjectRef {
    ObjectRef::pod(&fixture::pod("ns/p/u1", None))
}

impl Bench {
    async fn pre_stop(&self, hook: LifecycleHandler, budget: Duration) -> Result<(), HookError> {
        let target = HookTarget {
            pod: &pod(),
            container: "c",
            container_id: &ContainerId::from("c1"),
            pod_ip: Some("127.0.0.1"),
            ports: &[],
        };
        self.hooks.run_pre_stop(&hook, &target, budget).await
    }
}

fn command(args: &[&str]) -> LifecycleHandler {
    LifecycleHandler {
        exec: Some(ExecAction { command: Some(args.iter().map(|&arg| arg.into()).collect()) }),
        ..Default::default()
    }
}

fn sleep(seconds: i64) -> LifecycleHandler {
    LifecycleHandler { sleep: Some(SleepAction { seconds }), ..Default::default() }
}

fn get(scheme: &str, port: u16) -> LifecycleHandler {
    LifecycleHandler {
        http_get: Some(HTTPGetAction {
            scheme: Some(scheme.into()),
            path: Some("/stop".into()),
            port: IntOrString::Int(port.into()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_command_that_fails_tells_everything_in_one_line() {
    let bench = bench(exec_with(|_| exited(2, "out ", "err")));
    let error = bench.pre_stop(command(&["sh", "x"]), SECOND).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Exec lifecycle hook ([sh x]) for Container \"c\" in Pod \"p_ns(u1)\" failed - error: \
         command 'sh x' exited with 2: err, message: \"out err\""
    );
}

#[tokio::test]
async fn a_hook_that_never_reached_the_runtime_says_that_it_has_not_run() {
    let unreachable: ExecFn = Arc::new(|_, _, _| {
        let error = CriError::Unavailable {
            rpc: Rpc::ExecSync,
            kind: None,
            message: "no such socket".into(),
        };
        Box::pin(async move { Err(error) })
    });
    let error = bench(unreachable).pre_stop(command(&["x"]), SECOND).await;
    assert!(matches!(error, Err(HookError::RuntimeUnavailable(_))), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_cancelled_when_its_budget_is_over() {
    let exec: ExecFn = Arc::new(|_, _, _| Box::pin(std::future::pending()));
    let bench = bench(exec);
    for hook in [command(&["x"]), sleep(100)] {
        let started_at = clock::instant();
        let over = Err(HookError::DeadlineExceeded(5 * SECOND));
        assert_eq!(bench.pre_stop(hook, 5 * SECOND).await, over);
        assert_eq!(clock::since(started_at), 5 * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_budget_nothing_is_run() {
    let bench = bench(no_exec());
    let over = Err(HookError::DeadlineExceeded(Duration::ZERO));
    assert_eq!(bench.pre_stop(command(&["x"]), Duration::ZERO).await, over);
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_budget_of_a_pre_stop_command_and_none_for_post_start() {
    let bench = bench(Arc::new(|_, _, timeout| {
        Box::pin(async move { exited(timeout.as_secs() as i32, "", "") })
    }));
    let error = bench.pre_stop(command(&["x"]), 7 * SECOND).await.unwrap_err();
    assert!(error.to_string().contains("exited with 7"), "{error}");
    let target = HookTarget {
        pod: &pod(),
        container: "c",
        container_id: &ContainerId::from("c1"),
        pod_ip: None,
        ports: &[],
    };
    let post_start = bench.hooks.run_post_start(&command(&["x"]), &target).await;
    assert_eq!(post_start, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn sleep_sleeps_and_may_be_zero() {
    let bench = bench(no_exec());
    let started_at = clock::instant();
    assert_eq!(bench.pre_stop(sleep(3), 5 * SECOND).await, Ok(()));
    assert_eq!(clock::since(started_at), 3 * SECOND);
    assert_eq!(bench.pre_stop(sleep(0), 5 * SECOND).await, Ok(()));
    assert_eq!(clock::since(started_at), 3 * SECOND);
}

#[tokio::test]
async fn a_tcp_socket_and_nothing_at_all_are_no_hooks() {
    let bench = bench(no_exec());
    let tcp = LifecycleHandler { tcp_socket: Some(tcp(80)), ..Default::default() };
    for hook in [tcp, LifecycleHandler::default()] {
        let error = bench.pre_stop(hook, SECOND).await.unwrap_err();
        assert!(matches!(error, HookError::Invalid(_)), "{error:?}");
    }
}

fn refuse(_: &str, _: u16) -> String {
    reply("500 Oops", "", "")
}

#[tokio::test]
async fn any_answer_satisfies_an_http_hook() {
    let server = Server::http("127.0.0.1:0", refuse).await;
    let bench = bench(no_exec());
    assert_eq!(bench.pre_stop(get("HTTP", server.port), SECOND).await, Ok(()));
    let head = server.requests.lock()[0].clone();
    assert!(head.starts_with("GET /stop HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("User-Agent: kube-lifecycle/1.36\r\n"), "{head}");
}

#[tokio::test]
async fn an_https_hook_falls_back_to_http_and_says_so() {
    let server = Server::http("127.0.0.1:0", refuse).await;
    let bench = bench(no_exec());
    assert_eq!(bench.pre_stop(get("HTTPS", server.port), SECOND).await, Ok(()));
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(event.reason, "LifecycleHTTPFallback");
    assert_eq!(
        event.message,
        format!(
            "request to HTTPS lifecycle hook 127.0.0.1:{} got HTTP response, \
             retry with HTTP succeeded",
            server.port
        )
    );
    let text = bench.metrics.text();
    assert!(text.contains("kubelet_lifecycle_handler_http_fallbacks_total 1"), "{text}");
}

#[tokio::test]
async fn an_http_hook_that_nobody_answers_fails() {
    let port = super::server::closed_port().await;
    let bench = bench(no_exec());
    let error = bench.pre_stop(get("HTTP", port), SECOND).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "HTTP lifecycle hook (/stop) for Container \"c\" in Pod \"p_ns(u1)\" failed - error: \
             Get \"http://127.0.0.1:{port}/stop\": \
             dial tcp 127.0.0.1:{port}: connect: connection refused"
        )
    );
    assert!(bench.events.recent().is_empty());
}
