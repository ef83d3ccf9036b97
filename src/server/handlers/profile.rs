//! `/debug/pprof/profile`: a CPU profile of the kubelet.

use super::pprof;
use crate::base::{clock, error_chain, spawn_blocking};
use crate::host::profile::{MAX_COLLECT_INTERVAL, Profile, Profiler};
use crate::server::http::params::RequestParams;
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, full_bytes, text, with_connection_close};
use hyper::header::{CONTENT_DISPOSITION, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::io;
use std::time::Duration;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Default duration in seconds; upstream's.
const DEFAULT_SECONDS: u64 = 30;
/// Maximum duration in seconds; bounded, because only one profile can run at a time.
const MAX_SECONDS: u64 = 300;

const PPROF_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// The file name that clients use, as upstream.
const PPROF_DISPOSITION: HeaderValue = HeaderValue::from_static("attachment; filename=\"profile\"");

/// Profiles for this many seconds; `None` is for a HEAD request. A client that disconnects stops the profile.
pub(in crate::server) async fn cpu(
    seconds: Option<u64>,
    shutdown: &CancellationToken,
) -> Response<Body> {
    let seen = match seconds {
        Some(seconds) => record(Duration::from_secs(seconds), shutdown).await,
        None => Ok(ProfileState::File(Vec::new())),
    };
    match seen {
        Ok(ProfileState::File(file)) => {
            let mut response = full_bytes(StatusCode::OK, PPROF_TYPE, file.into());
            response.headers_mut().insert(CONTENT_DISPOSITION, PPROF_DISPOSITION);
            response
        }
        Ok(ProfileState::Busy) => {
            let body = "503 another CPU profile is in progress\n".to_owned();
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, body);
            let later = HeaderValue::from_static("30");
            response.headers_mut().insert(RETRY_AFTER, later);
            response
        }
        Ok(ProfileState::Stopping) => {
            let body = "503 the kubelet is shutting down\n".to_owned();
            with_connection_close(text(StatusCode::SERVICE_UNAVAILABLE, body))
        }
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(err = error, "CPU profile failed");
            let body = format!("500 a profile cannot be made: {error}\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    }
}

/// The parameter `seconds`.
pub(in crate::server) fn seconds(params: &RequestParams) -> Result<u64, BadQuery> {
    let Some(value) = params.query_parameter("seconds")? else {
        return Ok(DEFAULT_SECONDS);
    };
    let seconds = value.parse().ok();
    let seconds = seconds.filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
    let detail = || format!("{value:?} is not a whole number from 1 to {MAX_SECONDS}");
    seconds.ok_or_else(|| BadQuery::new("seconds", detail()))
}

enum ProfileState {
    File(Vec<u8>),
    Busy,
    Stopping,
}

async fn record(time: Duration, shutdown: &CancellationToken) -> io::Result<ProfileState> {
    let Some(mut profiler) = blocking(Profiler::start).await?? else {
        return Ok(ProfileState::Busy);
    };
    let (since_1970, started_at) =
        (clock::timestamp().as_duration().unsigned_abs(), clock::instant());
    tracing::info!(seconds = time.as_secs(), "Starting a CPU profile");
    let end = started_at + time;
    while clock::instant() < end {
        let pause = end.min(clock::instant() + MAX_COLLECT_INTERVAL);
        tokio::select! {
            () = sleep_until(pause) => {}
            () = shutdown.cancelled() => return Ok(ProfileState::Stopping),
        }
        let collect = move || {
            profiler.collect();
            profiler
        };
        profiler = blocking(collect).await?;
    }
    let took = clock::since(started_at);
    let write = move || {
        let profile: Profile = profiler.finish();
        pprof::file(&pprof::message(&profile, since_1970, took))
    };
    Ok(ProfileState::File(blocking(write).await??))
}

async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    spawn_blocking(run).await.map_err(io::Error::other)
}
