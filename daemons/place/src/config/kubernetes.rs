//! `[kubernetes]`: the scheduler extender, and the API server that it follows.

use std::path::PathBuf;
use std::time::Duration;

use ballast_runtime::config::allowed::{Allowed, flag, seconds, whole};
use ballast_runtime::config::kubernetes::{label, read_api, read_label_prefix};
use ballast_runtime::config::reader::Section;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// `https://host[:port]` of the API server; plain HTTP on loopback only.
    pub api: String,
    /// The token that it is asked with, over TLS.
    pub token_file: PathBuf,
    pub ca_file: PathBuf,
    /// The node's label that names its chassis.
    pub chassis_label: String,
    /// What the names of a pod's labels begin with that give hints: `ballast.dev/` for `ballast.dev/class`.
    pub label_prefix: String,
    /// Whether what is predicted of a pod is written on it, as a label.
    pub write_labels: bool,
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
    /// Reads `[kubernetes]`; nothing without one.
    pub(super) fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let help = "Answers kube-scheduler at `/filter` and `/prioritize`.";
        let mut section = root.table("kubernetes", help)?;
        let (api, token_file, ca_file) =
            read_api(&mut section, "The API server, whose nodes and pods are followed.");
        let help = "Of nodes: those of one value share a power budget; without the label each node is its \
                    own chassis.";
        let chassis_label = section.key("chassis_label", help).or(
            "ballast.dev/chassis".into(),
            Allowed::text("a label's name, such as ballast.dev/chassis", label),
        );
        let help = "Of pods' labels: `ballast.dev/class`, `p95`, `lifetime`, `subscription`.";
        let label_prefix = read_label_prefix(&mut section, help);
        let help = "Writes `ballast.dev/criticality` on pods; needs the right to `patch` them.";
        let write_labels = section.key("write_labels", help).or(false, flag());
        let stale_after = section
            .key("stale_after_s", "Nothing heard for so long: scores are all alike, every node passes.")
            .or(Duration::from_secs(180), seconds::<1>("whole seconds", 1..=86_400));
        let shadow = section
            .key("shadow", "Changes no decision; what would have been chosen is recorded beside what was.")
            .or(false, flag());
        let page_size = section
            .key("page_size", "Objects on a page of a list.")
            .or(500, whole("a whole number of objects", 1..=10_000));
        let help = "No question is longer; the full-node form needs some 12 MiB for 1,000 nodes.";
        let mib: u16 = section.key("body_mib_max", help).or(16, whole("a whole number of MiB", 1..=1024));
        section.finish();

        let body_bytes_max = usize::from(mib) << 20;
        Some(Self {
            api,
            token_file,
            ca_file,
            chassis_label,
            label_prefix,
            write_labels,
            stale_after,
            shadow,
            page_size,
            body_bytes_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigFile as _, PlaceConfig};

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
            ("stale_after_s = 0", "kubernetes.stale_after_s = 0: whole seconds, 1 to 86400"),
            ("chassis_label = \"a b\"", "kubernetes.chassis_label = \"a b\": a label's name"),
            ("chassis_label = \"a/b/c\"", "kubernetes.chassis_label"),
            (
                "label_prefix = \"ballast.dev\"",
                "kubernetes.label_prefix = \"ballast.dev\": what labels' names",
            ),
            ("shadow = 1", "kubernetes.shadow = 1: true or false"),
            ("page_size = 0", "kubernetes.page_size = 0: a whole number of objects, 1 to 10000"),
            ("body_mib_max = 2000", "kubernetes.body_mib_max = 2000: a whole number of MiB, 1 to 1024"),
            ("token_file = \"\"", "kubernetes.token_file = \"\": a file"),
            ("verb = \"filter\"", "kubernetes.verb: no such key; there are api, body_mib_max, ca_file"),
        ] {
            let problem = parse(line).unwrap_err();
            assert!(problem.starts_with(&format!("place.toml:3: {says}")), "{problem}");
        }
    }
}
