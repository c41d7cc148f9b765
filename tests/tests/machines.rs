//! Recorded machines: what `ballast check` says of each, and what is written on each, in order.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ballast_hw::{CpuList, Cpufreq, Floor, RaplCap, Root, WRITES};
use ballast_testbed::lab::{Lab, machines};
use ballast_types::{Cap as _, Core, Watts};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Every write of a kernel file, in order: its path below the root, and the value.
#[derive(Clone, Default)]
struct Writes {
    root: PathBuf,
    log: Arc<Mutex<String>>,
}

#[derive(Default)]
struct Fields {
    file: String,
    value: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "file" => self.file = format!("{value:?}"),
            "value" => self.value = format!("{value:?}").trim_matches('"').to_owned(),
            _ => {}
        }
    }
}

impl<S: Subscriber> Layer<S> for Writes {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == WRITES {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let file = Path::new(&fields.file);
            let file = file.strip_prefix(&self.root).unwrap_or(file).display();
            self.say(&format!("  {file} = {}", fields.value));
        }
    }
}

impl Writes {
    fn say(&self, line: &str) {
        let _ = writeln!(self.log.lock().expect("no panic"), "{line}");
    }
}

fn discovered(cpufreq: &Cpufreq, said: &mut String) {
    let _ = writeln!(said, "driver {} (known: {})", cpufreq.driver(), cpufreq.driver().is_known());
    for (domain, core) in cpufreq.domains().iter().zip(cpufreq.cores()) {
        let Core { ladder, .. } = core;
        let _ = writeln!(
            said,
            "core {}: CPUs {}, package {}, node {}, {} steps {} to {}",
            domain.id,
            domain.cpus,
            domain.package,
            domain.node,
            ladder.len(),
            ladder.floor(),
            ladder.max()
        );
    }
}

/// Caps all to the floor, one a step up, lifts; caps again, and a new life adopts and lifts.
fn scenario(root: &Root, writes: &Writes) -> Result<(), Box<dyn std::error::Error>> {
    let mut cpufreq = Cpufreq::discover(root, Floor::Half)?;
    discovered(&cpufreq, &mut writes.log.lock().expect("no panic"));
    let originals = cpufreq.originals();
    let cores = cpufreq.cores();
    writes.say("every core to its floor:");

    for core in &cores {
        cpufreq.set(core.id, core.ladder.floor())?;
    }
    writes.say("the first core a step up:");
    cpufreq.set(cores[0].id, cores[0].ladder.khz(1.min(cores[0].ladder.top())))?;
    writes.say("lift:");

    for core in &cores {
        cpufreq.release(core.id)?;
    }
    writes.say("the last core to its floor, and the agent is killed:");
    let last = cores.last().expect("a core");
    cpufreq.set(last.id, last.ladder.floor())?;
    drop(cpufreq);
    let mut cpufreq = Cpufreq::discover(root, Floor::Half)?;
    let adopted = cpufreq.adopt(&originals)?;
    let found: CpuList = adopted.iter().map(|(core, _)| u32::from(core.0)).collect();
    writes.say(&format!("its next life finds cores {found} capped, and lifts:"));

    for core in &cores {
        cpufreq.release(core.id)?;
    }
    match RaplCap::find(root, Watts::from_whole(50))? {
        None => writes.say("no limit of the server's own"),
        Some(mut limit) => {
            writes.say("the server's own limit at 80 W, and lifted:");
            let original = limit.read()?;
            limit.set(Watts::from_whole(80), &original)?;
            limit.put_back(&original)?;
        }
    }

    Ok(())
}

#[test]
fn what_is_found_and_written_on_every_machine() {
    for kind in machines::kinds() {
        let dir = machines::unpack(&kind);
        let writes = Writes { root: dir.path().to_owned(), ..Writes::default() };
        let subscriber = tracing_subscriber::registry().with(writes.clone());
        let ended =
            tracing::subscriber::with_default(subscriber, || scenario(&Root::at(dir.path()), &writes));
        if let Err(error) = ended {
            let root = dir.path().display().to_string();
            writes.say(&error.to_string().replace(&root, ""));
        }
        let log = writes.log.lock().unwrap();
        insta::assert_snapshot!(format!("writes-{kind}"), *log);
    }
}

