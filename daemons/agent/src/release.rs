//! What an agent that died has left restricted, put back from its journal alone.
//!
//! A dead agent's restrictions are held at first: they may be all that keeps the chassis under its
//! budget, and the next start adopts them. When none comes back within `orphan_hold_s`, they must not
//! stay for ever: systemd then starts `ballast-agent-orphan.service`, which is a release. The timer is
//! systemd's, because nothing else is sure to outlive the agent.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::bail;
use ballast_hw::cpufreq::put_back_blind;
use ballast_hw::{
    Bandwidth, Binders, By, Cpufreq, Floor, Journal, JournalFolders, MemoryLimits, Opened, Originals, Root,
    Through, boot_id,
};
use clap::Args;

use super::limit;
use crate::config::AgentConfig;
use ballast_runtime::EXIT_LIVE;

/// How long systemd and libvirt are waited for at the end, all calls together: less than the unit's
/// `TimeoutStopSec` leaves. What is not back by then is in the journal.
pub(super) const RESTORE_WITHIN: Duration = Duration::from_secs(4);
/// For `--help`, and docs/operate/operations.md.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 nothing is restricted any more, or held as it should \
    be; 1 something could not be put back: stderr names it, the journal stays, and the next call tries \
    again; 2 wrong usage; 75 an agent runs on this state folder: nothing was done.";

/// What systemd starts when nobody came back.
const ORPHAN: &str = "ballast-agent-orphan";

/// Where the agent lived. No key of the file but `root`, `state_dir` and `orphan_hold_s` is looked at,
/// and it may be damaged or gone.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// The agent's TOML file
    #[arg(long, value_name = "FILE", default_value = "/etc/ballast/agent.toml")]
    config: PathBuf,
    /// Its state folder, whatever the file says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Its run folder, where the journal lies first, whatever the file says
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

impl ReleaseArgs {
    /// Where the agent lived, and how long to hold.
    fn read(&self) -> (Installation, Duration) {
        let (daemon, run_dir, hold) = AgentConfig::for_release(&self.config);
        let default = JournalFolders::of(&daemon.state_dir).first().to_owned();
        let state_dir = self.state_dir.clone().unwrap_or(daemon.state_dir);
        let journal = match &self.run_dir {
            Some(run_dir) => JournalFolders::new(run_dir, &state_dir),
            // The config names none of its own.
            None if run_dir == default => JournalFolders::of(&state_dir),
            None => JournalFolders::new(&run_dir, &state_dir),
        };
        (Installation { root: Root::at(daemon.root), journal, state_dir }, hold)
    }
}

/// Where an agent lived.
struct Installation {
    root: Root,
    journal: JournalFolders,
    state_dir: PathBuf,
}

impl Installation {
    /// Whether an agent has left anything restricted. What cannot be looked for counts as left.
    fn is_left(&self) -> bool {
        self.journal.hold_a_journal() || !matches!(self.state_dir.join(limit::FILE).try_exists(), Ok(false))
    }
}

/// `ballast-agent release`.
pub(super) fn main(args: &ReleaseArgs) -> ExitCode {
    let _flush = ballast_runtime::log::start(tracing::Level::INFO);
    finish(release(&args.read().0, true))
}

/// `ballast-agent stop-post`: systemd says in `SERVICE_RESULT` how the agent has ended.
pub(super) fn stop_post(args: &ReleaseArgs) -> ExitCode {
    let _flush = ballast_runtime::log::start(tracing::Level::INFO);
    let (installation, hold) = args.read();
    let Ok(result) = std::env::var("SERVICE_RESULT") else {
        tracing::error!("SERVICE_RESULT is not set: systemd sets it for ExecStopPost");
        return ExitCode::from(2);
    };

    if result == "success" {
        let done = release(&installation, false);
        if done.is_err()
            && let Err(error) = arm(hold)
        {
            tracing::error!("no timer tries again to release: {error:#}");
        }
        return finish(done);
    }

    if !installation.is_left() {
        return ExitCode::SUCCESS;
    }
    tracing::warn!(
        result,
        hold_s = hold.as_secs(),
        "the agent died: what it restricted stays until a new agent or the orphan timer lifts it"
    );

    finish(arm(hold).map(|()| Released::Held))
}

enum Released {
    Nothing,
    All,
    Held,
    Running,
}

