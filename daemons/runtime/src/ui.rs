//! The web page: static files in the program, which read from the daemons' own paths and change nothing.
//!
//! `vendor/` has uPlot 1.6.32 as npm has it, with its licence and SHA-256; all else is written here, without a build.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::io::Write as _;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

/// Where the page is, what it is, and its text.
type File = (&'static str, &'static str, &'static [u8]);

const FILES: [File; 7] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../ui/index.html")),
    ("/ui/page.css", "text/css; charset=utf-8", include_bytes!("../ui/page.css")),
    ("/ui/page.js", "text/javascript; charset=utf-8", include_bytes!("../ui/page.js")),
    ("/ui/words.js", "text/javascript; charset=utf-8", include_bytes!("../ui/words.js")),
    ("/ui/icon.svg", "image/svg+xml", include_bytes!("../ui/icon.svg")),
    ("/ui/uplot.js", "text/javascript; charset=utf-8", include_bytes!("../ui/vendor/uPlot.iife.min.js")),
    ("/ui/uplot.css", "text/css; charset=utf-8", include_bytes!("../ui/vendor/uPlot.min.css")),
];

/// No other host, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whom the page shows.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    pub version: &'static str,
    pub chassis: Vec<SiteDaemon>,
    /// Who knows VMs; a chassis manager does not.
    pub agents: Vec<SiteDaemon>,
}

/// One daemon, as the page reaches it.
#[derive(Clone, Debug, Serialize)]
pub struct SiteDaemon {
    pub name: String,
    /// What stands before `/v1/…` in its paths; empty where the page is served by the daemon.
    pub base: String,
}

/// The page's paths.
///
/// # Errors
/// When memory for the compressed files runs out.
pub fn routes<S: Clone + Send + Sync + 'static>(site: &Site) -> std::io::Result<Router<S>> {
    let mut routes = Router::new();
    for (path, kind, text) in FILES {
        let file = Served::new(kind, text)?;
        routes = routes.route(path, get(async move |asked: HeaderMap| file.answer(&asked)));
    }
    let site = Served::new("application/json", &serde_json::to_vec(site)?)?;
    Ok(routes.route("/ui/site.json", get(async move |asked: HeaderMap| site.answer(&asked))))
}

/// One file, ready to be sent.
#[derive(Clone)]
struct Served {
    kind: &'static str,
    etag: HeaderValue,
    plain: Bytes,
    gzip: Bytes,
}

impl Served {
    fn new(kind: &'static str, text: &[u8]) -> std::io::Result<Self> {
        let mut encoder = GzEncoder::new(vec![], Compression::best());
        encoder.write_all(text)?;
        let mut hasher = DefaultHasher::new();
        hasher.write(text);
        let etag = HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish()));
        let etag = etag.map_err(std::io::Error::other)?;
        Ok(Self { kind, etag, plain: Bytes::copy_from_slice(text), gzip: encoder.finish()?.into() })
    }

    fn answer(&self, asked: &HeaderMap) -> Response {
        let has = |name: HeaderName, text: &str| {
            asked.get_all(name).iter().filter_map(|it| it.to_str().ok()).any(|it| it.contains(text))
        };
        let zipped = has(header::ACCEPT_ENCODING, "gzip");
        let is_there = has(header::IF_NONE_MATCH, self.etag.to_str().unwrap_or("-"));
        let mut answer = match (is_there, zipped) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (_, true) => ([(header::CONTENT_ENCODING, "gzip")], self.gzip.clone()).into_response(),
            (_, false) => self.plain.clone().into_response(),
        };

        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::ETAG, self.etag.clone());
        for (name, value) in [
            // It may be kept, and is asked about every time: an upgrade is seen at once.
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::extract::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, usize) {
        let site = Site { version: "1", chassis: vec![], agents: vec![] };
        let request = headers.iter().fold(Request::get(path), |it, (name, value)| it.header(*name, *value));
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = routes::<()>(&site).unwrap().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (parts.status.as_u16(), parts.headers, body.len())
    }

    #[tokio::test]
    async fn the_whole_page_is_small_compressed_and_asked_about_by_etag() {
        let mut bytes = 0;
        for (path, ..) in FILES {
            let (status, headers, length) = ask(path, &[("accept-encoding", "gzip, br")]).await;
            assert_eq!((status, &headers["content-encoding"]), (200, &HeaderValue::from_static("gzip")));
            assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
            bytes += length;

            let etag = headers["etag"].to_str().unwrap();
            let (status, _, length) = ask(path, &[("if-none-match", etag)]).await;
            assert_eq!((status, length), (304, 0), "{path}");
            let (status, headers, length) = ask(path, &[]).await;
            assert!(status == 200 && length > 0 && !headers.contains_key("content-encoding"), "{path}");
        }
        assert!(bytes < 60_000, "{bytes}");
        assert_eq!(ask("/ui/site.json", &[]).await.0, 200);
        assert_eq!(ask("/ui/index.html", &[]).await.0, 404);
    }
}
