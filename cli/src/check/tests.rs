use ballast_agent::config::{AgentConfig, ConfigFile as _};

use super::state::State;
use super::*;

fn args(root: &std::path::Path) -> CheckArgs {
    CheckArgs {
        root: root.to_owned(),
        seconds: Some(0),
        json: true,
        write_test: false,
        state_dir: "/nonexistent".into(),
        run_dir: None,
        record: None,
        fleet: false,
        daemons: UrlArgs::default(),
    }
}

#[test]
fn an_empty_machine_lacks_everything_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(&Root::at(dir.path()), &args(dir.path())).unwrap();
    assert_eq!(report.exit_code, 2);
    assert!(report.functions.iter().all(|function| function.state == State::Missing));
    let missing = report.findings.iter().filter(|finding| finding.state == State::Missing);
    for finding in missing {
        assert!(finding.reason.is_some(), "{finding:?}");
    }
}

#[test]
fn the_fragment_is_a_config_that_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let hwmon = dir.path().join("sys/class/hwmon/hwmon0");
    std::fs::create_dir_all(&hwmon).unwrap();
    for (file, text) in [("name", "lm25066"), ("power1_input", "2000000"), ("power1_label", "pin")] {
        std::fs::write(hwmon.join(file), text).unwrap();
    }
    let report = report(&Root::at(dir.path()), &args(dir.path())).unwrap();
    let text = format!("server = \"s\"\nchassis = \"c\"\n{}", report.agent_toml);
    let config = AgentConfig::parse("agent.toml", &text).unwrap();
    assert!(report.agent_toml.contains("lm25066"), "{}", report.agent_toml);
    assert_eq!(config.server_limit.floor, None);
}
