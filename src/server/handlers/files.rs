//! `/logs/`: files and listings of the node's log directory.

use super::html::{Html, MAX_TEXT};
use crate::base::spawn_blocking;
use crate::host::{ConfinedFile, open_confined};
use crate::server::http::response::{Body, HTML_TYPE, TEXT_TYPE, not_found, respond, text};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of names in a directory listing.
const MAX_NAMES: usize = 10_000;

/// Number of bytes that are read and sent at a time.
const CHUNK: u64 = 64 * 1024;

const BINARY_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Serves a file or a directory listing. `path` is the decoded path after `/logs/`.
pub(in crate::server) async fn serve(
    root: PathBuf,
    path: String,
    headers: &HeaderMap,
) -> Response<Body> {
    if path.contains('\0') {
        return not_found("there is no such file");
    }
    let conditions = Conditions::of(headers);
    let name = path.clone();
    let opened = spawn_blocking(move || open_confined(&root, path.as_ref(), MAX_NAMES)).await;
    match opened.map_err(io::Error::other).and_then(|opened| opened) {
        Ok(ConfinedFile::Directory(_)) if !name.is_empty() && !name.ends_with('/') => {
            // Links in a listing are relative to its path.
            let last = name.rsplit('/').next().unwrap_or_default();
            let mut response = text(StatusCode::MOVED_PERMANENTLY, String::new());
            let location = Html::new().markup("./").segment(last).markup("/");
            if let Ok(location) = HeaderValue::from_str(location.as_str()) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            response
        }
        Ok(ConfinedFile::Directory(names)) => {
            let body = Full::new(Bytes::from(listing(&names))).map_err(|never| match never {});
            respond(StatusCode::OK, HTML_TYPE, body.boxed_unsync())
        }
        Ok(ConfinedFile::File(file, meta)) => {
            let modified = meta.modified().unwrap_or(UNIX_EPOCH);
            let kind = if name.ends_with(".gz") || name.ends_with(".journal") {
                BINARY_TYPE
            } else {
                TEXT_TYPE
            };
            file_response(file, meta.len(), modified, kind, &conditions)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            text(StatusCode::FORBIDDEN, "403 the file may not be read\n".into())
        }
        Err(error) => {
            tracing::debug!(path = name, err = %error, "Reading a node log failed");
            not_found("there is no such file")
        }
    }
}

/// Conditional and range headers of a request.
#[derive(Default)]
struct Conditions {
    range: Option<String>,
    /// `If-Modified-Since`
    since: Option<Timestamp>,
}

impl Conditions {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            range: text(header::RANGE).map(ToOwned::to_owned),
            // This server sends no entity tags, so a request with one does not match.
            since: text(header::IF_MODIFIED_SINCE)
                .filter(|_| !headers.contains_key(header::IF_NONE_MATCH))
                .and_then(read_http_date),
        }
    }

    /// Whether the client's copy is current (304); HTTP dates have a resolution of seconds.
    fn is_not_modified(&self, modified: SystemTime) -> bool {
        let modified = Timestamp::try_from(modified).map(|time| time.as_second());
        let since = self.since.map(|time| time.as_second());
        matches!((modified, since), (Ok(modified), Some(since)) if modified <= since)
    }
}

fn file_response(
    file: File,
    length: u64,
    modified: SystemTime,
    kind: HeaderValue,
    conditions: &Conditions,
) -> Response<Body> {
    if conditions.is_not_modified(modified) {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        if let Some(date) = http_date(modified) {
            set(&mut response, header::LAST_MODIFIED, date);
        }
        return response;
    }
    let wanted = conditions.range.as_deref();
    let (status, range) = match wanted.map(|wanted| byte_range(wanted, length)) {
        None | Some(RangeRequest::Full) => (StatusCode::OK, 0..length),
        Some(RangeRequest::Partial(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(RangeRequest::Unsatisfiable) => {
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let mut response = text(status, format!("416 the file has {length} bytes\n"));
            set(&mut response, header::CONTENT_RANGE, format!("bytes */{length}"));
            return response;
        }
    };
    let sent = range.end - range.start;
    let mut response = respond(status, kind, chunks(file, range.clone()));
    // If the log is truncated meanwhile, the connection is aborted, because the response is shorter than its
    // Content-Length.
    set(&mut response, header::CONTENT_LENGTH, sent.to_string());
    set(&mut response, header::ACCEPT_RANGES, "bytes".into());
    if let Some(date) = http_date(modified) {
        set(&mut response, header::LAST_MODIFIED, date);
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let (first, last) = (range.start, range.end.saturating_sub(1));
        set(&mut response, header::CONTENT_RANGE, format!("bytes {first}-{last}/{length}"));
    }
    response
}

fn set(response: &mut Response<Body>, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(name, value);
    }
}

/// Streams a range of a file as the client reads it.
fn chunks(file: File, range: Range<u64>) -> Body {
    let start = (file, range);
    let parts = stream::try_unfold(start, |(mut file, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let read = spawn_blocking(move || {
            let mut part = Vec::new();
            file.seek(SeekFrom::Start(range.start))?;
            let size = CHUNK.min(range.end - range.start);
            (&mut file).take(size).read_to_end(&mut part)?;
            if part.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let read = u64::try_from(part.len()).unwrap_or(size);
            Ok((part, (file, range.start + read..range.end)))
        });
        let (part, rest) = read.await.map_err(io::Error::other)??;
        Ok::<_, io::Error>(Some((Frame::data(Bytes::from(part)), rest)))
    });
    let parts = futures::StreamExt::map(parts, |part| part.map_err(Into::into));
    StreamBody::new(parts).boxed_unsync()
}

/// A parsed `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum RangeRequest {
    Full,
    Partial(Range<u64>),
    Unsatisfiable,
}

