//! Real daemons whose disk takes nothing: at the start, and later.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::server_root;
use ballast_types::ServerId;
use serde_json::{Value, json};

ballast_testbed::wall_time![
    a_recording_that_cannot_be_written_ends_no_daemon_and_is_whole_once_there_is_room,
    state_that_cannot_be_written_is_an_alarm_and_is_written_once_there_is_room,
    without_a_journal_the_agent_watches_and_its_next_start_acts,
    a_placement_daemon_on_a_full_disk_answers_and_places_once_there_is_room,
    daemons_start_on_a_full_disk_and_hold_the_budget_on_one_that_becomes_full,
    a_budget_that_cannot_be_written_down_is_refused_or_said_not_to_last,
    on_a_read_only_var_daemons_start_answer_and_hold_the_budget,
];

/// Whether a daemon says that `what` is not written, in status and metrics.
fn says(lab: &Lab, name: &str, what: &str) -> bool {
    let alarms = match name {
        "chassis" => lab.chassis().map(|status| status.alarms),
        _ => lab.agent(name).map(|status| status.alarms),
    };
    let role = if name == "chassis" { "chassis" } else { "agent" };
    let metric = format!("ballast_{role}_disk_fault{{what=\"{what}\"}} 1.0");
    alarms.is_some_and(|all| all.iter().any(|it| it.message.starts_with(&format!("{what} not written"))))
        && lab.get(name, "/metrics").1.contains(&metric)
}

/// What the agent may change; the manager's caps from outside are not its.
fn agents(lab: &Lab) -> BTreeMap<PathBuf, String> {
    let root = server_root(&lab.tree(), &ServerId::new("s01").expect("an id"));
    lab.limits().into_iter().filter(|(path, _)| path.starts_with(&root)).collect()
}

/// Whether the agent has capped cores.
fn acts(lab: &Lab) -> bool {
    lab.agent("s01").is_some_and(|it| it.dry_run.is_none() && it.report.min_khz.is_some())
}

/// Puts something into a file's way, so that it cannot be replaced.
fn block(path: &Path) {
    let _ = fs::remove_file(path);
    fs::create_dir_all(path.join("in the way")).expect("a folder");
}

fn unblock(path: &Path) {
    fs::remove_dir_all(path).expect("what was in the way");
}

fn a_recording_that_cannot_be_written_ends_no_daemon_and_is_whole_once_there_is_room() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let recordings: Vec<PathBuf> = ["s01", "chassis"].map(|name| lab.home(name).join("recording")).into();
    for folder in &recordings {
        fs::create_dir_all(folder.parent().expect("a folder")).expect("a folder");
        fs::write(folder, "in the way").expect("a file");
    }

    lab.start_all();

    for name in ["s01", "chassis"] {
        lab.wait("it is an alarm", |lab| says(lab, name, "recording"));
    }
    lab.wait("the budget holds", Lab::holds);

    for folder in &recordings {
        fs::remove_file(folder).expect("what was in the way");
    }
    for name in ["s01", "chassis"] {
        lab.wait("it is over", |lab| !says(lab, name, "recording"));
        let (_, metrics) = lab.get(name, "/metrics");
        assert!(metrics.contains("dropped_recording_steps_total 0\n"), "{metrics}");
    }

    lab.end_all();

    for name in ["s01", "chassis"] {
        let report = lab.replay(name);
        assert!(report["steps"].as_u64().is_some_and(|steps| steps > 10), "{report}");
    }
}

fn state_that_cannot_be_written_is_an_alarm_and_is_written_once_there_is_room() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let state = |lab: &Lab, name: &str| lab.home(name).join("state");
    let (memory, ledger) =
        (state(&lab, "s01").join("memory.json"), state(&lab, "chassis").join("ledger.json"));
    // What is written before it replaces the file.
    let at = |path: &Path| path.with_extension("json.tmp");
    block(&at(&memory));
    block(&at(&ledger));
    lab.start_all();
    lab.wait("the budget holds", Lab::holds);
    lab.wait("memory is an alarm", |lab| says(lab, "s01", "memory"));
    lab.wait("the ledger is an alarm", |lab| says(lab, "chassis", "ledger"));
    unblock(&at(&memory));
    unblock(&at(&ledger));
    lab.wait("both are over", |lab| !says(lab, "s01", "memory") && !says(lab, "chassis", "ledger"));
    assert!(memory.is_file() && ledger.is_file());
    lab.end_all();
}

