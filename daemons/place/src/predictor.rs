//! The model as it is now, and what it says of a VM.
//!
//! The answer itself is [`ModelFile::answer`], a plain call that a scorer in this process can make as well:
//! it takes [`Predictor::now`] once for all that it scores together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballast_predict::file::{VERSION, checksum_in};
use ballast_predict::score::Scores;
use ballast_predict::{ModelFile, Prediction, Reply, Request, VmError};
use ballast_types::wire::{Alarm, AlarmId, Event, EventKind, HoldOut, ModelStatus};

use super::reloaded_file::{Reload, ReloadedFile};
use crate::config::PredictConfig;
use ballast_runtime::clock;
use ballast_runtime::events::Events;

/// The model, which follows its file.
pub(super) struct Predictor {
    model: ReloadedFile<Loaded>,
    stale_after: Duration,
    pub(super) loads: AtomicU64,
    /// Files that could not be used.
    pub(super) failed_loads: AtomicU64,
}

/// A model in memory.
pub(super) struct Loaded {
    file: ModelFile,
    /// The file's checksum, in hexadecimal.
    pub(super) checksum: String,
}

impl Loaded {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let file = ModelFile::decode(bytes).map_err(|error| error.to_string())?;
        let checksum = checksum_in(bytes).unwrap_or_default();
        Ok(Self { file, checksum })
    }
}

impl Predictor {
    /// Of the configured file; nothing is read yet.
    pub(super) fn new(config: &PredictConfig) -> Self {
        Self {
            model: ReloadedFile::new(&config.model, Loaded::read),
            stale_after: config.stale_after,
            loads: AtomicU64::default(),
            failed_loads: AtomicU64::default(),
        }
    }

    /// Takes what is new in the file; see [`ReloadedFile::look`].
    pub(super) fn look(&self, events: &Events, ordered: bool) {
        let kind = match self.model.look(ordered) {
            Reload::Same => return,
            Reload::Taken => {
                self.loads.fetch_add(1, Ordering::Relaxed);
                let checksum = self.model.get().map(|model| model.checksum.clone());
                let file = self.model.path().display().to_string();
                EventKind::ModelLoaded { file, checksum: checksum.unwrap_or_default() }
            }
            Reload::Refused(message) => {
                self.failed_loads.fetch_add(1, Ordering::Relaxed);
                EventKind::Alarm { message }
            }
        };
        events.push(Event { at_ns: clock::now(), kind });
    }

    /// The model in force, for as long as the caller likes; `None` before the first.
    pub(super) fn now(&self) -> Option<Arc<Loaded>> {
        self.model.get()
    }

    /// What is to be reckoned with for a VM, by the model in force; where its values are impossible, the
    /// careful answer.
    pub(super) fn predict(&self, request: &Request) -> Prediction {
        let reply = answer(self.now().as_deref(), request);
        reply.map_or_else(|_| Prediction::unknown(), |reply| reply.prediction)
    }

    /// What status says of the model in force.
    pub(super) fn status(&self) -> Option<ModelStatus> {
        self.now().map(|model| {
            let about = &model.file.about;
            let hold_out = |scores: &Scores| HoldOut {
                vms: scores.rows,
                confident: Some(scores.confident).filter(|share| share.is_finite()),
                accuracy: Some(scores.accuracy).filter(|share| share.is_finite()),
            };

            ModelStatus {
                file: self.model.path().display().to_string(),
                checksum: model.checksum.clone(),
                version: VERSION,
                subscriptions: model.file.history.len() as u64,
                history_until_s: about.history_until_s,
                age_s: age(about.history_until_s).as_secs(),
                class: hold_out(&about.class),
                p95: hold_out(&about.p95),
            }
        })
    }

    /// What an operator should know of the model.
    pub(super) fn alarms(&self) -> Vec<Alarm> {
        let model = self.now();
        let problem = self.model.problem().map(|why| match model {
            Some(_) => {
                let message = format!("the new model cannot be used, the old one stays: {why}");
                Alarm::new(AlarmId::ModelRefused, message)
            }
            None => {
                let message = format!("there is no model, every answer is conservative: {why}");
                Alarm::new(AlarmId::ModelMissing, message)
            }
        });
        let age = model.map(|model| age(model.file.about.history_until_s));
        let old = age.filter(|age| *age > self.stale_after).map(|age| {
            let (h, most) = (age.as_secs() / 3600, self.stale_after.as_secs() / 3600);
            let message = format!("the model knows nothing of the last {h} h; stale_after_h = {most}");
            Alarm::new(AlarmId::ModelOld, message)
        });
        problem.into_iter().chain(old).collect()
    }
}

/// What is to be reckoned with for a VM: without a model, that it is user-facing, and busy. Fails when a
/// value of the request is impossible.
pub(super) fn answer(model: Option<&Loaded>, request: &Request) -> Result<Reply, VmError> {
    if let Some(model) = model {
        return model.file.answer(request);
    }
    request.features.check()?;
    Ok(Reply { vm_id: request.vm_id.clone(), prediction: Prediction::unknown() })
}

/// How long ago `unix_s` was; nothing where that is yet to come.
fn age(unix_s: i64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(u64::try_from(unix_s).unwrap_or_default()))
}
