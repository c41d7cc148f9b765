//! The reference pages of the book say what the code says.
//!
//! What stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` of a page is made from the code. A test
//! makes it anew and compares; with `BLESS=1` in its environment it writes the page instead.

mod wire;

use std::fs;
use std::path::Path;
use std::process::Command;

use ballast_agent::config::{AgentConfig, ConfigFile as _};
use ballast_chassis::config::ChassisConfig;
use ballast_place::config::PlaceConfig;
use ballast_runtime::config::reference::markdown;
use ballast_runtime::metrics::{MetricLine, process_reference, references};
use ballast_types::wire::AlarmId;

/// Compares the parts of a page of `docs/` with what the code says now, or writes them.
fn check_generated(page: &str, parts: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let old = fs::read_to_string(&path).unwrap_or_else(|error| panic!("docs/{page}: {error}"));
    let mut new = old.clone();

    for (name, text) in parts {
        let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end: {name} -->"));
        let from = new.find(&begin).unwrap_or_else(|| panic!("docs/{page} has no {begin}")) + begin.len();
        let to = from + new[from..].find(&end).unwrap_or_else(|| panic!("docs/{page} has no {end}"));
        new.replace_range(from..to, &format!("\n{}\n\n", text.trim()));
    }

    if new == old {
        return;
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, new).unwrap_or_else(|error| panic!("docs/{page}: {error}"));
        return;
    }
    let line = 1 + old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    panic!(
        "docs/{page} is not current from line {line}:\n  is      {:?}\n  must be {:?}\nRun this test with \
         BLESS=1 to \
         write the page.",
        old.lines().nth(line - 1),
        new.lines().nth(line - 1)
    );
}

#[test]
fn the_keys_of_every_file_are_described_as_the_code_reads_them() {
    check_generated(
        "reference/config.md",
        &[
            ("agent.toml", markdown(&AgentConfig::reference())),
            ("chassis.toml", markdown(&ChassisConfig::reference())),
            ("place.toml", markdown(&PlaceConfig::reference())),
        ],
    );
}

#[test]
fn every_request_is_described_as_the_daemons_answer_it() {
    let [common, agent] = ballast_agent::http_references();
    check_generated(
        "reference/http-api.md",
        &[
            ("all daemons", common),
            ("agent", agent),
            ("chassis manager", ballast_chassis::http_reference()),
            ("placement daemon", ballast_place::http_reference()),
            ("alarms", alarms()),
            ("documents", wire::markdown()),
        ],
    );
}