fn without_a_journal_the_agent_watches_and_its_next_start_acts() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let before = agents(&lab);
    let journal = lab.journal("s01");
    let folders = [journal.parent().expect("a folder").to_owned(), lab.home("s01").join("state")];
    let files = folders.iter().flat_map(|dir| ["journal.json.tmp", "probe.tmp.tmp"].map(|it| dir.join(it)));
    let files: Vec<_> = files.collect();
    files.iter().for_each(|file| block(file));
    lab.start_all();
    lab.wait("it is an alarm", |lab| says(lab, "s01", "journal"));
    let heard = |lab: &Lab| lab.agent("s01").is_some_and(|it| it.report.epoch_obeyed.0 > 0);
    lab.wait("it hears its manager", heard);
    let why = lab.agent("s01").and_then(|status| status.dry_run).unwrap_or_default();
    assert!(why.contains("the journal cannot be written"), "{why}");
    lab.wait("it would act", |lab| lab.log("s01").contains("dry run: would"));
    assert!(agents(&lab) == before, "something was changed without a journal");

    // Room in one of its two folders is enough.
    files[2..].iter().for_each(|file| unblock(file));
    lab.wait("it ends", |lab| lab.get("s01", "/healthz").0 == 0);
    lab.kill("s01");
    assert!(agents(&lab) == before, "something was changed without a journal");
    lab.start("s01");
    lab.wait("its cores are capped", acts);
    lab.wait("the budget holds", Lab::holds);
    lab.end_all();
    lab.wait_restored(&before, "");
}

fn a_placement_daemon_on_a_full_disk_answers_and_places_once_there_is_room() {
    let mut lab = PlaceLab::start("");
    let host = json!({"chassis": "c1", "cores": 8, "memory_gb": 32});
    let vm = |name: &str| json!({"vm_id": name, "cores": 1, "memory_gb": 4});
    let says = |lab: &PlaceLab| {
        let alarms = format!("{:?}", lab.status().alarms);
        alarms.contains("changes cannot be kept") && alarms.contains("No space left")
    };

    lab.kill();
    let Some(disk) = Disk::mount(&lab.path("state")) else { return };
    disk.fill();
    lab.restart();
    assert!(says(&lab));
    assert_eq!(lab.get("/v1/hosts").0, 200);
    let (status, why) = lab.call("PUT", "/v1/hosts/s1", &host);
    assert!(status == 503 && why["error"].as_str().is_some_and(|why| why.contains("No space left")), "{why}");

    // All is written anew with the first change that finds room.
    disk.empty();
    assert_eq!(lab.call("PUT", "/v1/hosts/s1", &host), (204, Value::Null));
    assert_eq!(lab.call("POST", "/v1/place", &vm("a")).0, 200);
    assert!(!says(&lab));

    // Full again: what was answered stands, over a kill and a start without any room.
    disk.fill();
    let placed = |lab: &PlaceLab, n: u32| lab.call("POST", "/v1/place", &vm(&format!("b{n}"))).0;
    let answered: Vec<u16> = (0..7).map(|n| placed(&lab, n)).collect();
    lab.kill();
    lab.restart();
    let there = lab.status().inventory.vms;
    assert!(there > answered.iter().filter(|status| **status == 200).count() as u64, "{there} {answered:?}");
    disk.empty();
    assert_eq!(lab.call("POST", "/v1/place", &vm("a")).1["repeated"], true);
    assert_eq!(lab.call("DELETE", "/v1/vms/a", &Value::Null).0, 204);
    assert!(!says(&lab));
    lab.kill();
    lab.restart();
    assert_eq!(lab.status().inventory.vms, there - 1);
    lab.kill();
}

/// A disk of its own, small; `None` where this user may not mount one.
struct Disk(PathBuf);

impl Disk {
    #[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).expect("a folder");
        let args = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"];
        let mounted = Command::new("mount").args(args).arg(at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("SKIPPED: no tmpfs can be mounted here");
        None
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.0.join("filler")).expect("a file");
        while filler.write_all(&[0; 4096]).is_ok() {}
        let full = fs::write(self.0.join("one more"), [0]);
        assert!(full.is_err(), "it has room left");
    }

    /// Remounts it, to be written or only read.
    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        let output = Command::new("mount").args(["-o", &options]).arg(&self.0).output().expect("mount runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Has a daemon keep all that it writes here.
    fn hold_all_of(&self, lab: &Lab, name: &str) {
        for folder in ["state", "recording"] {
            fs::create_dir(self.0.join(folder)).expect("a folder");
            symlink(self.0.join(folder), lab.home(name).join(folder)).expect("a link");
        }
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).expect("the filler");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

fn daemons_start_on_a_full_disk_and_hold_the_budget_on_one_that_becomes_full() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let before = agents(&lab);
    let Some(agent_disk) = Disk::mount(&lab.home("s01").join("disk")) else { return };
    let Some(managers) = Disk::mount(&lab.home("chassis").join("disk")) else { return };

    for (disk, name) in [(&agent_disk, "s01"), (&managers, "chassis")] {
        disk.hold_all_of(&lab, name);
        disk.fill();
    }

    lab.start_all();

    for (name, all) in [("s01", ["memory", "recording"]), ("chassis", ["ledger", "recording"])] {
        for what in all {
            lab.wait("it is an alarm", |lab| says(lab, name, what));
        }
    }

    lab.wait("its cores are capped, by a journal in memory", acts);
    assert!(lab.journal("s01").is_file());
    lab.wait("the budget holds on a full disk", Lab::holds);
    agent_disk.empty();
    managers.empty();
    lab.wait("the budget holds", Lab::holds);

    for name in ["s01", "chassis"] {
        lab.wait("no alarm is left", |lab| {
            !["journal", "ledger", "memory", "recording"].iter().any(|what| says(lab, name, what))
        });
    }

    assert!(lab.home("chassis").join("state/ledger.json").is_file());

    // Full again, in the middle of an episode; then the agent is killed, and the next adopts what it finds.
    agent_disk.fill();
    managers.fill();
    lab.wait("it is an alarm again", |lab| says(lab, "chassis", "recording"));
    lab.kill("s01");
    lab.start("s01");
    lab.wait("it acts by the journal that is there", acts);
    lab.wait("the budget still holds on a full disk", Lab::holds);
    agent_disk.empty();
    managers.empty();
    lab.wait("no alarm is left", |lab| !says(lab, "chassis", "recording"));
    lab.end_all();
    lab.wait_restored(&before, "");
    assert_eq!(lab.replay("chassis")["mismatches"], 0);
}

