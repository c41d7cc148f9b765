//! `[kubernetes]`: the scheduler extender, and the API server that it follows.

use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use ballast_runtime::config::reader::{Section, flag, text, whole};
use ballast_runtime::config::safe_url;

/// Where a pod finds its service account's token and the cluster's authority.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// `[kubernetes]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// `https://host[:port]` of the API server; plain HTTP on loopback only.
    pub api: String,
    /// The token that it is asked with, over TLS.
    pub token_file: PathBuf,
    /// Who signs its certificate.
    pub ca_file: PathBuf,
    /// The node's label that names its chassis.
    pub chassis_label: String,
    /// What the names of a pod's labels begin with that give hints: `ballast.dev/` for `ballast.dev/class`.
    pub label_prefix: String,
    /// Nothing heard for so long: every score is neutral, and every node passes.
    pub stale_after: Duration,
    /// Whether what would have been chosen is only recorded beside what was.
    pub shadow: bool,
    /// Objects on a page of a list.
    pub page_size: u64,
    /// No question of a scheduler is longer, in bytes.
    pub body_bytes_max: usize,
}

impl KubernetesConfig {
    /// Reads the section; nothing without one.
    pub(super) fn read(section: Option<Section<'_, '_>>) -> Option<Self> {
        let mut section = section?;
        let file = |value: &DeValue<'_>| text(value).map(PathBuf::from);
        let seconds = section.or("stale_after_s", 180, "1 to 86400 seconds", whole(1..=86_400));
        let mib = section.or("body_mib_max", 16, "1 to 1024 MiB", whole(1..=1024));
        let config = Self {
            api: section.or("api", "https://kubernetes.default.svc".into(), API, safe_url),
            token_file: section.or("token_file", format!("{ACCOUNT}/token").into(), "a file", file),
            ca_file: section.or("ca_file", format!("{ACCOUNT}/ca.crt").into(), "a PEM file", file),
            chassis_label: section.or("chassis_label", "ballast.dev/chassis".into(), LABEL, label),
            label_prefix: section.or("label_prefix", "ballast.dev/".into(), PREFIX, prefix),
            stale_after: Duration::from_secs(seconds),
            shadow: section.or("shadow", false, "true or false", flag),
            page_size: section.or("page_size", 500, "1 to 10000 objects", whole(1..=10_000)),
            body_bytes_max: (mib as usize) << 20,
        };
        section.finish();
        Some(config)
    }
}

const API: &str =
    "https://host[:port] of the API server, or http://127.0.0.1:port of a proxy on this machine";

const LABEL: &str = "a label's name, such as ballast.dev/chassis";

/// A label's name: `[prefix/]name`, at most 253 and 63 bytes.
fn label(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str()?;
    let (before, name) = text.split_once('/').unwrap_or(("x", text));
    (is_part(before, 253) && is_part(name, 63)).then(|| text.to_owned())
}

const PREFIX: &str = "what labels' names begin with: a domain and a slash, such as ballast.dev/";

fn prefix(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str()?;
    let domain = text.strip_suffix('/')?;
    is_part(domain, 253).then(|| text.to_owned())
}

fn is_part(text: &str, most: usize) -> bool {
    let outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let (first, last) = (text.bytes().next(), text.bytes().next_back());
    text.len() <= most && outer(first) && outer(last) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use crate::config::PlaceConfig;

    fn parse(kubernetes: &str) -> Result<PlaceConfig, String> {
        let text = format!("name = \"a\"\n[kubernetes]\n{kubernetes}");
        PlaceConfig::parse("place.toml", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn where_the_api_server_is_and_what_labels_are_called() {
        let config = parse("").unwrap().kubernetes.unwrap();
        assert_eq!((&*config.api, config.shadow), ("https://kubernetes.default.svc", false));
        for api in
            ["https://10.96.0.1:443", "https://[fd00::1]:6443/", "http://127.0.0.1:8001", "http://[::1]:8001"]
        {
            let config = parse(&format!("api = {api:?}")).unwrap().kubernetes.unwrap();
            assert_eq!(config.api, api.trim_end_matches('/'));
        }
        assert_eq!(PlaceConfig::parse("place.toml", "name = \"a\"").unwrap().kubernetes, None);
    }

    #[test]
    fn every_problem_is_told_with_its_line() {
        for (line, says) in [
            ("api = \"http://10.0.0.1:8001\"", "kubernetes.api = \"http://10.0.0.1:8001\": https://host"),
            ("api = \"https://\"", "kubernetes.api"),
            ("api = \"https://a/b?c\"", "kubernetes.api"),
            ("stale_after_s = 0", "kubernetes.stale_after_s = 0: 1 to 86400 seconds"),
            ("chassis_label = \"a b\"", "kubernetes.chassis_label = \"a b\": a label's name"),
            ("chassis_label = \"a/b/c\"", "kubernetes.chassis_label"),
            (
                "label_prefix = \"ballast.dev\"",
                "kubernetes.label_prefix = \"ballast.dev\": what labels' names",
            ),
            ("shadow = 1", "kubernetes.shadow = 1: true or false"),
            ("page_size = 0", "kubernetes.page_size = 0: 1 to 10000 objects"),
            ("body_mib_max = 2000", "kubernetes.body_mib_max = 2000: 1 to 1024 MiB"),
            ("token_file = \"\"", "kubernetes.token_file = \"\": a file"),
            ("verb = \"filter\"", "kubernetes.verb: no such key; there are api, body_mib_max, ca_file"),
        ] {
            let problem = parse(line).unwrap_err();
            assert!(problem.starts_with(&format!("place.toml:3: {says}")), "{problem}");
        }
    }
}
