//! Caps whose originals outlive this process, and the machine: written down before the first change, put
//! back from there by this instance or the next.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ballast_hw::durable;
use ballast_types::{Cap, CapError, Watts};
use serde::{Deserialize, Serialize};

use crate::state;

/// Tries to put back at an end; what fails each time is named, and stays written down.
const TRIES: u32 = 3;

/// A cap that knows what was there before.
pub trait Limiter: Send {
    /// Caps at `watts`; the original is safe first.
    fn set(&mut self, watts: Watts) -> Result<(), CapError>;
    /// Puts back what was there; nothing to do where nothing was set.
    fn put_back(&mut self) -> Result<(), CapError>;
    /// Whether the device answers at all.
    fn probe(&mut self) -> Result<(), CapError>;
    /// Why nothing can be set or put back before an operator has decided, if it is so.
    fn problem(&self) -> Option<String>;

    /// As [`Self::put_back`], tried a few times.
    fn put_back_for_good(&mut self) -> Result<(), CapError> {
        let mut done = self.put_back();
        for _ in 1..TRIES {
            if done.is_ok() {
                break;
            }
            done = self.put_back();
        }
        done
    }
}

/// A cap with its original in a file, or kept by the caller.
pub struct Kept<C: Cap> {
    cap: C,
    original: Option<C::State>,
    /// What the device shows while nobody caps it; known from the first look on.
    usual: Option<C::State>,
    /// Where the original is written down, and of which device it is.
    file: Option<(PathBuf, String)>,
    /// What is wrong, if the original in the file is of a device that goes by another name.
    problem: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Record<S> {
    of: String,
    original: S,
}

impl<C: Cap> Kept<C> {
    /// A cap whose original somebody else has written down.
    pub fn with(cap: C, original: C::State) -> Self {
        Self { cap, original: Some(original), usual: None, file: None, problem: None }
    }

    /// A cap whose original is kept in `file`, which a reboot does not make worthless. If a previous instance
    /// left one, it is taken over. One of another name stays as it is, and nothing is set meanwhile: it may
    /// be the same device, and what it shows now our own cap, which must never be taken for the original.
    pub fn open(cap: C, file: &Path, of: &str) -> io::Result<Self> {
        let record: Option<Record<C::State>> = state::read(file)?;
        let mut problem = None;
        let original = match record {
            Some(record) if !is_same(&record.of, of) => {
                let why = format!(
                    "a previous instance capped by {:?}, and the config now says {of:?}: nothing is set or \
                     put back here. Lift it under the old name, or remove {} if that cap is off",
                    record.of,
                    file.display()
                );

                tracing::error!("{why}");
                problem = Some(why);

                None
            }
            record => record.map(|record| record.original),
        };

        let file = Some((file.to_owned(), of.to_owned()));

        Ok(Self { cap, original, usual: None, file, problem })
    }

    /// Whether a cap may be on that must be put back: by this instance, or by a previous one.
    pub fn is_adopted(&self) -> bool {
        self.original.is_some() || self.problem.is_some()
    }

    /// Asks the device: the cap that is in force and was not there before. The first look tells what was
    /// there; a limit that somebody keeps on a device is none of ours.
    pub fn look(&mut self) -> Result<Option<C::State>, CapError> {
        self.usable()?;
        let now = self.cap.read()?;
        let before = self.original.as_ref().or(self.usual.as_ref());
        if before.is_some_and(|before| C::is_on(&now, before)) {
            return Ok(Some(now));
        }
        if self.original.is_none() {
            self.usual = Some(now);
        }
        Ok(None)
    }

    /// Takes the cap that [`Self::look`] has found for one to be put back: this instance or the next lifts
    /// it.
    pub fn adopt(&mut self) -> Result<(), CapError> {
        self.usable()?;
        match &self.usual {
            Some(usual) if self.original.is_none() => self.keep(usual.clone()),
            _ => Ok(()),
        }
    }

