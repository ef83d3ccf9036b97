//! Compresses responses for Prometheus.

use super::response::{Body, text};
use crate::base::spawn_blocking;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use std::io::{self, Write as _};

/// Number of bytes compressed at a time, on a blocking thread.
const PART: usize = 256 * 1024;

/// The library's fastest level compresses long pages with numbers half as well as this one, which is hardly slower.
const LEVEL: u32 = 2;

/// Whether the client accepts gzip: `Accept-Encoding` has gzip or `*`, with a weight other than zero.
pub(in crate::server) fn is_accepted(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let (mut gzip, mut any) = (None, None);
    for choice in lines.flat_map(|line| line.split(',')) {
        let (name, weight) = choice.split_once(';').unwrap_or((choice, "q=1"));
        let weight = weight.trim().strip_prefix("q=").map(str::trim);
        let wanted = weight.and_then(|weight| weight.parse::<f32>().ok());
        let wanted = wanted.is_none_or(|weight| weight > 0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" => gzip = Some(wanted),
            "*" => any = Some(wanted),
            _ => {}
        }
    }
    gzip.or(any).unwrap_or_default()
}

/// Compresses a response. Parts of the body are compressed as they are generated; only the compressed body is held in
/// memory.
pub(in crate::server) async fn compressed(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    match compress(body).await {
        Ok(body) => {
            head.headers.remove(header::CONTENT_LENGTH);
            let gzip = HeaderValue::from_static("gzip");
            head.headers.insert(header::CONTENT_ENCODING, gzip);
            let body = Full::new(body).map_err(|never| match never {});
            Response::from_parts(head, body.boxed_unsync())
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
    }
}

async fn compress(mut body: Body) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    let mut part = BytesMut::new();
    loop {
        let frame = body.frame().await.transpose().map_err(io::Error::other)?;
        let is_last = frame.is_none();
        if let Some(Ok(data)) = frame.map(|frame| frame.into_data()) {
            part.extend_from_slice(&data);
        }
        if is_last || part.len() >= PART {
            let taken = part.split();
            let writing = spawn_blocking(move || encoder.write_all(&taken).map(|()| encoder));
            encoder = writing.await.map_err(io::Error::other)??;
        }
        if is_last {
            return Ok(encoder.finish()?.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn gzip_is_only_for_clients_that_accept_it() {
        let rows = [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("", false),
        ];
        for (value, expected) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(is_accepted(&headers), expected, "{value:?}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn compression_is_lossless() {
        let long: String = (0..100_000).map(|n| format!("up{{n=\"{n}\"}} 1\n")).collect();
        let response = compressed(text(StatusCode::OK, long.clone())).await;
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.len() * 4 < long.len(), "{} of {}", body.len(), long.len());
        let mut read = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut read).unwrap();
        assert!(read == long);
    }
}
