//! Chassis managers in the guest, whose supplies are the kernel's own pmbus driver's.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::{ChassisState, ChassisStatus, Slot};

use super::chassis::forget;
use crate::guest::{Guest, PATIENCE};
use crate::manager::{CONFIG, Manager};
use crate::plant::{SHARED_W, Sample};
use crate::report::Notes;

/// The budget of `recipe/chassis.toml`.
const BUDGET_W: f64 = 270.0;
/// What that is lowered to while it runs.
const LOWER_W: f64 = 250.0;
/// What the supplies' firmware and the poll may be behind or off, of the draw.
const NEAR: f64 = 0.03;
/// So far behind is what the manager shows, at most.
const BEHIND: Duration = Duration::from_secs(4);
const WATCHED: Duration = Duration::from_secs(3);

/// Runs `test` with two power supplies on the guest's I²C bus; then they are gone again.
fn with_supplies(
    guest: &mut Guest,
    test: impl FnOnce(&mut Guest) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    guest.shell.run("systemd-run -q --unit=guest-psu /usr/local/sbin/guest-psu")?;
    let there = "for i in $(seq 100); do [ -e /sys/bus/i2c/devices/0-0059/hwmon ] && exit; sleep 0.1; done; \
                 journalctl -u guest-psu; exit 1";
    let result = guest.shell.run(there).context("the kernel's pmbus driver").and_then(|_| test(guest));
    guest.shell.run(
        "systemctl stop guest-psu; rm -f /run/guest-psu-*; modprobe -r i2c-stub; modprobe -r pmbus i2c-dev",
    )?;
    result
}

/// Runs `test` on a manager in the guest that reads two power supplies; its VMs are so busy.
fn with_manager(
    guest: &mut Guest,
    (user_facing, batch): (f64, f64),
    test: impl FnOnce(&mut Guest, Manager) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    guest.fresh()?;
    forget(guest)?;
    guest.load(user_facing, batch);
    let manager = Manager(None);
    let result = with_supplies(guest, |guest| {
        manager.start(&mut guest.shell, CONFIG)?;
        let done = test(guest, manager);
        manager.remove(&mut guest.shell)?;
        done
    });
    forget(guest)?;
    result
}

pub(super) fn pmbus(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    with_manager(guest, (0.3, 0.3), |guest, manager| {
        budget(guest, manager, notes)?;
        faults(guest, manager, notes)
    })
}

/// The whole loop inside the guest: over the budget by the kernel's readings, and under it by its p-states.
fn budget(guest: &mut Guest, manager: Manager, notes: &mut Notes) -> anyhow::Result<()> {
    let managed = |status: &ChassisStatus| {
        status.state == ChassisState::Normal && status.servers.iter().all(|it| it.slot == Slot::Managed)
    };
    manager.status_when(&mut guest.shell, "a server that is managed", managed)?;
    read(guest, manager)?;
    let step = Instant::now();
    guest.load(0.6, 1.0);
    let over = |sample: &Sample| sample.watts + SHARED_W > BUDGET_W;
    let over = guest.plant.wait(&"over the budget", step, PATIENCE, over)?;
    let under = |sample: &Sample| sample.watts + SHARED_W <= BUDGET_W;
    let under = guest.plant.wait(&"under the budget", over.at, PATIENCE, under)?;
    notes.put_ms("over_to_under_budget", under.at - over.at);
    guest.high_untouched(step)?;
    read(guest, manager)
}

/// Fails if the manager does not come to see the true draw.
fn read(guest: &mut Guest, manager: Manager) -> anyhow::Result<()> {
    let plant = &guest.plant;
    let near = |status: &ChassisStatus| {
        let truth = plant.now().map_or(0.0, |sample| sample.watts + SHARED_W);
        status.power_w.is_some_and(|watts| (watts.as_f64() - truth).abs() < NEAR * truth)
    };
    manager.status_when(&mut guest.shell, "the true draw by PMBus", near).map(drop)
}

