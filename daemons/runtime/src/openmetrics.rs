//! The two texts that Prometheus reads.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// OpenMetrics text as Prometheus's own: there a counter is called by its whole name, and nothing says the unit
/// or the end.
pub(crate) fn plain(text: &str) -> String {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = kinds.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut plain = String::with_capacity(text.len());

    for line in text.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let told = line.strip_prefix("# ").and_then(|line| line.split_once(' '));
        let named = told.and_then(|(what, line)| Some((what, line.split_once(' ')?)));
        let _ = match named {
            Some((what, (name, said))) if counters.contains(name) => {
                writeln!(plain, "# {what} {name}_total {said}")
            }
            _ => writeln!(plain, "{line}"),
        };
    }

    plain
}
