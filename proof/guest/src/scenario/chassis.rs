//! The whole loop: a real chassis manager on the host, the agent in the guest.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::agent::CHASSIS;
use crate::guest::{Guest, PATIENCE};
use crate::machine::CPUS;
use crate::plant::{SHARED_W, Sample, TOP};
use crate::report::Notes;

const BUDGET_W: f64 = 270.0;
const EPISODES: usize = 10;
/// The figure to reach, from the first watt over the limit to the first sample under it.
const UNDER_WITHIN: Duration = Duration::from_millis(500);

/// The manager; it ends with this value.
struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn budget(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    forget(guest)?;
    let result = episodes(guest, notes);
    // The next scenario counts its messages from the start again.
    forget(guest)?;
    result
}

/// Makes the agent forget whose messages it has obeyed.
pub(super) fn forget(guest: &mut Guest) -> anyhow::Result<()> {
    guest.shell.run(
        "systemctl stop ballast-agent && rm -f /var/lib/ballast-agent/memory.json && \
         systemctl start ballast-agent",
    )?;
    guest.agent.begin_again();
    guest.status_when("an agent that sees its meter", |status| status.report.power_w.is_some())?;
    Ok(())
}

fn manager(guest: &Guest) -> anyhow::Result<(Manager, u16)> {
    let home = guest.plant.chassis_root.with_file_name("chassis");
    fs::create_dir_all(&home)?;
    let certs = home.with_file_name("certs");
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = format!(
        "chassis = {CHASSIS:?}\nbudget_w = {BUDGET_W}\nlisten = \"127.0.0.1:{port}\"\n\
         root = {:?}\nstate_dir = {:?}\nshared_w = {SHARED_W}\n\
         [tls]\ncert = {:?}\nkey = {:?}\nca = {:?}\n\
         [alert]\nlift_hold_ms = 1000\n\
         [poll]\nlag_ms = 50\nrefresh_ms = 50\n\
         [[supply]]\nhwmon = \"pmbus\"\nrated_w = 600\n\
         [[server]]\nid = \"guest\"\nurl = \"https://127.0.0.1:{}\"\nidle_w = 112\n",
        guest.plant.chassis_root,
        home.join("state"),
        certs.join(format!("chassis-{CHASSIS}.crt")),
        certs.join(format!("chassis-{CHASSIS}.key")),
        certs.join("ca.crt"),
        guest.machine.agent_port,
    );

    let file = home.join("chassis.toml");
    fs::write(&file, config)?;
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&guest.manager)
        .arg("--config")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(home.join("log"))?)
        .spawn()
        .context("ballast-chassis does not start")?;
    Ok((Manager(child), port))
}

fn episodes(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.load(0.3, 0.3);
    let (_manager, port) = manager(guest)?;
    let began = Instant::now();

    while !guest.agent.chassis_sees_us(port).unwrap_or(false) {
        if began.elapsed() > PATIENCE {
            let log = guest.plant.chassis_root.with_file_name("chassis").join("log");
            bail!("the manager does not manage us: {}", fs::read_to_string(log)?);
        }

        thread::sleep(Duration::from_millis(100));
    }

    let limit = BUDGET_W - SHARED_W;
    let mut times = Vec::with_capacity(EPISODES);

    for _ in 0..EPISODES {
        let calm = Instant::now();
        let top = |sample: &Sample| sample.at > calm && sample.registers == [TOP; CPUS];
        guest.plant.wait(&"no cap", calm, PATIENCE, top)?;
        thread::sleep(Duration::from_millis(500));
        let step = Instant::now();
        guest.load(0.6, 1.0);
        let over = guest.plant.wait(&"over the limit", step, PATIENCE, |s| s.watts > limit)?;
        let under = guest.plant.wait(&"under the limit", over.at, PATIENCE, |s| s.watts <= limit)?;
        times.push(under.at - over.at);
        thread::sleep(Duration::from_millis(500));
        guest.load(0.3, 0.3);
    }

    notes.put_spread("over_to_under_limit", &mut times);
    guest.high_untouched(began)?;
    let longest = times.last().copied().unwrap_or_default();

    guest.within("longest time over the limit", longest, UNDER_WITHIN)
}
