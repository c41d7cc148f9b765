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
            ("documents", wire::markdown()),
        ],
    );
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
