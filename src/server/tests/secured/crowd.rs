//! Many idle connections beside one client with a certificate.

use super::*;
use crate::base::clock;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// Longest response time for an authenticated client, however many others there are: long for a busy machine, and
/// short beside a client that has to wait for idle ones to time out.
const WITHIN: Duration = Duration::from_secs(5);
/// How many clients reconnect in a second.
const RETURNING: f64 = 2_000.0;

/// So many idle clients from so many addresses; each one reconnects when it is cut off.
struct Crowd {
    _clients: JoinSet<()>,
}

impl Crowd {
    /// All of them have been connected once.
    async fn gather(target: SocketAddr, size: usize, addresses: usize) -> Self {
        let (connected, mut count) = tokio::sync::watch::channel(0_usize);
        let connected = Arc::new(connected);
        let mut clients = JoinSet::new();
        let away = Duration::from_secs_f64(f64::from(u32::try_from(size).unwrap()) / RETURNING);
        for number in 0..size {
            let last = u8::try_from(2 + number % addresses).unwrap();
            let (source, connected) = (Ipv4Addr::new(127, 0, 0, last), connected.clone());
            clients.spawn(async move {
                let mut first = true;
                loop {
                    let stream = silent(source, target).await;
                    if first {
                        connected.send_modify(|count| *count += 1);
                        first = false;
                    }
                    if let Some(mut stream) = stream {
                        let _ = stream.read(&mut [0; 1]).await;
                    }
                    tokio::time::sleep(away).await;
                }
            });
        }
        let all = count.wait_for(|count| *count == size);
        timeout(TIMEOUT * 2, all).await.expect("they do not get through").unwrap();
        Self { _clients: clients }
    }
}

async fn silent(source: Ipv4Addr, target: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind((source, 0).into()).ok()?;
    socket.connect(target).await.ok()
}

/// Raises the limit of file descriptors.
fn allow_descriptors(needed: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    let enough = maximum.is_none_or(|maximum| maximum >= needed);
    assert!(enough, "this test needs {needed} descriptors, and {maximum:?} are allowed");
}

/// Times of new connections to the response of `/healthz/ping`, and to the first line of a followed log,
/// ascending.
async fn measure(served: &Served, config: &ClientConfig) -> [Vec<Duration>; 2] {
    let (mut health, mut log) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        let started_at = clock::instant();
        let (status, _) = get(served, config, "/healthz/ping", "").await;
        assert_eq!(status, 200);
        health.push(clock::since(started_at));
        let started_at = clock::instant();
        let mut follower = shake(served, config).await.unwrap();
        let request = "GET /containerLogs/default/a/c?follow=true HTTP/1.1\r\nHost: n1\r\n\r\n";
        follower.write_all(request.as_bytes()).await.unwrap();
        wait_said(&mut follower, &mut Vec::new(), "first").await;
        log.push(clock::since(started_at));
    }
    [health, log].map(|mut all| {
        all.sort();
        all
    })
}

async fn beside_a_crowd(size: usize, addresses: usize) {
    allow_descriptors(u64::try_from(size).unwrap() + 4_000);
    let setting = Setting::alone();
    let (handler, _writer) = chatting(&setting.file("pods/a/c/0.log"));
    let served = setting.serve_with(handler).await;
    let config = setting.client(Some(&setting.clients.client("ops", &[])));
    let crowd = Crowd::gather(served.address, size, addresses).await;
    let measured = timeout(TIMEOUT, measure(&served, &config)).await;
    let measured = measured.expect("an authenticated client is kept out");
    for (what, all) in ["/healthz/ping", "a followed log"].iter().zip(measured) {
        let (median, longest) = (all[all.len() / 2], all[all.len() - 1]);
        println!(
            "{size} silent connections from {addresses} addresses: {what}: {median:?}, at most {longest:?}"
        );
        // A single late one may be due to the machine.
        assert!(all[all.len() - 2] < WITHIN, "{what}: {all:?}");
    }
    drop(crowd);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_clients_of_one_address_lock_no_client_out() {
    beside_a_crowd(1_000, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_clients_of_a_hundred_addresses_lock_no_client_out() {
    beside_a_crowd(10_000, 100).await;
}
