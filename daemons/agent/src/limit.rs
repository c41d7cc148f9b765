//! The server's own limit: RAPL, a hwmon `power1_cap`, or its BMC's by DCMI. It is set on a thread of its
//! own, because a BMC takes its time.
//!
//! What a reboot clears (RAPL) is in the journal; what it does not is in `server-limit.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ballast_agent_core::{ActuatorError, Input};
use ballast_bmc::dcmi::{Dcmi, DcmiCap};
use ballast_hw::rapl::RaplCapOriginal;
use ballast_hw::{CapSpec, HwmonCap, MatchSpec, RaplCap, Root};
use ballast_types::{ActionId, Cap, CapError, Watts};

use super::message::Message;
use crate::config::LimitBy;
use ballast_runtime::caps::{Kept, Limiter};
use ballast_runtime::threads::supervise_and_return;

/// Its original, in the state folder.
pub(super) const FILE: &str = "server-limit.json";
/// One request to the server's own BMC. It is given up before the controller takes it for failed.
const BMC_WITHIN: Duration = Duration::from_millis(800);

/// RAPL's original, by zone.
pub(super) type RaplOriginals = BTreeMap<String, RaplCapOriginal>;

/// The server's limit as it was found.
pub(super) struct ServerLimit {
    limiter: Box<dyn Limiter>,
    /// Whether it limits the packages alone, and not the whole server.
    packages_only: bool,
    /// Whether a previous instance left it on.
    pub(super) is_on: bool,
    /// What the journal must hold.
    pub(super) originals: RaplOriginals,
}

/// Finds the server's limit; `None` if it has none, or if a previous instance has left another one on.
/// `saved` is what the journal holds. Changes nothing.
pub(super) fn find(
    by: &LimitBy,
    floor: Watts,
    root: &Root,
    state_dir: &Path,
    saved: &RaplOriginals,
) -> anyhow::Result<Option<ServerLimit>> {
    let left = ballast_runtime::caps::left(&state_dir.join(FILE))?.and_then(|of| of.parse().ok());
    if let Some(was) = left.filter(|was: &LimitBy| was != by) {
        tracing::error!(
            %was,
            %by,
            "no server limit is set while one that a previous instance set in another way stays on"
        );
        return Ok(None);
    }

    if *by == LimitBy::Rapl {
        let Some(mut cap) = RaplCap::find(root, floor)? else { return Ok(None) };
        let now = cap.read()?;

        // A zone that is not there any more is not this limit's to put back, nor to forget.
        let mut originals = now.clone();

        for (zone, original) in &mut originals {
            *original = saved.get(zone).copied().unwrap_or(*original);
        }
        let is_on = RaplCap::is_on(&now, &originals);
        let limiter = Box::new(Kept::with(cap, originals.clone()));
        return Ok(Some(ServerLimit { limiter, packages_only: true, is_on, originals }));
    }

    let (mut limiter, is_on) = kept(by, root, state_dir)?;

    if let Err(error) = limiter.probe() {
        tracing::warn!(%by, %error, "the server's own limit cannot be read");
        if !error.transient && !is_on {
            return Ok(None);
        }
    }

    Ok(Some(ServerLimit { limiter, packages_only: false, is_on, originals: RaplOriginals::new() }))
}

/// What a previous instance has left in `state_dir`, whatever the config says now.
pub(super) fn left(root: &Root, state_dir: &Path) -> anyhow::Result<Option<(LimitBy, Box<dyn Limiter>)>> {
    let Some(by) = ballast_runtime::caps::left(&state_dir.join(FILE))?.and_then(|of| of.parse().ok()) else {
        return Ok(None);
    };
    let limiter = kept(&by, root, state_dir)?.0;
    Ok(Some((by, limiter)))
}

/// Adds the zones that are `in_use` to the `journal`'s; gives those that are left to the end, since this
/// instance does not set them.
pub(super) fn left_to_the_end(journal: &mut RaplOriginals, in_use: &RaplOriginals) -> RaplOriginals {
    let left = journal.iter().filter(|(zone, _)| !in_use.contains_key(*zone)).map(|(z, o)| (z.clone(), *o));
    let left = left.collect();
    journal.extend(in_use.iter().map(|(zone, original)| (zone.clone(), *original)));
    left
}

