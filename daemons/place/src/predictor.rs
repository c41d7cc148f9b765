//! The model as it is now, and what it says of a VM.
//!
//! The answer itself is [`ModelFile::answer`], a plain call that a scorer in this process can make as well:
//! it takes [`Predictor::now`] once for all that it scores together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballast_predict::file::{FileError, VERSION, checksum_in};
use ballast_predict::lifetime::LifetimeFile;
use ballast_predict::score::Scores;
use ballast_predict::{ModelFile, Prediction, Reply, Request, VmError};
use ballast_types::wire::{Alarm, AlarmId, Event, EventKind, HoldOut, LifetimeModelStatus, ModelStatus};

use super::lifetimes::Lifetimes;
use super::reloaded_file::{Reload, ReloadedFile};
use crate::config::PredictConfig;
use ballast_runtime::events::Events;
use ballast_runtime::{clock, lock};

/// The model, which follows its file.
pub(super) struct Predictor {
    model: ReloadedFile<Loaded>,
    stale_after: Duration,
    /// What VMs have been given, and whether they have.
    given: Mutex<Option<Arc<Lifetimes>>>,
    pub(super) loads: AtomicU64,
    /// Files that could not be used.
    pub(super) failed_loads: AtomicU64,
}

pub(super) struct Loaded {
    /// Class and P95; a file may know lifetimes alone.
    file: Option<ModelFile>,
    pub(super) lifetimes: Option<Arc<Lifetimes>>,
    /// The file's checksum, in hexadecimal.
    pub(super) checksum: String,
}

impl Loaded {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let (file, lifetime) = match ModelFile::decode(bytes) {
            Ok(mut file) => {
                let lifetime = file.lifetime.take();
                (Some(file), lifetime)
            }
            Err(error @ FileError::Missing(_)) => match LifetimeFile::decode(bytes) {
                Err(FileError::Missing(_)) => return Err(error.to_string()),
                lifetime => (None, Some(lifetime.map_err(|error| error.to_string())?)),
            },
            Err(error) => return Err(error.to_string()),
        };

        let lifetimes = lifetime.map(|file| Arc::new(Lifetimes::new(file)));
        let checksum = checksum_in(bytes).unwrap_or_default();
        Ok(Self { file, lifetimes, checksum })
    }

    /// The last thing that it knows, in Unix seconds.
    fn until_s(&self) -> i64 {
        let lifetime = self.lifetimes.as_ref().map(|lifetimes| lifetimes.until_s());
        let class = self.file.as_ref().map(|file| file.about.history_until_s);
        class.or(lifetime).unwrap_or_default()
    }
}

impl Predictor {
    /// Of the configured file; nothing is read yet.
    pub(super) fn new(config: &PredictConfig) -> Self {
        Self {
            model: ReloadedFile::new(&config.model, Loaded::read),
            stale_after: config.stale_after,
            given: Mutex::default(),
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

    /// What the model in force says of lifetimes, where VMs have been given something else: then they have it now.
    pub(super) fn new_lifetimes(&self) -> Option<Option<Arc<Lifetimes>>> {
        let now = self.now().and_then(|model| model.lifetimes.clone());
        let mut given = lock(&self.given);
        // A training of class and P95 keeps the lifetimes.
        if *given == now {
            return None;
        }
        given.clone_from(&now);
        Some(now)
    }

    /// What is to be reckoned with for a VM, by the model in force; where its values are impossible, the
    /// careful answer.
    pub(super) fn predict(&self, request: &Request) -> Prediction {
        let reply = answer(self.now().as_deref(), request);
        reply.map_or_else(|_| Prediction::unknown(), |reply| reply.prediction)
    }

    pub(super) fn status(&self) -> Option<ModelStatus> {
        self.now().map(|model| {
            let (file, until_s) = (model.file.as_ref(), model.until_s());
            let hold_out = |scores: Option<&Scores>| HoldOut {
                vms: scores.map_or(0, |scores| scores.rows),
                confident: scores.map(|scores| scores.confident).filter(|share| share.is_finite()),
                accuracy: scores.map(|scores| scores.accuracy).filter(|share| share.is_finite()),
            };

            ModelStatus {
                file: self.model.path().display().to_string(),
                checksum: model.checksum.clone(),
                version: VERSION,
                subscriptions: file.map_or(0, |file| file.history.len() as u64),
                history_until_s: until_s,
                age_s: age(until_s).as_secs(),
                class: hold_out(file.map(|file| &file.about.class)),
                p95: hold_out(file.map(|file| &file.about.p95)),
                lifetime: model.lifetimes.as_ref().map(|lifetimes| {
                    let until_s = lifetimes.until_s();
                    LifetimeModelStatus { until_s, age_s: age(until_s).as_secs(), ..lifetimes.status() }
                }),
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
        let class = model.as_ref().and_then(|model| model.file.as_ref()).map(|it| it.about.history_until_s);
        let lifetime = model.and_then(|model| model.lifetimes.as_ref().map(|it| it.until_s()));
        let old = |what: &str, until_s: Option<i64>| {
            let age = until_s.map(age).filter(|age| *age > self.stale_after)?;
            let (h, most) = (age.as_secs() / 3600, self.stale_after.as_secs() / 3600);
            let message = format!("the model knows nothing of {what}the last {h} h; stale_after_h = {most}");
            Some(message)
        };
        let old = old("", class).map(|why| Alarm::new(AlarmId::ModelOld, why)).into_iter().chain(
            old("lifetimes in ", lifetime).map(|why| Alarm::about(AlarmId::ModelOld, "lifetimes", why)),
        );
        problem.into_iter().chain(old).collect()
    }
}

/// What is to be reckoned with for a VM: without a model, that it is user-facing, and busy. Fails when a
/// value of the request is impossible.
pub(super) fn answer(model: Option<&Loaded>, request: &Request) -> Result<Reply, VmError> {
    if let Some(file) = model.and_then(|model| model.file.as_ref()) {
        return file.answer(request);
    }
    request.features.check()?;
    Ok(Reply { vm_id: request.vm_id.clone(), prediction: Prediction::unknown(), lifetime: None })
}

/// How long ago `unix_s` was; nothing where that is yet to come.
fn age(unix_s: i64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(u64::try_from(unix_s).unwrap_or_default()))
}
