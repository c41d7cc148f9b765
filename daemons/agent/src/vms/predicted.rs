//! What placement predicts of VMs: that a VM may be slowed is a permission, and ends unless it is renewed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ballast_agent_core::ControlledVm;
use ballast_runtime::{clock, state};
use ballast_types::wire::{HeldPredictions, Predictions, VmPrediction};
use ballast_types::{BootId, Instant, VmId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Vms;

/// What is predicted, beside the journal: a reboot voids both.
pub(super) const FILE: &str = "predictions.json";
/// Nothing that is on disk can have been meant to hold for longer.
const VALID_MAX: Duration = Duration::from_secs(3600);

/// Why predictions were refused.
#[derive(Debug, Error)]
pub(crate) enum TellError {
    #[error("seq = {seq}: above {newest}, the newest that this agent has")]
    Old { seq: u64, newest: u64 },
    #[error("the agent stops")]
    Stopping,
}

/// The newest predictions, also over a restart of the agent.
#[derive(Default)]
pub(super) struct Predicted {
    path: PathBuf,
    /// Without one nothing is kept: nobody could say how old it is.
    boot_id: Option<BootId>,
    held: Option<Held>,
    /// Until when what is on disk holds.
    kept_until: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    boot_id: Option<BootId>,
    seq: u64,
    /// By the clock of this boot.
    until: Instant,
    vms: BTreeMap<VmId, VmPrediction>,
}

impl Predicted {
    /// What a previous instance has kept, and still holds. What cannot be read is told anew soon.
    pub(super) fn read(path: PathBuf, boot_id: Option<BootId>, now: Instant) -> Self {
        let kept = state::read::<Held>(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "what is predicted of VMs cannot be read: they count as user-facing");
            None
        });
        let holds = |held: &Held| {
            let is_of_boot = boot_id.is_some() && held.boot_id == boot_id;
            is_of_boot && held.until > now && held.until - now <= VALID_MAX
        };
        let held = kept.filter(holds);
        let kept_until = held.as_ref().map_or(Instant::ZERO, |held| held.until);
        Self { path, boot_id, held, kept_until }
    }

    pub(super) fn vms(&self) -> &BTreeMap<VmId, VmPrediction> {
        const NONE: &BTreeMap<VmId, VmPrediction> = &BTreeMap::new();
        self.held.as_ref().map_or(NONE, |held| &held.vms)
    }

    /// Takes what was told in the place of all before it: whether that is another than before.
    fn take(&mut self, now: Instant, told: Predictions) -> Result<bool, TellError> {
        self.expire(now);
        let Predictions { seq, valid_for_ms, vms } = told;
        if let Some(newest) = self.held.as_ref().map(|held| held.seq).filter(|newest| seq <= *newest) {
            return Err(TellError::Old { seq, newest });
        }
        let is_new = vms != *self.vms();
        let until = now + Duration::from_millis(valid_for_ms);
        if is_new {
            self.kept_until = Instant::ZERO;
        }
        self.held = Some(Held { boot_id: self.boot_id.clone(), seq, until, vms });
        Ok(is_new)
    }

    /// Writes down what is held: what is new, and what has half used up its time there.
    fn keep(&mut self, now: Instant) -> io::Result<()> {
        let Some(held) = self.held.as_ref().filter(|_| self.boot_id.is_some()) else { return Ok(()) };
        if self.kept_until > now && (self.kept_until - now) * 2 >= held.until - now {
            return Ok(());
        }
        state::write(&self.path, held)?;
        self.kept_until = held.until;
        Ok(())
    }

    /// Ends what was not renewed: whether there was anything.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let ended = self.held.take_if(|held| held.until <= now).is_some_and(|held| !held.vms.is_empty());
        if ended {
            tracing::warn!("what is predicted of VMs was not renewed: they count as user-facing");
        }
        ended
    }

    /// What status says, where so many of the VMs are there.
    fn status(&self, is_there: impl Fn(&VmId) -> bool) -> Option<HeldPredictions> {
        let Held { seq, until, vms, .. } = self.held.as_ref()?;
        let absent = vms.keys().filter(|vm| !is_there(vm)).count() as u64;
        Some(HeldPredictions { seq: *seq, vms: vms.len() as u64, absent, until_ms: until.as_millis() })
    }
}

impl Vms {
    /// Takes what is predicted; gives the new set if it is another than before, and whether that is written
    /// down. A class that somebody has told wins, and so does a VM's own use.
    pub(crate) fn tell(
        &mut self,
        told: Predictions,
    ) -> Result<(Option<Vec<ControlledVm>>, io::Result<()>), TellError> {
        if self.journal.is_none() {
            return Err(TellError::Stopping);
        }
        let now = clock::now();
        let asked = self.specs.groups();
        self.specs.predicted.take(now, told)?;
        let written = self.specs.predicted.keep(now);
        // Most of what is told changes nothing here, and then nobody's cores are looked at.
        if self.specs.groups() == asked {
            self.note();
            return Ok((None, written));
        }
        let before = self.set.clone();
        let set = self.move_all();
        Ok(((set != before).then_some(set), written))
    }