/// Puts back RAPL's limits of a previous instance. Fails if one cannot be put back, or its zone is not there;
/// then all others were tried.
pub(super) fn put_back_rapl(root: &Root, saved: &RaplOriginals) -> Result<(), CapError> {
    let failed = RaplCap::put_back_left(root, saved);
    if failed.is_empty() {
        return Ok(());
    }
    Err(CapError { reason: failed.join("; "), transient: false })
}

/// Puts back what a previous instance has left with another `by`, or with any if there is none now; if that
/// fails, it is named.
pub(super) fn put_back_of_another(by: Option<&LimitBy>, root: &Root, state_dir: &Path) -> anyhow::Result<()> {
    if let Some((was, mut limiter)) = left(root, state_dir)?.filter(|(was, _)| Some(was) != by) {
        match limiter.put_back_for_good() {
            Ok(()) => tracing::info!(%was, "the server limit that a previous instance set was put back"),
            Err(error) => tracing::error!(
                %was,
                %error,
                "the server limit that a previous instance set could not be put back and stays on"
            ),
        }
    }
    Ok(())
}

fn kept(by: &LimitBy, root: &Root, state_dir: &Path) -> std::io::Result<(Box<dyn Limiter>, bool)> {
    fn open<C: Cap + 'static>(cap: C, file: &Path, of: &str) -> std::io::Result<(Box<dyn Limiter>, bool)> {
        let kept = Kept::open(cap, file, of)?;
        let is_on = kept.is_adopted();
        Ok((Box::new(kept), is_on))
    }

    let (file, of) = (state_dir.join(FILE), by.to_string());
    match by {
        LimitBy::PowerCap { name, label } => {
            let spec = MatchSpec { name: name.clone(), label: label.clone() };
            open(HwmonCap::new(root, CapSpec::Device(spec)), &file, &of)
        }
        LimitBy::Dcmi | LimitBy::Rapl => {
            open(DcmiCap::new(Dcmi::open(&root.path(""), BMC_WITHIN)), &file, &of)
        }
    }
}

impl fmt::Display for LimitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rapl => f.write_str("rapl"),
            Self::Dcmi => f.write_str("dcmi"),
            Self::PowerCap { name, label: None } => write!(f, "power1-cap {name}"),
            Self::PowerCap { name, label: Some(label) } => write!(f, "power1-cap {name} {label}"),
        }
    }
}

impl FromStr for LimitBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // A hwmon name has no space in it (Documentation/hwmon/sysfs-interface.rst).
        let mut words = text.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("dcmi"), None, None) => Ok(Self::Dcmi),
            (Some("power1-cap"), Some(name), label) => {
                Ok(Self::PowerCap { name: name.into(), label: label.map(str::to_owned) })
            }
            _ => Err(()),
        }
    }
}

/// The thread that sets the limit.
pub(super) struct Worker {
    /// Whether it limits the packages alone, and not the whole server.
    pub(super) packages_only: bool,
    orders: Sender<(ActionId, Option<Watts>)>,
    thread: JoinHandle<Box<dyn Limiter>>,
}

impl Worker {
    /// Starts it; it ends when dropped, or stopped, or when the control thread has ended.
    pub(super) fn start(limit: ServerLimit, messages: Sender<Message>) -> std::io::Result<Self> {
        let ServerLimit { limiter, packages_only, .. } = limit;
        let (orders, inbox) = mpsc::channel::<(ActionId, Option<Watts>)>();
        let thread = supervise_and_return("limit", limiter, move |limiter| {
            while let Ok(order) = inbox.recv() {
                // Only the newest is still wanted; nobody waits for the answer to another.
                let (id, watts) = inbox.try_iter().last().unwrap_or(order);
                let done = match watts {
                    Some(watts) => limiter.set(watts),
                    None => limiter.put_back(),
                };

                let result = done.map_err(|error| refused(&error));

                if messages.send(Message::Input(Input::Applied { id, result })).is_err() {
                    break;
                }
            }
        })?;

        Ok(Self { packages_only, orders, thread })
    }