/// Multiple ranges, other units and invalid values yield the whole file, as RFC 9110 allows.
fn byte_range(wanted: &str, length: u64) -> RangeRequest {
    let range = wanted.strip_prefix("bytes=").map(str::trim);
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return RangeRequest::Full;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let range = match (number(first), number(last)) {
        (None, Some(tail)) if first.trim().is_empty() => length.saturating_sub(tail)..length,
        (Some(first), None) if last.trim().is_empty() => first..length,
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        _ => return RangeRequest::Full,
    };
    if range.is_empty() { RangeRequest::Unsatisfiable } else { RangeRequest::Partial(range) }
}

/// The HTML of a directory listing.
fn listing(names: &[(String, bool)]) -> String {
    let mut page = Html::new().markup(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n",
    );
    for (name, is_directory) in names {
        let slash = if *is_directory { "/" } else { "" };
        // With `./`, a name cannot be interpreted as a URL with scheme.
        let link = Html::new().markup("<a href=\"./").segment(name).markup(slash);
        let link = link.markup("\">").text(name, MAX_TEXT).markup(slash).markup("</a>\n");
        page = page.with(&link);
    }
    page.markup("</pre>\n").as_str().to_owned()
}

const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

fn http_date(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    Some(time.strftime(HTTP_DATE).to_string())
}

fn read_http_date(text: &str) -> Option<Timestamp> {
    let time = DateTime::strptime(HTTP_DATE, text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let rows = [
            ("bytes=0-3", RangeRequest::Partial(0..4)),
            ("bytes=4-", RangeRequest::Partial(4..10)),
            ("bytes=-3", RangeRequest::Partial(7..10)),
            ("bytes=-30", RangeRequest::Partial(0..10)),
            ("bytes=2-99", RangeRequest::Partial(2..10)),
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=10-12", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=0-18446744073709551615", RangeRequest::Partial(0..10)),
            ("bytes=3-1", RangeRequest::Full),
            ("bytes=0-1,4-5", RangeRequest::Full),
            ("bytes=-", RangeRequest::Full),
            ("lines=1-2", RangeRequest::Full),
            ("", RangeRequest::Full),
        ];
        for (wanted, expected) in rows {
            assert_eq!(byte_range(wanted, 10), expected, "{wanted}");
        }
    }

    #[test]
    fn hostile_names_are_escaped_in_listings() {
        let names = [
            ("<script>alert(1)</script>".to_owned(), false),
            ("javascript:alert(1)".to_owned(), false),
            ("\"onmouseover=\"x".to_owned(), true),
        ];
        let page = listing(&names);
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains("href=\"./javascript%3Aalert%281%29\""), "{page}");
        assert!(page.contains("href=\"./%22onmouseover%3D%22x/\""), "{page}");
    }

    async fn get(
        dir: &std::path::Path,
        path: &str,
        range: Option<&'static str>,
    ) -> (u16, HeaderMap, String) {
        let mut headers = HeaderMap::new();
        if let Some(range) = range {
            headers.insert(header::RANGE, HeaderValue::from_static(range));
        }
        let response = serve(dir.to_path_buf(), path.to_owned(), &headers).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (head.status.as_u16(), head.headers, body)
    }

    #[tokio::test]
    async fn files_come_whole_or_in_part_and_directories_as_lists() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        let long = "0123456789".repeat(20_000);
        std::fs::write(dir.path().join("pods/long.log"), &long).unwrap();
        let (status, headers, body) = get(dir.path(), "pods/long.log", None).await;
        assert_eq!((status, body.len()), (200, 200_000));
        assert_eq!(body, long);
        assert_eq!(headers[header::CONTENT_LENGTH], "200000");
        assert!(headers.contains_key(header::LAST_MODIFIED));
        let (status, headers, body) = get(dir.path(), "pods/long.log", Some("bytes=-5")).await;
        assert_eq!((status, body.as_str()), (206, "56789"));
        assert_eq!(headers[header::CONTENT_RANGE], "bytes 199995-199999/200000");
        let modified = headers[header::LAST_MODIFIED].to_str().unwrap().to_owned();
        let since = |since: &str| {
            let since = HeaderValue::from_str(since).unwrap();
            HeaderMap::from_iter([(header::IF_MODIFIED_SINCE, since)])
        };
        let again = |since| {
            let path = "pods/long.log".to_owned();
            let dir = dir.path().to_path_buf();
            async move { serve(dir, path, &since).await.status().as_u16() }
        };
        assert_eq!(again(since(&modified)).await, 304);
        assert_eq!(again(since("Tue, 31 Dec 2999 23:59:59 GMT")).await, 304);
        assert_eq!(again(since("Sun, 06 Nov 1994 08:49:37 GMT")).await, 200);
        assert_eq!(again(since("yesterday")).await, 200);
        let (status, ..) = get(dir.path(), "pods/long.log", Some("bytes=200000-")).await;
        assert_eq!(status, 416);
        let (status, _, body) = get(dir.path(), "", None).await;
        assert_eq!(status, 200);
        assert!(body.contains("<a href=\"./pods/\">pods/</a>"), "{body}");
        let (status, headers, _) = get(dir.path(), "pods", None).await;
        assert_eq!((status, headers[header::LOCATION].to_str().unwrap()), (301, "./pods/"));
        for outside in ["../etc/passwd", "/etc/passwd", "none", "a\0b"] {
            let (status, ..) = get(dir.path(), outside, None).await;
            assert_eq!(status, 404, "{outside:?}");
        }
    }
}