    pub(super) fn note_predictions(&self) {
        let predicted = &self.specs.predicted;
        let held = predicted.status(|vm| self.specs.all().contains_key(vm));
        self.notes.predict(predicted.vms().clone(), held);
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::VmClass;

    use super::*;

    const PREDICTION: VmPrediction =
        VmPrediction { class: VmClass::NonUserFacing, p95_percent: 40, throttle_order: 2 };

    fn told(seq: u64, seconds: u64, vms: &[&str]) -> Predictions {
        let vms = vms.iter().map(|vm| (VmId::new(vm).unwrap(), PREDICTION)).collect();
        Predictions { seq, valid_for_ms: seconds * 1000, vms }
    }
    fn at(s: u64) -> Instant {
        Instant::from_millis(s * 1000)
    }
    fn boot(name: &str) -> Option<BootId> {
        BootId::new(name).ok()
    }
    fn names(predicted: &Predicted) -> String {
        predicted.vms().keys().map(VmId::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_message_takes_the_place_of_all_before_it_and_ends_unless_it_is_renewed() {
        let mut predicted = Predicted::default();
        // When, the message, whether the VMs are others (or the message is old), and which VMs there are then.
        for (when, message, is_new, vms) in [
            (10, told(5, 60, &["a", "b"]), Some(true), "a b"),
            (20, told(6, 60, &["a", "b"]), Some(false), "a b"),
            (21, told(6, 60, &["c"]), None, "a b"),
            (21, told(5, 60, &["c"]), None, "a b"),
            (30, told(7, 60, &["b"]), Some(true), "b"),
            (40, told(9, 60, &[]), Some(true), ""),
            (50, told(10, 60, &["a"]), Some(true), "a"),
            // The sender's clock was set back: it is heard once nothing newer holds.
            (109, told(3, 60, &["d"]), None, "a"),
            (110, told(3, 60, &["d"]), Some(true), "d"),
        ] {
            let seq = message.seq;
            assert_eq!(predicted.take(at(when), message).ok(), is_new, "{when} s: {seq}");
            assert_eq!(names(&predicted), vms, "{when} s: {seq}");
        }

        assert!(!predicted.expire(at(169)), "a renewal would still be in time");
        assert!(predicted.expire(at(170)));
        assert!(!predicted.expire(at(171)) && predicted.vms().is_empty());
    }

    #[test]
    fn what_is_held_outlives_the_agent_but_not_its_time_nor_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let again = |boot_id: &str, now: u64| names(&Predicted::read(path.clone(), boot(boot_id), at(now)));
        let mut predicted = Predicted::read(path.clone(), boot("b1"), at(0));
        let mut tell = |now: u64, message: Predictions| {
            predicted.take(at(now), message).unwrap();
            predicted.keep(at(now)).unwrap();
        };

        tell(0, told(1, 60, &["a"]));
        for (boot_id, now, vms) in [("b1", 59, "a"), ("b1", 60, ""), ("b2", 10, "")] {
            assert_eq!(again(boot_id, now), vms, "{boot_id} {now}");
        }
        // A renewal is not worth a write; one after half the time is.
        tell(29, told(2, 60, &["a"]));
        assert_eq!((again("b1", 59), again("b1", 60)), ("a".into(), String::new()));
        tell(31, told(3, 60, &["a"]));
        assert_eq!((again("b1", 90), again("b1", 91)), ("a".into(), String::new()));
        // What is taken back does not come back.
        tell(32, told(4, 60, &[]));
        assert_eq!(again("b1", 33), "");

        std::fs::write(&path, "{").unwrap();
        assert_eq!(again("b1", 33), "", "a damaged file");
        let long = |until_ms: u64| {
            let held = Held {
                boot_id: boot("b1"),
                seq: 1,
                until: Instant::from_millis(until_ms),
                vms: told(1, 1, &["a"]).vms,
            };
            state::write(&path, &held).unwrap();
            again("b1", 0)
        };
        assert_eq!((long(3_600_000), long(3_600_001)), ("a".into(), String::new()));
    }

    #[test]
    fn without_a_boot_nothing_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let mut predicted = Predicted::read(path.clone(), None, at(0));
        predicted.take(at(0), told(1, 60, &["a"])).unwrap();
        predicted.keep(at(0)).unwrap();
        assert_eq!((names(&predicted), path.exists()), ("a".into(), false));
    }
}