/// What the supplies cannot tell is missing, and never low: the budget holds, and no status shows less.
fn faults(guest: &mut Guest, manager: Manager, notes: &mut Notes) -> anyhow::Result<()> {
    let stub = "/sys/bus/i2c/devices/i2c-0";
    let pull = |psu: &str| format!("echo 0x{psu} >{stub}/delete_device");
    let plug = |psu: &str| format!("echo dps800 0x{psu} >{stub}/new_device");
    let both = |of: &dyn Fn(&str) -> String| format!("{}; {}", of("58"), of("59"));
    for (name, fault, mended) in [
        ("all-ones", "echo 0xffff >/run/guest-psu-58".to_owned(), "rm /run/guest-psu-58".to_owned()),
        ("no-watts", "echo 0 >/run/guest-psu-59".to_owned(), "rm /run/guest-psu-59".to_owned()),
        ("all-pulled", both(&pull), both(&plug)),
    ] {
        let began = Instant::now();
        guest.shell.run(&fault)?;
        let missing = |status: &ChassisStatus| status.power_w.is_none() && !status.alarms.is_empty();
        manager.status_when(&mut guest.shell, "a reading that is missing", missing).context(name)?;
        notes.put_ms(&format!("{name}_to_missing"), began.elapsed());
        held(guest, manager, began).context(name)?;
        guest.shell.run(&mended)?;
        read(guest, manager).context(name)?;
    }

    // One that was pulled carries nothing, and the other carries all.
    let began = Instant::now();
    guest.shell.run(&pull("59"))?;
    let told = |status: &ChassisStatus| status.alarms.iter().any(|alarm| alarm.message.contains("0-0059"));
    manager.status_when(&mut guest.shell, "an alarm about the supply that was pulled", told)?;
    read(guest, manager)?;
    held(guest, manager, began)?;
    guest.shell.run(&plug("59"))?;
    read(guest, manager)
}

/// Fails if the manager shows less than what is drawn, or lets the chassis draw more than the budget.
fn held(guest: &mut Guest, manager: Manager, from: Instant) -> anyhow::Result<()> {
    let watched = Instant::now();
    while watched.elapsed() < WATCHED {
        let lately = guest.plant.since(Instant::now() - BEHIND);
        let least = lately.iter().map(|sample| sample.watts + SHARED_W).fold(f64::INFINITY, f64::min);
        let status = manager.status(&mut guest.shell)?;
        if let Some(watts) = status.power_w.filter(|watts| watts.as_f64() < least * (1.0 - 2.0 * NEAR)) {
            bail!("the manager shows {watts}, at least {least:.1} W were drawn: {:?}", status.alarms);
        }
        thread::sleep(Duration::from_millis(200));
    }
    let samples = guest.plant.since(from);
    let highest = samples.iter().map(|sample| sample.watts + SHARED_W).fold(0.0, f64::max);
    if highest > BUDGET_W * (1.0 + NEAR) {
        bail!("{highest:.1} W under a budget of {BUDGET_W} W");
    }
    Ok(())
}

/// `systemctl reload` in the middle of a capping event: a lower budget, then a config that is refused.
pub(super) fn reload(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    with_manager(guest, (0.6, 1.0), |guest, manager| lower(guest, manager, notes))
}

fn lower(guest: &mut Guest, manager: Manager, notes: &mut Notes) -> anyhow::Result<()> {
    let capped = |status: &ChassisStatus| status.state == ChassisState::Alerting && status.power_w.is_some();
    let before = manager.status_when(&mut guest.shell, "a capping event", capped)?;
    let under = |watts: f64| move |sample: &Sample| sample.watts + SHARED_W <= watts;
    guest.plant.wait(&"under the budget", Instant::now(), PATIENCE, under(BUDGET_W))?;
    let pid = manager.pid(&mut guest.shell)?;
    let reload = format!("systemctl reload {}", manager.unit());

    let began = Instant::now();
    manager
        .configure(&mut guest.shell, &CONFIG.replace("budget_w = 270", &format!("budget_w = {LOWER_W}")))?;
    guest.shell.run(&reload)?;
    let is = |status: &ChassisStatus| status.budget_w.as_f64() == LOWER_W;
    manager.status_when(&mut guest.shell, "the lower budget", is)?;
    notes.put_ms("reload_to_budget", began.elapsed());
    guest.plant.wait(&"under the lower budget", began, PATIENCE, under(LOWER_W))?;
    held(guest, manager, began)?;

    // Refused: nothing changes, and the journal says what is wrong.
    manager.configure(&mut guest.shell, &CONFIG.replace("budget_w = 270", "budget_w = -5"))?;
    let refused = guest.shell.try_run(&reload, PATIENCE)?;
    let log = guest.shell.run(&format!("journalctl -b -o cat -u {}", manager.unit()))?;
    if refused.code == 0 || !log.contains("budget_w = -5") {
        bail!("exit code {} of a reload with budget_w = -5: {}\n{log}", refused.code, refused.text);
    }
    let after = manager.status_when(&mut guest.shell, "the budget as it was", is)?;
    if (after.epoch, manager.pid(&mut guest.shell)?) != (before.epoch, pid) {
        bail!("a reload began epoch {:?} after {:?}", after.epoch, before.epoch);
    }
    Ok(())
}