    /// Orders a limit, or its end. Answered by [`Input::Applied`].
    pub(super) fn order(&self, id: ActionId, watts: Option<Watts>) -> Result<(), ActuatorError> {
        self.orders.send((id, watts)).map_err(|_| ActuatorError::Permanent)
    }

    /// Ends it and puts back what was there. Fails if that fails each time it is tried.
    pub(super) fn put_back(self) -> anyhow::Result<()> {
        drop(self.orders);
        let mut limiter =
            self.thread.join().map_err(|_| anyhow::anyhow!("the limit's thread has panicked"))?;
        Ok(limiter.put_back_for_good()?)
    }
}

fn refused(error: &CapError) -> ActuatorError {
    tracing::warn!(%error, "actuator");
    if error.transient { ActuatorError::Transient } else { ActuatorError::Permanent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn what_is_written_down_tells_which_device_it_was() {
        let power_cap = |label: Option<&str>| LimitBy::PowerCap {
            name: "power_meter".into(),
            label: label.map(str::to_owned),
        };
        for by in [LimitBy::Dcmi, power_cap(None), power_cap(Some("input power 1"))] {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        for bad in ["", "rapl", "power1-cap", "redfish https://bmc", "dcmi 1"] {
            assert_eq!(bad.parse::<LimitBy>(), Err(()), "{bad}");
        }
    }

    /// A machine with an ACPI power meter that caps, and the meter's folder.
    fn power_meter() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("sys/class/hwmon/hwmon0/device");
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in [("name", "power_meter"), ("power1_average", "1"), ("power1_cap", "500000000")] {
            std::fs::write(dir.join(file), text).unwrap();
        }
        (folder, dir)
    }

    #[test]
    fn a_cap_that_outlived_its_agent_is_found_whatever_the_config_says() {
        let (folder, dir) = power_meter();
        let cap = || std::fs::read_to_string(dir.join("power1_cap")).unwrap();
        let (root, state) = (Root::at(folder.path()), folder.path());
        let by = LimitBy::PowerCap { name: "power_meter".into(), label: None };
        let floor = Watts::from_whole(150);
        let find = || find(&by, floor, &root, state, &RaplOriginals::new()).unwrap().unwrap();
        assert!(left(&root, state).unwrap().is_none());
        let mut found = find();
        assert!(!found.is_on && found.originals.is_empty());
        found.limiter.set(Watts::from_whole(180)).unwrap();
        assert_eq!(cap(), "180000000\n");
        drop(found);
        assert!(find().is_on);
        let (was, mut limiter) = left(&root, state).unwrap().unwrap();
        assert_eq!(was, by);
        limiter.put_back_for_good().unwrap();
        assert_eq!(cap(), "500000000\n");
        assert!(left(&root, state).unwrap().is_none() && !find().is_on);
    }

    #[test]
    fn none_is_set_by_another_while_one_of_an_earlier_life_stays_on() {
        let (folder, dir) = power_meter();
        let (root, state) = (Root::at(folder.path()), folder.path());
        let dcmi = r#"{"of":"dcmi","original":{"active":false,"action":0,"limit_w":0,"correction_ms":0,
            "sampling_s":0}}"#;
        std::fs::write(state.join(FILE), dcmi).unwrap();
        let by = LimitBy::PowerCap { name: "power_meter".into(), label: None };
        let find = || find(&by, Watts::from_whole(150), &root, state, &RaplOriginals::new()).unwrap();

        // Its BMC does not answer.
        put_back_of_another(Some(&by), &root, state).unwrap();
        assert!(find().is_none());
        assert_eq!(std::fs::read_to_string(state.join(FILE)).unwrap(), dcmi);
        std::fs::remove_file(state.join(FILE)).unwrap();
        find().unwrap().limiter.set(Watts::from_whole(180)).unwrap();
        let cap = || std::fs::read_to_string(dir.join("power1_cap")).unwrap();
        put_back_of_another(Some(&by), &root, state).unwrap();
        assert_eq!(cap(), "180000000\n");

        // The same, with no limit wanted any more.
        put_back_of_another(None, &root, state).unwrap();
        assert_eq!((cap().as_str(), state.join(FILE).exists()), ("500000000\n", false));
    }

    #[test]
    fn rapl_of_an_earlier_life_is_put_back_whatever_is_in_use_now() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let dir = folder.path().join("sys/class/powercap/intel-rapl:0");
        let limit = dir.join("constraint_0_power_limit_uw");
        let was = RaplCapOriginal { limit_uw: 165_000_000, window_us: None, short_uw: None, enabled: true };
        let saved = RaplOriginals::from([("package-0".to_owned(), was)]);
        put_back_rapl(&root, &RaplOriginals::new()).unwrap();
        assert!(put_back_rapl(&root, &saved).is_err(), "no zone");
        std::fs::create_dir_all(&dir).unwrap();

        for (file, text) in [("name", "package-0"), ("enabled", "1"), ("constraint_0_name", "long_term")] {
            std::fs::write(dir.join(file), text).unwrap();
        }
        std::fs::write(&limit, "50000000").unwrap();
        put_back_rapl(&root, &saved).unwrap();
        assert_eq!(std::fs::read_to_string(&limit).unwrap().trim(), "165000000");

        // One that cannot be read, or does not tell its name, keeps no other from being put back.
        for broken in ["enabled", "constraint_0_power_limit_uw", "name"] {
            let other = folder.path().join("sys/class/powercap/intel-rapl:1");
            std::fs::create_dir_all(&other).unwrap();
            for (file, text) in [("name", "package-1"), ("enabled", "1"), ("constraint_0_name", "long_term")]
            {
                std::fs::write(other.join(file), text).unwrap();
            }
            std::fs::write(other.join("constraint_0_power_limit_uw"), "50000000").unwrap();
            std::fs::remove_file(other.join(broken)).unwrap();
            std::fs::create_dir(other.join(broken)).unwrap();
            std::fs::write(&limit, "50000000").unwrap();
            let two = RaplOriginals::from([("package-0".to_owned(), was), ("package-1".to_owned(), was)]);
            let error = put_back_rapl(&root, &two).unwrap_err();
            assert!(error.reason.contains("package-1") && error.reason.contains(broken), "{error}");
            assert!(!error.reason.contains("package-0"), "{error}");
            assert_eq!(std::fs::read_to_string(&limit).unwrap().trim(), "165000000", "{broken}");
            std::fs::remove_dir_all(&other).unwrap();
        }

        let two = RaplOriginals::from([("package-0".to_owned(), was), ("package-1".to_owned(), was)]);
        let error = put_back_rapl(&root, &two).unwrap_err();
        assert!(error.reason.contains("package-1"), "{error}");

        // In use, with one zone gone: that one is neither forgotten nor passed over in silence.
        std::fs::write(dir.join("constraint_0_max_power_uw"), "400000000").unwrap();
        std::fs::write(&limit, "50000000").unwrap();
        let floor = Watts::from_whole(150);
        let found = find(&LimitBy::Rapl, floor, &root, folder.path(), &two).unwrap().unwrap();
        assert_eq!((found.is_on, &found.originals), (true, &saved));
        let mut journal = two.clone();
        let left = left_to_the_end(&mut journal, &found.originals);
        assert_eq!(journal, two);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["package-1"]);
        assert!(put_back_rapl(&root, &left).unwrap_err().reason.contains("package-1"));
    }

    #[test]
    fn a_device_that_is_not_there_is_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for by in [LimitBy::Dcmi, LimitBy::Rapl, LimitBy::PowerCap { name: "x".into(), label: None }] {
            let found = find(&by, Watts::from_whole(150), &root, folder.path(), &RaplOriginals::new());
            assert!(found.unwrap().is_none(), "{by}");
        }
    }
}
