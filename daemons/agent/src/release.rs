//! What an agent that died has left restricted, put back from its journal alone.
//!
//! A dead agent's restrictions are held at first: they may be all that keeps the chassis under its
//! budget, and the next start adopts them. When none comes back within `orphan_hold_s`, they must not
//! stay for ever: systemd then starts `ballast-agent-orphan.service`, which is a release. The timer is
//! systemd's, because nothing else is sure to outlive the agent.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::bail;
use ballast_hw::{
    Bandwidth, Binders, By, Cpufreq, Floor, Journal, Opened, Originals, Root, Through, boot_id,
};
use clap::Args;

use super::limit;
use crate::config::AgentConfig;
use ballast_runtime::EXIT_LIVE;

/// How long systemd and libvirt are waited for at the end, all calls together: less than the unit's
/// TimeoutStopSec leaves. What is not back by then is in the journal.
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
    /// The folder of its journal, whatever the file says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl ReleaseArgs {
    /// The machine, the state folder, and how long to hold.
    fn read(&self) -> (Root, PathBuf, Duration) {
        let (place, hold) = AgentConfig::for_release(&self.config);
        (Root::at(place.root), self.state_dir.clone().unwrap_or(place.state_dir), hold)
    }
}

/// `ballast-agent release`.
pub(super) fn main(args: &ReleaseArgs) -> ExitCode {
    let _flush = ballast_runtime::log::start();
    let (root, state_dir, _) = args.read();
    finish(release(&root, &state_dir))
}

/// `ballast-agent stop-post`: systemd says in `SERVICE_RESULT` how the agent has ended.
pub(super) fn stop_post(args: &ReleaseArgs) -> ExitCode {
    let _flush = ballast_runtime::log::start();
    let (root, state_dir, hold) = args.read();
    let Ok(result) = std::env::var("SERVICE_RESULT") else {
        tracing::error!("SERVICE_RESULT is not set: systemd sets it for ExecStopPost");
        return ExitCode::from(2);
    };

    if result == "success" {
        let done = release(&root, &state_dir);
        if done.is_err()
            && let Err(error) = arm(hold)
        {
            tracing::error!("no timer tries again to release: {error:#}");
        }
        return finish(done);
    }

    if !is_left(&state_dir) {
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

/// Whether an agent has left anything restricted. What cannot be looked for counts as left.
fn is_left(state_dir: &Path) -> bool {
    let there = |file| !matches!(state_dir.join(file).try_exists(), Ok(false));
    there(Journal::FILE) || there(limit::FILE)
}

/// Puts back what the journal in `state_dir` names, unless a live agent holds the folder.
fn release(root: &Root, state_dir: &Path) -> anyhow::Result<Released> {
    if !is_left(state_dir) {
        return Ok(Released::Nothing);
    }
    let (mut journal, opened) = match Journal::open(state_dir, &boot_id(root)?) {
        Err(error) if error.is_locked() => return Ok(Released::Running),
        opened => opened?,
    };

    let left = match opened {
        // No reboot clears the limit of a BMC.
        Opened::Clean | Opened::OtherBoot => Box::default(),
        Opened::Adopted(left) => left,
        Opened::SetAside(aside) => bail!(
            "the journal cannot be understood and is now {}: nothing was put back. If caps are left, a \
             reboot lifts them",
            aside.display()
        ),
    };

    let mut failed = put_back(root, &left);

    if let Some((by, mut limiter)) = limit::left(root, state_dir)? {
        failed.extend(limiter.put_back_for_good().err().map(|error| format!("{by}: {error}")));
    }
    if !failed.is_empty() {
        // As it was: the next call tries all of it again.
        journal.begin(&left)?;
        bail!("not put back: {}", failed.join("; "));
    }

    journal.finish()?;

    Ok(Released::All)
}

/// Puts back everything that `left` names; tells what could not be. One failure never stands in the way
/// of the rest.
fn put_back(root: &Root, left: &Originals) -> Vec<String> {
    let mut failed = vec![];
    if let Some(saved) = &left.cpufreq {
        match Cpufreq::discover(root, Floor::Half) {
            Ok(mut cpufreq) => {
                failed.extend(cpufreq.adopt(saved).err().map(|error| error.to_string()));
                failed.extend(cpufreq.release_all());
            }
            Err(error) => failed.push(error.to_string()),
        }
    }

    let rapl = limit::put_back_rapl(root, &left.powercap);
    failed.extend(rapl.err().map(|error| error.to_string()));

    // Quotas are set in no period here.
    let mut binders = Binders::new(root, By::default());
    binders.shutdown_deadline().set(RESTORE_WITHIN);

    match binders.systemd() {
        Ok(systemd) => {
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