/// Two managers on one host, each with a supply, a state folder and a socket of its own.
pub(super) fn two_chassis(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    forget(guest)?;
    guest.load(0.3, 0.3);
    let managers = [Manager(Some("left")), Manager(Some("right"))];
    let result = with_supplies(guest, |guest| {
        let done = side_by_side(guest, managers, notes);
        managers.into_iter().try_for_each(|manager| manager.remove(&mut guest.shell))?;
        done
    });
    forget(guest)?;
    result
}

fn start_both(guest: &mut Guest, [left, right]: [Manager; 2]) -> anyhow::Result<()> {
    let (head, rest) = CONFIG.split_once("[[supply]]").context("supplies")?;
    let (first, rest) = rest.split_once("[[supply]]").context("two supplies")?;
    let (second, server) = rest.split_once("[[server]]").context("a server")?;
    for (manager, name, port, supply) in
        [(left, "guest-chassis", 7110, first), (right, "other", 7120, second)]
    {
        let folder = manager.state_dir();
        let own = format!(
            "listen = [\"127.0.0.1:{port}\", \"unix:{}\"]\nstate_dir = {folder:?}\n",
            manager.socket()
        );
        // What the other one manages is in maintenance: the guest has one agent.
        let server = if name == "other" {
            "id = \"away\"\nurl = \"unix:/run/away.sock\"\nidle_w = 90\nmode = \
             \"maintenance\"\n"
        } else {
            server
        };
        let text =
            format!("{own}{head}[[supply]]{supply}[[server]]\n{server}").replace("guest-chassis", name);
        manager.start(&mut guest.shell, &text)?;
    }
    Ok(())
}

fn side_by_side(guest: &mut Guest, [left, right]: [Manager; 2], notes: &mut Notes) -> anyhow::Result<()> {
    start_both(guest, [left, right])?;

    // Half of the draw each: one supply is one chassis's.
    for manager in [left, right] {
        let plant = &guest.plant;
        let half = |status: &ChassisStatus| {
            let truth = plant.now().map_or(0.0, |sample| (sample.watts + SHARED_W) / 2.0);
            status.power_w.is_some_and(|watts| (watts.as_f64() - truth).abs() < NEAR * truth)
        };
        manager.status_when(&mut guest.shell, "its own supply's draw", half)?;
    }

    let shell = &mut guest.shell;
    let set = |manager: Manager| format!("ballast budget set 200 --yes --force unix:{}", manager.socket());
    shell.run(&set(right))?;
    let budget = |manager: Manager, shell: &mut _| anyhow::Ok(manager.status(shell)?.budget_w.as_f64());
    let both = (budget(left, shell)?, budget(right, shell)?);
    if both != (BUDGET_W, 200.0) {
        bail!("after an order to one, the budgets are {both:?}");
    }

    // One dies: it comes back with what it knew, and the other has noticed nothing.
    let (pids, epochs) =
        ((left.pid(shell)?, right.pid(shell)?), (left.status(shell)?.epoch, right.status(shell)?.epoch));
    let dead = Instant::now();
    shell.run(&format!("kill -9 {}", pids.1))?;
    right.status_when(shell, "a manager that came back", |status| status.epoch > epochs.1)?;
    notes.put_ms("killed_to_answer", dead.elapsed());
    if budget(right, shell)? != 200.0 {
        bail!("the operator's budget is forgotten");
    }
    if (left.pid(shell)?, left.status(shell)?.epoch) != (pids.0, epochs.0) {
        bail!("the other manager was started anew");
    }
    let files =
        shell.run(&format!("ls {}/ledger.json {}/ledger.json", left.state_dir(), right.state_dir()))?;
    notes.put("ledgers", files.lines().count() as f64);
    Ok(())
}