    /// What the device showed before, once that is known.
    pub fn usual(&self) -> Option<&C::State> {
        self.usual.as_ref()
    }

    /// Writes down what must be put back.
    fn keep(&mut self, original: C::State) -> Result<(), CapError> {
        if let Some((path, of)) = &self.file {
            let record = Record { of: of.clone(), original: original.clone() };
            // Made only now: at the start the disk may have been full.
            let made = path.parent().map_or(Ok(()), durable::folder);
            made.and_then(|()| state::write(path, &record)).map_err(|error| unwritten(&error))?;
        }
        self.original = Some(original);
        Ok(())
    }

    fn usable(&self) -> Result<(), CapError> {
        let refused = |why: &String| CapError { reason: why.clone(), transient: false };
        self.problem.as_ref().map_or(Ok(()), |why| Err(refused(why)))
    }
}

/// Whether two names are of one device. A BMC's may be spelled in several ways (RFC 3986, 6.2): host in
/// capitals, its scheme's own port, a slash at the end.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |name: &str| {
        let Some(url) = name.strip_prefix("redfish ") else { return name.to_owned() };
        let url = url.trim_end_matches('/').to_ascii_lowercase();
        let port = if url.starts_with("https:") { ":443" } else { ":80" };
        url.strip_suffix(port).unwrap_or(&url).to_owned()
    };
    plain(one) == plain(other)
}

impl<C: Cap> Limiter for Kept<C> {
    fn set(&mut self, watts: Watts) -> Result<(), CapError> {
        self.usable()?;
        if self.original.is_none() {
            let original = self.cap.read()?;
            self.keep(original)?;
        }
        let Some(original) = &self.original else { return Ok(()) };
        self.cap.set(watts, original)
    }

    fn put_back(&mut self) -> Result<(), CapError> {
        self.usable()?;
        let Some(original) = &self.original else { return Ok(()) };
        self.cap.put_back(original)?;
        if let Some((path, _)) = &self.file {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(unwritten(&error)),
                _ => {}
            }
            self.usual = self.usual.take().or(self.original.take());
        }
        Ok(())
    }

    fn probe(&mut self) -> Result<(), CapError> {
        self.cap.read().map(|_| ())
    }

    fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}

/// Of which device a previous instance has left the original in `file`, if it has.
pub fn left(file: &Path) -> io::Result<Option<String>> {
    Ok(state::read::<Record<serde::de::IgnoredAny>>(file)?.map(|record| record.of))
}

/// Without its original on disk nothing is capped.
fn unwritten(error: &io::Error) -> CapError {
    CapError { reason: format!("the original is not written down: {error}"), transient: true }
}

