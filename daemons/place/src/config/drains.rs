//! `[drains]`.

use std::time::Duration;

use ballast_placement::drain::DrainOrder;
use ballast_runtime::config::allowed::{choice, number, seconds, whole};
use ballast_runtime::config::reader::Section;

#[derive(Clone, Debug, PartialEq)]
pub struct DrainsConfig {
    /// Fewer empty hosts than this share begin a drain; `None`: no drain begins by itself.
    pub empty_below: Option<f64>,
    /// So many hosts are then drained together.
    pub hosts: u32,
    /// Whether such a drain waits for approval.
    pub ask: bool,
    /// So many VMs may be on their way together.
    pub limit: u32,
    /// How long a move is taken to last.
    pub move_time: Duration,
    /// Who goes first, unless a request says otherwise.
    pub order: DrainOrder,
}

impl Default for DrainsConfig {
    fn default() -> Self {
        Self {
            empty_below: None,
            hosts: 3,
            ask: true,
            limit: 3,
            move_time: Duration::from_secs(1200),
            order: DrainOrder::Global,
        }
    }
}

/// The words for orders, in requests and in the configuration.
pub(crate) const ORDERS: [(&str, DrainOrder); 4] = [
    ("global", DrainOrder::Global),
    ("per-host", DrainOrder::PerHost),
    ("arrival", DrainOrder::Arrival),
    ("largest", DrainOrder::Largest),
];

impl DrainsConfig {
    pub(super) fn read(root: &mut Section<'_, '_>) -> Self {
        let mut section = root.section("drains", "How hosts are drained, and when by themselves.");
        let usual = Self::default();
        let help = "Fewer empty hosts than this share begin a drain by themselves; without it none does.";
        let empty_below = section.key("empty_below", help).optional(number("a share", 0.0..=1.0));
        let hosts = section
            .key("hosts", "So many hosts a drain that begins by itself drains.")
            .or(usual.hosts, whole("a whole number of hosts", 1..=200));
        let help = "Whether such a drain waits for approval (\"ask\") or not (\"auto\").";
        let ask = section.key("approval", help).or(usual.ask, choice([("ask", true), ("auto", false)]));
        let limit = section
            .key("limit", "So many VMs may be on their way together.")
            .or(usual.limit, whole("a whole number of VMs", 1..=1000));
        let move_time = section
            .key("move_s", "How long a move is taken to last, where a drain is planned.")
            .or(usual.move_time, seconds::<1>("whole seconds", 1..=86_400));
        let help = "Who goes first: \"global\", \"per-host\", \"arrival\" or \"largest\".";
        let order = section.key("order", help).or(usual.order, choice(ORDERS));
        section.finish();
        Self { empty_below, hosts, ask, limit, move_time, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile as _, PlaceConfig};

    #[test]
    fn drains_are_read_and_every_problem_is_told_with_its_line() {
        let parse = |text: &str| PlaceConfig::parse("place.toml", &format!("name = \"a\"\n{text}"));
        assert_eq!(parse("").unwrap().drains, DrainsConfig::default());
        let text = "[drains]\nempty_below = 0.05\napproval = \"auto\"\norder = \"per-host\"\nmove_s = 60\n";
        let read = parse(text).unwrap().drains;
        assert_eq!((read.empty_below, read.ask, read.order), (Some(0.05), false, DrainOrder::PerHost));
        assert_eq!(read.move_time, Duration::from_secs(60));
        for (line, says) in [
            ("empty_below = 5", "drains.empty_below = 5: a share, 0 to 1"),
            ("hosts = 0", "drains.hosts = 0: a whole number of hosts, 1 to 200"),
            ("limit = 0", "drains.limit = 0: a whole number of VMs, 1 to 1000"),
            ("move_s = 0", "drains.move_s = 0: whole seconds, 1 to 86400"),
            ("approval = true", "drains.approval = true: \"ask\" or \"auto\""),
            ("order = \"random\"", "drains.order = \"random\": \"global\""),
            ("every_s = 1", "drains.every_s: no such key"),
        ] {
            let problem = parse(&format!("[drains]\n{line}")).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("place.toml:3: {says}")), "{problem}");
        }
    }
}