fn finish(released: anyhow::Result<Released>) -> ExitCode {
    match released {
        Ok(Released::Nothing) => tracing::info!("nothing was left restricted"),
        Ok(Released::All) => tracing::info!("everything is restored"),
        Ok(Released::Held) => {}
        Ok(Released::Running) => {
            tracing::warn!("an agent runs on this state folder: nothing was done");
            return ExitCode::from(EXIT_LIVE);
        }
        Err(error) => {
            tracing::error!("{error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Puts back what the journal names, unless a live agent holds its folders. What cannot be read is passed
/// over, and named. A journal of another version is given up on order alone: an agent of that version can still
/// take it over.
fn release(installation: &Installation, on_order: bool) -> anyhow::Result<Released> {
    if !installation.is_left() {
        return Ok(Released::Nothing);
    }
    let root = &installation.root;
    let boot = boot_id(root).or_else(|error| {
        tracing::warn!(%error, "which boot this is is not known: the journal counts as one of this boot");
        installation.journal.boot_of().ok_or(error)
    });
    let opened = match boot.and_then(|boot| Journal::open(&installation.journal, &boot)) {
        Err(error) if error.is_locked() => return Ok(Released::Running),
        opened => opened,
    };

    let mut failed = vec![];
    let journal = match opened {
        // No reboot clears the limit of a BMC.
        Ok((journal, Opened::Clean | Opened::OtherBoot)) => Some(journal),
        Ok((journal, Opened::Adopted(originals))) => {
            failed.extend(put_back(root, &originals));
            Some(journal)
        }
        Ok((_, Opened::Held(why))) if !on_order => {
            tracing::warn!(why, "what the journal names stays as it is; ballast-agent release gives it up");
            return Ok(Released::Held);
        }
        Ok((journal, Opened::Damaged(why) | Opened::Held(why))) => {
            // Of two journals one may still say what was there.
            let known = journal.adopted();
            failed.extend(known.iter().flat_map(|originals| put_back(root, originals)));
            all_put_back(&failed)?;
            match known.iter().any(|originals| originals.cpufreq.is_some()) {
                true => failed.push(format!("{why}: what it names is not known, and stays as it is")),
                false => failed.extend(lift_blind(root, &why)),
            }
            failed.extend(journal.set_all_aside().err().map(|error| error.to_string()));
            None
        }
        // An agent may run here, for all that is known.
        Err(error) => return Err(error.into()),
    };

    match limit::left(root, &installation.state_dir) {
        Ok(None) => {}
        Ok(Some((by, mut limiter))) => {
            failed.extend(limiter.put_back_for_good().err().map(|error| format!("{by}: {error}")));
        }
        Err(error) => failed.push(format!("the server's own limit: {error:#}")),
    }

    // If not, the journal stays as it was: the next call tries all of it again.
    all_put_back(&failed)?;
    if let Some(journal) = journal {
        journal.finish()?;
    }

    Ok(Released::All)
}

fn all_put_back(failed: &[String]) -> anyhow::Result<()> {
    if !failed.is_empty() {
        bail!("not put back: {}", failed.join("; "));
    }
    Ok(())
}

/// Lifts what can be lifted without knowing what was there before; names what that is not.
fn lift_blind(root: &Root, why: &str) -> Vec<String> {
    let mut failed = vec![format!(
        "{why}: what a dead agent has restricted is not known. Every core's limit was taken off; RAPL's \
         limits, and the CPUs and bandwidths of VMs, are as they were: a reboot lifts them"
    )];
    if Cpufreq::is_there(root).unwrap_or(true) {
        failed.extend(put_back_blind(root, None));
    }
    failed
}

/// Puts back everything that `left` names; tells what could not be. One failure never stands in the way
/// of the rest.
fn put_back(root: &Root, left: &Originals) -> Vec<String> {
    let mut failed = vec![];
    if let Some(saved) = &left.cpufreq {
        let adopted = Cpufreq::discover(root, Floor::Half).and_then(|mut cpufreq| {
            cpufreq.adopt(saved)?;
            Ok(cpufreq)
        });
        match adopted {
            Ok(mut cpufreq) => failed.extend(cpufreq.release_all()),
            Err(error) => {
                tracing::warn!(%error, "a core cannot be read: the limits are put back without a look");
                failed.extend(put_back_blind(root, Some(saved)));
            }
        }
    }

    let rapl = limit::put_back_rapl(root, &left.powercap);
    failed.extend(rapl.err().map(|error| error.to_string()));

    // Quotas are set in no period here.
    let mut binders = Binders::new(root, By::default());
    binders.shutdown_deadline().set(RESTORE_WITHIN);

    match binders.systemd() {
        Ok(systemd) => {
            let mut memory = MemoryLimits::new(root, Through::Systemd(systemd.clone()));
            failed.extend(memory.adopt(&left.memory).iter().map(ToString::to_string));
            failed.extend(memory.release_all().iter().map(ToString::to_string));
            let bandwidth = Bandwidth::new(root, Duration::from_millis(20));
            let mut bandwidth = bandwidth.through(Through::Systemd(systemd));
            bandwidth.adopt(&left.quotas);
            failed.extend(bandwidth.release_all().iter().map(ToString::to_string));
        }
        Err(error) => failed.push(error.to_string()),
    }

    failed.extend(binders.restore_all(&left.cpusets).values().map(ToString::to_string));
    failed
}

/// Has systemd start a release after `hold`, unless an agent came back: its unit then stops the timer.
/// A timer that runs already keeps its time, so that restarts that fail do not put it off for ever.
fn arm(hold: Duration) -> anyhow::Result<()> {
    let timer = format!("{ORPHAN}.timer");
    if call("systemctl", &["is-active", "--quiet", &timer]).is_ok() {
        return Ok(());
    }
    let on_active = format!("--on-active={}s", hold.as_secs());
    let unit = format!("--unit={ORPHAN}.service");
    call("systemd-run", &["--quiet", &on_active, "--timer-property=AccuracySec=1s", &unit])
}

fn call(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program).args(args).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("{program} {}: {status}", args.join(" ")),
        Err(error) => bail!("{program}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A server of three cores that an agent has left at 1.2 GHz, and its state folder.
    fn server() -> (tempfile::TempDir, Root, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/random/boot_id", "boot\n");
        write("sys/devices/system/cpu/online", "0-2\n");
        write("sys/devices/system/cpu/present", "0-2\n");
        for cpu in 0..3 {
            let dir = format!("sys/devices/system/cpu/cpufreq/policy{cpu}");
            for (file, text) in [
                ("scaling_driver", "intel_pstate"),
                ("cpuinfo_min_freq", "1000000"),
                ("cpuinfo_max_freq", "2400000"),
                ("base_frequency", "2400000"),
                ("scaling_max_freq", "1200000"),
            ] {
                write(&format!("{dir}/{file}"), text);
            }
        }
        write("state/journal.json", JOURNAL);
        let (root, state) = (Root::at(folder.path()), folder.path().join("state"));
        (folder, root, state)
    }

    const JOURNAL: &str = r#"{"version":1,"boot_id":"boot","originals":{"cpufreq":
        {"driver":"intel_pstate","max_khz":{"0":2147483647,"1":2147483647,"2":2000000}},
        "powercap":{"package-7":{"limit_uw":165000000,"window_us":null,"short_uw":null,"enabled":true}},
        "cpusets":{},"quotas":{},"memory":{}}}"#;

    fn limits(root: &Root) -> Vec<String> {
        let file = |cpu| root.path(&format!("sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq"));
        (0..3).map(|cpu| fs::read_to_string(file(cpu)).unwrap().trim().to_owned()).collect()
    }
    fn failed(root: &Root, state: &Path) -> String {
        let journal = JournalFolders::of(state);
        let installation = Installation { root: root.clone(), journal, state_dir: state.to_owned() };
        format!("{:#}", release(&installation, true).err().expect("something is not put back"))
    }

    #[test]
    fn a_release_goes_on_past_a_core_that_cannot_be_read_and_a_zone_that_is_gone() {
        let (_folder, root, state) = server();
        let broken = root.path("sys/devices/system/cpu/cpufreq/policy1/cpuinfo_min_freq");
        fs::write(broken, "garbage").unwrap();
        let text = failed(&root, &state);
        assert!(text.contains("package-7") && !text.contains("policy"), "{text}");
        assert_eq!(limits(&root), ["2147483647", "2147483647", "2000000"]);
        assert!(state.join("journal.json").exists(), "the zone may come back");
    }

    #[test]
    fn without_a_boot_id_the_journal_is_taken_for_this_boots() {
        let (_folder, root, state) = server();
        fs::remove_file(root.path("proc/sys/kernel/random/boot_id")).unwrap();
        let text = failed(&root, &state);
        assert!(text.contains("package-7"), "{text}");
        assert_eq!(limits(&root), ["2147483647", "2147483647", "2000000"]);
    }

    #[test]
    fn what_a_whole_journal_says_is_put_back_though_the_other_one_is_held() {
        for other in [JOURNAL.replace("\"version\":1", "\"version\":9"), String::new()] {
            let (folder, root, state) = server();
            let run = folder.path().join("run");
            fs::create_dir(&run).unwrap();
            // Its zone is gone, and would be tried for ever.
            let mut journal: serde_json::Value = serde_json::from_str(JOURNAL).unwrap();
            journal["originals"]["powercap"] = serde_json::json!({});
            fs::write(run.join("journal.json"), journal.to_string()).unwrap();
            let file = state.join("journal.json");
            fs::write(&file, &other).unwrap();
            if other.is_empty() {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
            }
            let installation = Installation {
                root: root.clone(),
                journal: JournalFolders::new(&run, &state),
                state_dir: state.clone(),
            };
            release(&installation, true).err().expect("what the other one names is not known");
            assert_eq!(limits(&root), ["2147483647", "2147483647", "2000000"]);
            assert!(state.join("journal.json.bad").exists() && !file.exists());
        }
    }

    #[test]
    fn without_a_journal_that_can_be_read_the_cores_are_lifted_and_the_rest_is_named() {
        for journal in [JOURNAL.replace("\"version\":1", "\"version\":9"), "{".to_owned(), String::new()] {
            let (_folder, root, state) = server();
            let file = state.join("journal.json");
            fs::write(&file, &journal).unwrap();
            if journal.is_empty() {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
            }
            // What else is left is put back all the same.
            let dcmi = r#"{"of":"dcmi","original":{"active":false,"action":0,"limit_w":0,"correction_ms":0,
                "sampling_s":0}}"#;
            fs::write(state.join(limit::FILE), dcmi).unwrap();
            let text = failed(&root, &state);
            for says in ["not known", "RAPL", "CPUs and bandwidths of VMs", "dcmi"] {
                assert!(text.contains(says), "{says}: {text}");
            }
            assert_eq!(limits(&root), ["2147483647"; 3]);
            assert!(state.join("journal.json.bad").exists() && !file.exists());
        }
    }
}