/// A device in memory, for tests of what keeps caps.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::lock;

    /// A device with a limit in watts, which refuses so many changes. It raises no lower limit.
    #[derive(Clone, Default)]
    pub struct Device(Arc<Mutex<(i64, u32)>>);

    impl Device {
        pub fn change(&self, watts: i64) -> Result<(), CapError> {
            let mut device = lock(&self.0);
            if device.1 > 0 {
                device.1 -= 1;
                return Err(CapError { reason: "busy".into(), transient: true });
            }
            device.0 = watts;
            Ok(())
        }
        pub fn limit(&self) -> i64 {
            lock(&self.0).0
        }
        pub fn refuse(&self, times: u32) {
            lock(&self.0).1 = times;
        }
    }

    impl Cap for Device {
        type State = i64;
        fn read(&mut self) -> Result<i64, CapError> {
            Ok(self.limit())
        }
        fn set(&mut self, watts: Watts, original: &i64) -> Result<(), CapError> {
            self.change((watts.milli() / 1000).min(*original))
        }
        fn put_back(&mut self, original: &i64) -> Result<(), CapError> {
            self.change(*original)
        }
        fn is_on(now: &i64, original: &i64) -> bool {
            now < original
        }
    }

    pub fn device() -> Device {
        Device(Arc::new(Mutex::new((300, 0))))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::device;
    use super::*;

    const CAP: Watts = Watts::from_whole(180);

    #[test]
    fn the_original_is_on_disk_from_before_the_first_change_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cap.json");
        let device = device();
        let open = || Kept::open(device.clone(), &file, "dcmi").unwrap();
        let mut first = open();
        assert!(!first.is_adopted() && first.look().unwrap().is_none());
        first.put_back().unwrap();
        device.refuse(1);
        assert!(first.set(CAP).is_err());
        assert!(file.exists() && device.limit() == 300);
        first.set(CAP).unwrap();
        first.set(Watts::from_whole(150)).unwrap();
        drop(first);

        // The machine was rebooted, its BMC was not.
        let mut second = open();
        assert!(second.is_adopted() && second.look().unwrap().is_some());
        second.set(Watts::from_whole(170)).unwrap();
        device.refuse(TRIES);
        assert_eq!(second.put_back_for_good().unwrap_err().reason, "busy");
        assert!(file.exists());
        device.refuse(TRIES - 1);
        second.put_back_for_good().unwrap();
        assert!(!file.exists() && device.limit() == 300);
        assert!(!open().is_adopted());
    }

    #[test]
    fn nothing_is_capped_whose_original_cannot_be_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let device = device();
        let mut cap = Kept::open(device.clone(), &folder.path().join("gone/caps/cap.json"), "dcmi").unwrap();
        assert!(cap.set(CAP).unwrap_err().reason.contains("not written down"));
        assert_eq!(device.limit(), 300);
    }

    #[test]
    fn a_cap_of_somebody_else_is_found_and_once_adopted_put_back_to_what_was_usual() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cap.json");
        let device = device();
        let open = || Kept::open(device.clone(), &file, "dcmi").unwrap();

        // What stands there from before is not ours, and may be raised.
        let mut cap = open();
        for usual in [300, 300, 400] {
            device.change(usual).unwrap();
            assert_eq!((cap.look().unwrap(), cap.usual()), (None, Some(&usual)));
        }

        assert!(!cap.is_adopted() && !file.exists());

        device.change(180).unwrap();
        assert_eq!((cap.look().unwrap(), cap.look().unwrap()), (Some(180), Some(180)));
        assert!(!file.exists(), "to look changes nothing");
        cap.adopt().unwrap();
        assert!(cap.is_adopted() && file.exists() && device.limit() == 180);

        // The next instance knows it too.
        let mut next = open();
        assert!(next.is_adopted());
        assert_eq!(next.look().unwrap(), Some(180));
        next.put_back().unwrap();
        assert!(device.limit() == 400 && !file.exists() && !next.is_adopted());
        device.change(150).unwrap();
        assert_eq!(next.look().unwrap(), Some(150), "what was put back is the usual again");
    }

    #[test]
    fn an_original_under_another_name_is_kept_and_nothing_is_set_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cap.json");
        let device = device();
        let open = |of: &str| Kept::open(device.clone(), &file, of).unwrap();
        open("redfish https://bmc1").set(CAP).unwrap();
        let kept = fs::read(&file).unwrap();

        // The same BMC by its address: what it shows now is our own cap.
        for of in ["redfish https://10.0.0.9", "redfish http://bmc1", "slot bmc1"] {
            let mut other = open(of);
            assert!(other.is_adopted(), "a cap may be on");
            for done in [other.set(CAP), other.put_back_for_good(), other.look().map(drop)] {
                let why = done.unwrap_err().reason;
                assert!(why.contains("\"redfish https://bmc1\"") && why.contains(of), "{why}");
            }

            assert!(other.problem().unwrap().contains(of));
            assert_eq!((device.limit(), &fs::read(&file).unwrap()), (180, &kept));
        }

        let mut same = open("redfish https://BMC1:443/");
        assert!(same.look().unwrap().is_some() && same.problem().is_none());
        same.put_back().unwrap();
        assert!(device.limit() == 300 && !file.exists());
    }
}
