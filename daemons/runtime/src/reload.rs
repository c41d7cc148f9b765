//! The configuration read anew while the daemon runs: on SIGHUP, which `systemctl reload` sends.
//!
//! The file is checked as at a start. One that is refused changes nothing, and is an alarm until a better one is
//! read. What needs a restart stays as it is, and is named.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ballast_types::wire::{AlarmId, Event, EventKind};
use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use toml::{Table, Value};

use crate::alarms::AlarmBook;
use crate::config::{ConfigFile, Loaded};
use crate::events::Events;
use crate::systemd::notify;
use crate::tls::Tls;
use crate::{clock, log, threads};

/// What of a running daemon follows its configuration.
pub trait Reload: Send + 'static {
    type Config: ConfigFile + Clone + Send;
    /// The keys and tables at the top of the file that are followed. All others need a restart.
    const FOLLOWED: &'static [&'static str];

    /// A SIGHUP has come; the file is not read yet.
    fn begins(&mut self) {}

    /// Goes by `new` instead of `old` in all that is followed. Gives the configuration that is in force from now
    /// on, and what else needs a restart, by name. Fails with the reason; then nothing has changed.
    fn reload(
        &mut self,
        old: &Self::Config,
        new: Self::Config,
    ) -> anyhow::Result<(Self::Config, Vec<String>)>;
}

/// Reads the configuration anew on every SIGHUP.
pub struct Reloader<R: Reload> {
    pub in_force: Loaded<R::Config>,
    pub follows: R,
    pub events: Events,
    /// Receives the reason of a rejected reload.
    pub alarms: AlarmBook,
    /// Certificates to reload, too.
    pub tls: Option<Arc<Tls>>,
}

impl<R: Reload> Reloader<R> {
    /// Handles SIGHUP on the current runtime, and watches the files of certificates. A SIGHUP that arrived since
    /// [`hold_hangups`] is handled, too.
    pub fn start(mut self) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            tls.watch(self.events.clone())?;
        }
        let mut hangups = signal(SignalKind::hangup())?;
        hangup().thread_unblock()?;
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                notify(NotifyState::Reloading);
                self.follows.begins();

                // Disks, BMCs and buses may take their time, and alerts leave from this thread.
                let turn = tokio::task::spawn_blocking(move || {
                    if catch_unwind(AssertUnwindSafe(|| self.turn())).is_err() {
                        threads::note(
                            "reload",
                            &"it has panicked: some of the configuration may be in force",
                        );
                    }
                    self
                });
                let Ok(turned) = turn.await else { return };
                self = turned;
                notify(NotifyState::Ready);
            }
        });
        Ok(())
    }

    fn turn(&mut self) {
        // It tells itself what it finds; what is wrong with certificates is no reason against the rest.
        let _ = self.tls.as_ref().and_then(|tls| tls.look());
        let read = Loaded::load(&self.in_force.file).map_err(anyhow::Error::new);
        let (changed, needs_restart, refused) = match read.and_then(|new| self.follow(new)) {
            Ok((changed, needs_restart)) => (changed, needs_restart, None),
            Err(why) => (vec![], vec![], Some(format!("{why:#}"))),
        };

        let file = self.in_force.file.display();
        self.alarms.hold(
            AlarmId::ReloadRefused,
            refused
                .as_ref()
                .map(|why| format!("{file} was read anew and is refused, what was in force stays: {why}")),
        );
        if refused.is_none() {
            let names = needs_restart.join(", ");
            let waits = format!("{file} was read anew; only a restart changes {names}");
            self.alarms.hold(AlarmId::RestartNeeded, (!names.is_empty()).then_some(waits));
        }

        let kind = EventKind::Reload { changed, needs_restart, refused };
        self.events.push(Event { at_ns: clock::now(), kind });
    }

    /// Gives the keys that have changed, and what needs a restart. What waits for a restart is told each time.
    fn follow(&mut self, new: Loaded<R::Config>) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let changed = changed(&self.in_force.text, &new.text);
        let level = new.config.log_level();
        let (config, mut needs_restart) = self.follows.reload(&self.in_force.config, new.config)?;
        log::set_level(level);

        let (followed, left): (Vec<_>, Vec<_>) = changed.into_iter().partition(|key| follows::<R>(key));
        let is_named = |key: &String| needs_restart.iter().any(|name| key.starts_with(name.as_str()));
        let left: Vec<_> = left.into_iter().filter(|key| !is_named(key)).collect();
        needs_restart.extend(left);
        self.in_force.config = config;
        // The text in force keeps what it says of the rest, so that this is told again.
        self.in_force.text = merged::<R>(&self.in_force.text, &new.text);
        Ok((followed, needs_restart))
    }
}

fn hangup() -> SigSet {
    Signal::SIGHUP.into()
}

/// Keeps every SIGHUP until the daemon can obey: without this one would end a daemon that starts. Call this before
/// there are threads.
pub fn hold_hangups() -> io::Result<()> {
    Ok(hangup().thread_block()?)
}

fn follows<R: Reload>(key: &str) -> bool {
    let top = key.split('.').next().unwrap_or_default();
    top == "log_level" || R::FOLLOWED.contains(&top)
}

/// The new text in what is followed, the old one in the rest.
fn merged<R: Reload>(old: &str, new: &str) -> String {
    let (mut old, mut new) = (table(old), table(new));
    old.retain(|key, _| !follows::<R>(key));
    new.retain(|key, _| follows::<R>(key));
    old.extend(new);
    old.to_string()
}

/// The keys that two files say differently, or one of them alone: `budget_w`, `alert.lift_percent`, `server`.
fn changed(old: &str, new: &str) -> Vec<String> {
    let mut changed = vec![];
    differ(&table(old), &table(new), "", &mut changed);
    changed
}

/// Both texts were read before.
fn table(text: &str) -> Table {
    text.parse().unwrap_or_default()
}

fn differ(old: &Table, new: &Table, prefix: &str, changed: &mut Vec<String>) {
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for key in keys {
        match (old.get(key), new.get(key)) {
            (before, after) if before == after => {}
            (Some(Value::Table(before)), Some(Value::Table(after))) => {
                differ(before, after, &format!("{prefix}{key}."), changed);
            }
            _ => changed.push(format!("{prefix}{key}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_named_by_its_key() {
        let old = "a = 1\nb.x = 1\nb.y = 2\n[[server]]\nid = \"s\"\n[gone]\nz = 1\n";
        assert!(changed(old, &format!("# the same\n{old}")).is_empty());
        let new = "a = 1\nb.x = 1\nb.y = 3\nnew = true\n[[server]]\nid = \"t\"\n";
        assert_eq!(changed(old, new), ["b.y", "gone", "new", "server"]);
    }
}