/// Every alarm, with the part of the runbook that says what to do.
fn alarms() -> String {
    let rows = AlarmId::ALL.iter().map(|id| {
        let (link, severity, help) = (id.link(), id.severity(), id.help());
        format!("| [`{id}`](../{link}) | {severity} | {help} |\n")
    });
    "| id | severity | says |\n|---|---|---|\n".to_owned() + &rows.collect::<String>()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `tests/layers` checks that the links of this page lead to a heading.
#[test]
fn every_alarm_has_a_link_to_the_runbook() {
    let page = read("docs/reference/http-api.md");
    let missing: Vec<_> =
        AlarmId::ALL.iter().filter(|id| !page.contains(&format!("](../{})", id.link()))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(AlarmId::ALL.len() > 40);
}

/// An alert that nobody can look up, or that no test has seen fire and stay silent, is noise.
#[test]
fn every_alert_has_a_link_to_the_runbook_a_row_in_the_book_and_a_test() {
    let rules = read("packaging/prometheus/ballast.rules.yml");
    let (tests, book) = (read("packaging/prometheus/ballast.rules.test.yml"), read("docs/operate/watch.md"));
    // `tests/layers` checks that the links of these pages lead to a heading.
    let linked = read("docs/operate/runbook.md") + &read("docs/reference/http-api.md");
    // A promise of `promtool test rules`: without alerts that are expected, none may fire.
    let cases: Vec<_> = tests.split("- eval_time: ").collect();

    let mut alerts = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let runbook = rule.lines().find_map(|line| line.trim().strip_prefix("runbook: "));
        let runbook = runbook.unwrap_or_else(|| panic!("{name} has no runbook"));
        let (_, anchor) = runbook.split_once('#').unwrap();
        // Of an alarm: made of its id.
        assert!(
            anchor.contains("$labels.id") || linked.contains(&format!("#{anchor})")),
            "{name}: {runbook}"
        );
        assert!(book.contains(&format!("| {name} |")), "docs/operate/watch.md does not name {name}");

        let is_tested = |firing: bool| {
            let named = format!("alertname: {name}\n");
            cases.iter().any(|case| case.contains(&named) && case.contains("exp_alerts:") == firing)
        };
        assert!(is_tested(true) && is_tested(false), "{name} is not tested both ways");
        alerts += 1;
    }
    assert!(alerts > 10, "{alerts} alerts");
}

/// The metrics, by the part of the page that has them.
fn metrics() -> [(&'static str, Vec<MetricLine>); 7] {
    let [common, sensing] = references();
    let [place, kubernetes] = ballast_place::metrics_references();
    [
        ("chassis manager", ballast_chassis::metrics_reference()),
        ("agent", ballast_agent::metrics_reference()),
        ("agent and chassis manager", sensing),
        ("all daemons", common),
        ("process", process_reference()),
        ("placement daemon", place),
        ("scheduler extender", kubernetes),
    ]
}

#[test]
fn every_metric_is_described_as_the_daemons_tell_it() {
    let parts = metrics().map(|(name, lines)| (name, ballast_runtime::metrics::markdown(&lines)));
    check_generated("reference/metrics.md", &parts);
}

/// Rules, pages and dashboards that quote a metric would be silent without it.
#[test]
fn every_metric_that_the_book_quotes_is_told() {
    let names: Vec<_> = metrics().into_iter().flat_map(|(_, lines)| lines).map(|line| line.name).collect();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let (mut quoted, mut unknown) = (0, vec![]);

    let book = ["concepts", "operate", "place-and-plan", "start"].map(|it| docs.join(it));
    let shipped = ["prometheus", "grafana"].map(|it| docs.join("../packaging").join(it));
    for folder in book.iter().chain(&shipped) {
        for page in fs::read_dir(folder).unwrap().map(|page| page.unwrap().path()) {
            let Ok(text) = fs::read_to_string(&page) else { continue };
            for word in text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')) {
                let daemon = ["agent", "chassis", "place"].into_iter();
                let mut daemon = daemon.filter(|it| word.starts_with(&format!("ballast_{it}_")));
                let Some(daemon) = daemon.next() else { continue };
                quoted += 1;
                let part = ["_bucket", "_count", "_sum"].into_iter().find_map(|end| word.strip_suffix(end));
                let open = |word: &str| word.replacen(daemon, "DAEMON", 1);
                let is_told = |word: &str| match word.ends_with('_') {
                    true => names.iter().any(|name| name.starts_with(word)),
                    false => names.iter().any(|name| *name == word || *name == open(word)),
                };
                if !is_told(word) && !part.is_some_and(is_told) {
                    unknown.push(format!("{}: {word}", page.display()));
                }
            }
        }
    }

    assert!(quoted > 40, "{quoted} found");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// What `promtool check metrics` asks for, and what makes labels the same at every scrape.
#[test]
fn every_metric_is_named_as_prometheus_asks() {
    let lines: Vec<_> = metrics().into_iter().flat_map(|(_, lines)| lines).collect();
    assert!(lines.len() > 100, "{} metrics", lines.len());
    // The name as it would stand among those of every daemon.
    let open = |name: &str| {
        ["_agent_", "_chassis_", "_place_"]
            .iter()
            .fold(name.to_owned(), |name, it| name.replacen(it, "_DAEMON_", 1))
    };
    let mut wrong = vec![];

    for MetricLine { name, kind, unit, labels, help } in &lines {
        let words: Vec<_> = name.split('_').collect();
        let plain = |text: &str| {
            !text.is_empty() && text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit())
        };
        let has = |any: &[&str]| words.iter().any(|word| any.contains(word));
        let last = words.last().copied().unwrap_or_default();
        let is_ours = matches!(words[..], ["ballast", "agent" | "chassis" | "place" | "DAEMON", _, ..]);
        let in_unit = *unit == "–" || name.trim_end_matches("_total").ends_with(unit);
        let count = lines.iter().filter(|line| line.name == *name || line.name == open(name)).count();
        for (is_kept, rule) in [
            (is_ours || words[0] == "process", "begins with its daemon's name"),
            (words.iter().all(|word| *word == "DAEMON" || plain(word)), "is words of a-z and 0-9"),
            ((*kind == "counter") == (last == "total"), "ends with _total as a counter, and only then"),
            (!["count", "sum", "bucket", "created"].contains(&last), "ends as no part of a histogram does"),
            (!has(&["gauge", "counter", "histogram", "summary"]), "does not say its type"),
            (
                !has(&["ms", "millis", "minutes", "hours", "kb", "mb", "gb", "khz", "mhz", "kw", "percent"]),
                "has a base unit",
            ),
            (in_unit, "ends with its unit"),
            (
                !help.is_empty() && !help.ends_with('.') && !help.contains('\n'),
                "has a help without a full stop",
            ),
            (labels.is_sorted(), "has its labels in order"),
            (
                labels.iter().all(|it| !["le", "quantile", "job", "instance"].contains(it)),
                "has labels of its own",
            ),
            (count == 1, "is there once"),
        ] {
            if !is_kept {
                wrong.push(format!("{name}: {rule}"));
            }
        }
    }

    assert!(wrong.is_empty(), "every metric…\n{}", wrong.join("\n"));
}

#[test]
fn every_command_and_option_is_described_as_the_program_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let made =
        Command::new(env!("CARGO_BIN_EXE_ballast")).arg("man").arg("--dir").arg(folder.path()).status();
    assert!(made.unwrap().success(), "ballast man");
    let text = fs::read_to_string(folder.path().join("cli.md")).unwrap();
    check_generated("reference/cli.md", &[("commands", text)]);
}

/// What a command needs one of, it names whole.
#[test]
fn a_command_that_needs_one_of_several_names_them_all() {
    let folder = tempfile::tempdir().unwrap();
    for (args, said) in [
        ("plan", "<--telemetry <FILE>...|--histogram <FILE>...>"),
        ("replay", "<--recording <FILE|DIR>|--telemetry <FILE>>"),
        ("train --output x", "<--input <FILE>|--generate <VMS>>"),
        ("predict --model x", "<--input <FILE>|--about>"),
        ("profile", "profile <--config <FILE>|--input <FILE>|--specpower <FILE>>"),
        ("profile --specpower x", "<--server <TEXT>|--cores <N>>"),
    ] {
        crate::common::refused(folder.path(), args, said);
    }
}
