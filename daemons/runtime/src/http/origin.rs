//! Whether a request may come from a page in a browser that belongs elsewhere.
//!
//! A browser on this machine, or on an operator's, reaches the daemons and runs pages of anybody. By DNS
//! rebinding such a page gets this daemon's address under its own name; without it, it can still send forms.
//! Browsers say what they do, in headers that a page cannot change: `Host`, `Origin`, `Sec-Fetch-Site`,
//! `Content-Type`.

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use std::net::IpAddr;

use super::Refused;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How a caller has reached this daemon.
pub(super) trait Reached {
    fn by_tls(&self) -> bool;
    /// Whether this is a DNS name of the certificate that it was shown.
    fn by_name(&self, name: &str) -> bool;
}

/// Whether a client that is no foreign page has sent this; `allowed` are names of this daemon, in lower case,
/// beside those that it always has.
///
/// # Errors
/// 400 without exactly one Host, 403 for a foreign page, 415 for a body that is not called JSON.
pub(super) fn check(caller: &impl Reached, allowed: &[String], request: &Request) -> Result<(), Refused> {
    let headers = request.headers();
    let host = host_of(request)?;
    if !is_own(caller, allowed, &host) {
        return Err(foreign(format!(
            "Host {host}: not a name of this daemon; use an IP address or localhost, or list the name in \
             allowed_hosts"
        )));
    }

    let scheme = if caller.by_tls() { "https" } else { "http" };
    let port = if caller.by_tls() { 443 } else { 80 };
    for origin in headers.get_all(header::ORIGIN) {
        let same = text(origin).strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
        let same = same.and_then(|text| text.parse::<Authority>().ok());
        if same.is_none_or(|same| parts(&same, port) != parts(&host, port)) {
            return Err(foreign(format!("Origin {origin:?}: not {scheme}://{host}")));
        }
    }

    for site in headers.get_all(SEC_FETCH_SITE) {
        if !matches!(text(site), "same-origin" | "none") && !follows_link(request) {
            return Err(foreign(format!("Sec-Fetch-Site {site:?}: a page of another site asks")));
        }
    }

    if !request.body().is_end_stream() && !is_json(headers) {
        let why = "a body needs the header content-type: application/json";
        return Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, why.into()));
    }

    Ok(())
}

/// Whether somebody follows a link of another site to the web page: a ticket's, or a dashboard's. The other site sees nothing of
/// what is answered, and the page refuses to be shown within another.
fn follows_link(request: &Request) -> bool {
    let says = |name: &'static str, value: &str| {
        let mut all = request.headers().get_all(name).iter();
        all.next().is_some_and(|it| text(it) == value) && all.next().is_none()
    };
    request.method() == Method::GET
        && request.uri().path() == "/"
        && says("sec-fetch-mode", "navigate")
        && says("sec-fetch-dest", "document")
}

fn foreign(why: String) -> Refused {
    Refused(StatusCode::FORBIDDEN, why)
}

/// A header's text; empty where it is none, and then equal to nothing that is allowed.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

fn host_of(request: &Request) -> Result<Authority, Refused> {
    let wrong = |why: &str| Refused(StatusCode::BAD_REQUEST, why.into());
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(wrong("exactly one Host header is needed"));
    };
    let host: Authority = text(host).parse().map_err(|_| wrong("Host is not a name and a port"))?;
    match request.uri().authority() {
        _ if host.as_str().contains('@') => Err(wrong("Host is not a name and a port")),
        Some(other) if *other != host => Err(wrong("Host is not that of the request's target")),
        _ => Ok(host),
    }
}

/// Whether a host is one of this daemon's. Its port does not matter: who forwards one uses another.
fn is_own(caller: &impl Reached, allowed: &[String], host: &Authority) -> bool {
    let name = name_of(host);
    // No name server gives a page an address as its name.
    if let Ok(address) = name.parse::<IpAddr>() {
        let reaches = caller.by_tls() || address.to_canonical().is_loopback();
        return reaches || allowed.contains(&name);
    }
    name == "localhost" || allowed.contains(&name) || caller.by_name(&name)
}

/// The name or address in lower case, without brackets.
fn name_of(authority: &Authority) -> String {
    authority.host().trim_matches(['[', ']']).to_ascii_lowercase()
}

/// What two authorities of one scheme must have alike.
fn parts(authority: &Authority, default_port: u16) -> (String, u16) {
    (name_of(authority), authority.port_u16().unwrap_or(default_port))
}

/// Whether the body is called JSON: with this type browsers ask before they send, and are refused.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(only), None) = (types.next(), types.next()) else { return false };
    let essence = text(only).split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}