fn a_budget_that_cannot_be_written_down_is_refused_or_said_not_to_last() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start("chassis");
    let ready = |lab: &Lab| lab.wait("ready", |lab| lab.get("chassis", "/readyz").0 == 200);
    ready(&lab);
    let state = lab.home("chassis").join("state");
    let [end, ledger] = ["budget-end", "ledger"].map(|name| state.join(format!("{name}.json.tmp")));
    let put = |lab: &Lab, body: Value| lab.order("PUT", "chassis", "/v1/budget", &body.to_string());

    let in_force = |lab: &Lab| lab.chassis().expect("a status").budget_w.as_f64();
    let next_life = |lab: &mut Lab| {
        lab.kill("chassis");
        lab.start("chassis");
        ready(lab);
    };

    // An end that would be forgotten would leave a lower budget for good.
    block(&end);
    let (status, text) = put(&lab, json!({"budget_w": 450, "force": true, "for_s": 60}));
    assert!(status == 500 && text.contains("nothing was changed"), "{text}");
    assert_eq!(in_force(&lab), 600.0);
    let (status, text) = put(&lab, json!({"budget_w": 500, "force": true}));
    assert_eq!((status, in_force(&lab)), (200, 500.0), "{text}");
    next_life(&mut lab);
    assert_eq!(in_force(&lab), 500.0);
    unblock(&end);

    // The ledger still holds the budget from before: so its end must be there as well.
    let (status, text) = put(&lab, json!({"budget_w": 480, "force": true, "for_s": 3600}));
    assert_eq!(status, 200, "{text}");
    block(&ledger);
    let (status, text) = put(&lab, json!({"budget_w": 450, "force": true, "for_s": 7200}));
    assert!(status == 500 && text.contains("could not be written down"), "{text}");
    assert_eq!(in_force(&lab), 450.0);
    next_life(&mut lab);
    let answer: Value = serde_json::from_str(&lab.get("chassis", "/v1/budget").1).expect("JSON");
    assert_eq!(answer["budget_w"], json!(480.0), "{answer}");
    assert!(answer["until_unix_s"].is_u64(), "a lower budget for good: {answer}");
    unblock(&ledger);
}

fn on_a_read_only_var_daemons_start_answer_and_hold_the_budget() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let before = agents(&lab);
    let Some(agents_var) = Disk::mount(&lab.home("s01").join("disk")) else { return };
    let Some(managers_var) = Disk::mount(&lab.home("chassis").join("disk")) else { return };
    agents_var.hold_all_of(&lab, "s01");
    managers_var.hold_all_of(&lab, "chassis");
    // As after a reboot that mounted it so; then after a crash, in the middle of an event.
    for var in [&agents_var, &managers_var] {
        var.remount("ro");
    }
    for round in ["a start", "a crash"] {
        lab.start_all();
        lab.wait("the manager is ready", |lab| lab.get("chassis", "/readyz").0 == 200);
        lab.wait(&format!("the agent acts after {round}"), acts);
        lab.wait("the budget holds", Lab::holds);
        if round == "a start" {
            ["s01", "chassis"].iter().for_each(|name| lab.kill(name));
        }
    }
    for name in ["s01", "chassis"] {
        lab.wait("it is an alarm", |lab| says(lab, name, "recording"));
        assert_eq!(lab.get(name, "/healthz").0, 200);
    }

    agents_var.remount("rw");
    managers_var.remount("rw");
    for name in ["s01", "chassis"] {
        lab.wait("no alarm is left", |lab| {
            !["journal", "ledger", "memory", "recording"].iter().any(|what| says(lab, name, what))
        });
    }
    lab.end_all();
    lab.wait_restored(&before, "");
}
