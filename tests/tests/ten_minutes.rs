//! Every command of "Ten minutes with a rig", as a newcomer types them.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use ballast_testbed::lab::ballast;

ballast_testbed::wall_time![every_command_of_the_ten_minutes_does_what_the_page_says];

/// The manager's port, of four in a row that nobody has now.
fn free_ports() -> u16 {
    let is_free = |port: &u16| (*port..port + 4).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let start = 20_000 + u16::try_from(std::process::id() % 8_000).unwrap();
    (start..start + 8_000).step_by(4).find(is_free).expect("four free ports in a row")
}

/// The blocks of a page in this language, in order.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    page.split(&opening).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

fn every_command_of_the_ten_minutes_does_what_the_page_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/start/ten-minutes.md");
    let page = fs::read_to_string(file).expect(file);
    let commands = blocks(&page, "sh").concat();
    assert!(blocks(&page, "sh").len() >= 8, "{commands}");

    // Other daemons may have the page's ports.
    let port = free_ports();
    let commands = (0..4).fold(commands, |text, n| {
        text.replace(&format!("127.0.0.1:{}", 7100 + n), &format!("127.0.0.1:{}", port + n))
    });
    let commands = commands.replace("--repeat", &format!("--repeat --port {port}"));

    // Whatever fails ends the rest, and nothing stays behind.
    let folder = tempfile::tempdir().unwrap();
    let script =
        format!("set -eEuo pipefail\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n{commands}");
    let path = format!("{}:{}", ballast().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let done = Command::new("timeout")
        .args(["--kill-after=5", "400", "bash", "-c", &script])
        .current_dir(&folder)
        .env("PATH", path)
        .env("no_proxy", "*")
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&done.stdout);
    let log =
        |name: &str| fs::read_to_string(folder.path().join("ten-minutes").join(name)).unwrap_or_default();
    let all = || {
        format!("{said}\n{}\n{}", String::from_utf8_lossy(&done.stderr), log("chassis.log") + &log("s01.log"))
    };
    assert!(done.status.success(), "{}\n{}", done.status, all());

    // What the page shows, and what it promises in words.
    for shown in blocks(&page, "text") {
        assert!(said.contains(shown), "{shown}\n{}", all());
    }
    for promised in ["to=alerting", "560.0 W", "web0", "server_silent"] {
        assert!(said.contains(promised), "{promised}\n{}", all());
    }
}
