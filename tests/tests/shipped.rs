//! What is shipped beside the binaries: example configs and systemd units.

use std::fs;

use ballast_daemons::config::{AgentConfig, ChassisConfig, EXIT_CONFIG};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).expect("a shipped file")
}

/// The text with every commented-out key (`# key = value`) and table (`# [table]`) switched on.
fn with_defaults_switched_on(text: &str) -> String {
    let switched_on = |line: &str| {
        let inner = line.strip_prefix("# ")?;
        let key = inner.split(" = ").next()?;
        let is_key =
            inner.contains(" = ") && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let is_table = inner.starts_with('[') && inner.contains(']');
        (is_key || is_table).then(|| inner.to_owned())
    };
    let lines = text.lines().map(|line| switched_on(line).unwrap_or_else(|| line.to_owned()));
    lines.collect::<Vec<_>>().join("\n")
}

/// A debug print of a config without what the example sets differently on purpose.
fn comparable(config: impl std::fmt::Debug) -> String {
    format!("{config:#?}")
}

#[test]
fn the_agents_example_is_accepted_and_its_comments_tell_the_defaults() {
    let text = read("config/agent.toml");
    let shipped = AgentConfig::parse("agent.toml", &text).unwrap();
    // The example measures by hwmon; RAPL's keys are the other choice.
    let all = with_defaults_switched_on(&text)
        .lines()
        .filter(|line| !line.starts_with("source = \"rapl\"") && !line.starts_with("offset_w"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut all = AgentConfig::parse("agent.toml", &all).unwrap();
    assert!(all.place.record_dir.take().is_some(), "record_dir is not switched on");
    assert_eq!(comparable(all), comparable(shipped));
}

#[test]
fn the_chassiss_example_is_accepted_and_its_comments_tell_the_defaults() {
    let text = read("config/chassis.toml");
    let shipped = ChassisConfig::parse("chassis.toml", &text).unwrap();
    let mut all = ChassisConfig::parse("chassis.toml", &with_defaults_switched_on(&text)).unwrap();
    assert!(all.place.record_dir.take().is_some(), "record_dir is not switched on");
    assert!(all.params.shared_floor.take().is_some(), "shared_w is not told");
    assert_eq!(comparable(all), comparable(shipped));
}

#[test]
fn the_units_start_the_shipped_binaries_and_never_loop_on_a_refused_config() {
    for name in ["agent", "chassis"] {
        let unit = read(&format!("systemd/ballast-{name}.service"));
        let has = |line: &str| assert!(unit.lines().any(|l| l == line), "{name}: no {line}");
        has(&format!("ExecStart=/usr/bin/ballast-{name} --config /etc/ballast/{name}.toml"));
        has(&format!("RestartPreventExitStatus={EXIT_CONFIG}"));
        has(&format!("StateDirectory=ballast-{name}"));
        has("Type=notify");
        has("Restart=always");
        // Both write below /sys.
        has("ProtectKernelTunables=no");
        let default = format!("# state_dir = \"/var/lib/ballast-{name}\"");
        let config = read(&format!("config/{name}.toml"));
        assert!(
            config.lines().any(|l| l == default),
            "{name}.toml: state_dir is not StateDirectory"
        );
    }
}