/// What `ballast check` prints of a machine, and its exit code.
fn check(root: &Path, more: &[&str]) -> (String, Option<i32>) {
    let shown = root.display().to_string();
    let args = [&["check", "--root", &shown], more].concat();
    let output = Lab::ballast(&args);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    let text = String::from_utf8(output.stdout).expect("UTF-8") + &errors;
    (text.replace(&shown, ""), output.status.code())
}

#[test]
fn what_check_says_of_every_machine() {
    for kind in machines::kinds() {
        let dir = machines::unpack(&kind);
        let (text, code) = check(dir.path(), &[]);
        let text = format!("{text}\nexit code {}", code.unwrap());
        insta::assert_snapshot!(format!("check-{kind}"), text);

        let (json, same) = check(dir.path(), &["--json"]);
        assert_eq!(same, code, "{kind}");
        let json: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
        assert_eq!(json["exit_code"].as_i64(), code.map(i64::from), "{kind}");
        for finding in json["findings"].as_array().unwrap() {
            let needs_reason = finding["state"] != "works";
            assert_eq!(finding["reason"].is_string(), needs_reason, "{kind}: {finding}");
        }
    }
}

#[test]
fn the_fields_of_the_json_object_are_those_documented() {
    let dir = machines::unpack("intel-hwp-two-sockets");
    let (text, _) = check(dir.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let docs = include_str!("../../docs/operate/check.md");
    let mut paths = vec![];
    fields("", &json, &mut paths);
    for path in paths {
        assert!(docs.contains(&format!("`{path}`")), "docs/operate/check.md does not tell {path}");
    }
}

/// The path of every field, without array indices; maps by number stand as `*`.
fn fields(at: &str, value: &serde_json::Value, paths: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let key = if key.bytes().all(|b| b.is_ascii_digit()) { "*" } else { key };
                let path = if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
                paths.push(path.clone());
                fields(&path, value, paths);
            }
        }
        serde_json::Value::Array(array) => {
            array.iter().take(1).for_each(|value| fields(at, value, paths));
        }
        _ => {}
    }
}

#[test]
fn a_recording_of_a_machine_gives_the_same_answers() {
    for kind in machines::kinds() {
        let dir = machines::unpack(&kind);
        let copy = tempfile::tempdir().unwrap();
        let to = copy.path().join("recorded");
        let (text, code) = check(dir.path(), &["--record", to.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{text}");
        assert!(to.join("manifest.json").exists());
        assert_eq!(check(&to, &[]), check(dir.path(), &[]), "{kind}");
    }
}

#[test]
fn a_write_test_puts_back_what_it_changed() {
    let dir = machines::unpack("intel-smt-off");
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("agent");
    let folder = folder.to_str().unwrap();
    let policy = |n: u32, file: &str| {
        let path = format!("sys/devices/system/cpu/cpufreq/policy{n}/{file}");
        std::fs::read_to_string(dir.path().join(path)).unwrap().trim().to_owned()
    };

    let (text, code) = check(dir.path(), &["--write-test", "--state-dir", folder]);
    assert!(text.contains("write test: core 0: 2000000 kHz: obeyed, and put back"), "{text}");
    assert!(text.contains("write test: core 1: 1800000 kHz: obeyed, and put back"), "{text}");
    assert!(text.contains("package-0 long_term: 125000000 uW again: obeyed"), "{text}");

    // A folder is no cgroup: the bandwidth of a new group cannot be limited.
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(policy(1, "scaling_max_freq"), "1900000", "an administrator's limit");

    // A kernel shows its own maximum for "no limit".
    assert_eq!(policy(0, "scaling_max_freq"), "2147483647");
    assert!(!state.path().join("agent").exists() && !scratch_left(dir.path()));
}

fn scratch_left(root: &Path) -> bool {
    let entries = std::fs::read_dir(root.join("sys/fs/cgroup")).expect("a folder").flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("ballast-check"))
}

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    for args in [&["check", "--bogus"][..], &["check", "--root", "/nonexistent"]] {
        assert_eq!(Lab::ballast(args).status.code(), Some(64), "{args:?}");
    }
    assert_eq!(Lab::ballast(&["check", "--help"]).status.code(), Some(0));
}
