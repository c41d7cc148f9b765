//! What every daemon is told alike of a Kubernetes cluster.

use std::path::PathBuf;

use super::allowed::{Allowed, path, safe_url};
use super::reader::Section;

/// Where a pod finds its service account's token and the cluster's authority.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const API: &str =
    "https://host[:port] of the API server, or http://127.0.0.1:port of a proxy on this machine";

/// Where the API server is: its URL, the file with the token that it is asked with, and the one with the
/// authority of its certificate.
pub fn read_api(section: &mut Section<'_, '_>, help: &'static str) -> (String, PathBuf, PathBuf) {
    let api = section.key("api", help).or("https://kubernetes.default.svc".into(), safe_url(API));
    let token_file = section
        .key("token_file", "The token that the API server is asked with.")
        .or(format!("{ACCOUNT}/token").into(), path("a file"));
    let ca_file = section
        .key("ca_file", "The authority of the API server's certificate.")
        .or(format!("{ACCOUNT}/ca.crt").into(), path("a PEM file"));
    (api, token_file, ca_file)
}

/// What the names of pods' labels begin with.
pub fn read_label_prefix(section: &mut Section<'_, '_>, help: &'static str) -> String {
    let words = "what labels' names begin with: a domain and a slash, such as ballast.dev/";
    section.key("label_prefix", help).or("ballast.dev/".into(), Allowed::text(words, prefix))
}

/// A label's name: `[prefix/]name`, at most 253 and 63 bytes.
pub fn label(text: &str) -> Option<String> {
    let (before, name) = text.split_once('/').unwrap_or(("x", text));
    (is_part(before, 253) && is_part(name, 63)).then(|| text.to_owned())
}

/// The name of an object, such as a node or a priority class: a DNS subdomain.
pub fn object_name(text: &str) -> Option<String> {
    let is_plain = text.bytes().all(|byte| !byte.is_ascii_uppercase() && byte != b'_');
    (is_part(text, 253) && is_plain).then(|| text.to_owned())
}

fn prefix(text: &str) -> Option<String> {
    is_part(text.strip_suffix('/')?, 253).then(|| text.to_owned())
}

fn is_part(text: &str, most: usize) -> bool {
    let outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let (first, last) = (text.bytes().next(), text.bytes().next_back());
    text.len() <= most
        && outer(first)
        && outer(last)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
