//! Writes records down, and has advice made when it may have changed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ballast_agent_core::Input;
use ballast_runtime::metrics::word;
use ballast_types::wire::{Alarm, AlarmId};
use ballast_types::{UsageRecord, VmClass};

use super::advice::{self, Advice};
use super::{Batch, VmInstance, summary};
use crate::config::{AutoMode, RecordsConfig};
use crate::job_limits::Recommendations;
use crate::message::Message;
use crate::records::{Store, local_time};
use crate::vms::{Notes, Vms};
use ballast_runtime::{clock, lock};

/// The thread that may wait for the disk.
pub(super) struct RecordWriter {
    folder: PathBuf,
    config: RecordsConfig,
    /// `None` until the folder could be opened.
    store: Option<Store>,
    limits: Recommendations,
    vms: Arc<Mutex<Vms>>,
    notes: Notes,
    messages: Sender<Message>,
    /// For which day and VMs there is advice.
    advised: Option<(i32, Vec<VmInstance>)>,
    /// In which hour records were added up.
    summed: Option<u64>,
    written: u64,
    /// How many of them do not know a value, by its name.
    missing: BTreeMap<String, u64>,
    /// Lost and not told yet.
    lost: u64,
    /// Found damaged so far.
    damaged: u64,
}

impl RecordWriter {
    pub(super) fn new(
        folder: PathBuf,
        config: RecordsConfig,
        limits: Recommendations,
        vms: Arc<Mutex<Vms>>,
        notes: Notes,
        messages: Sender<Message>,
    ) -> Self {
        Self {
            folder,
            config,
            store: None,
            limits,
            vms,
            notes,
            messages,
            advised: None,
            summed: None,
            written: 0,
            missing: BTreeMap::new(),
            lost: 0,
            damaged: 0,
        }
    }

    /// Writes records down, and looks whether there is anything to advise.
    pub(super) fn take(&mut self, Batch { records, classless }: Batch) {
        let failed = self.append(&records).err();
        match &failed {
            None => self.count(&records),
            Some(error) => {
                self.lost += records.len() as u64;
                tracing::warn!(lost = records.len(), %error, "usage records could not be written");
            }
        }
        self.recommend(&records);
        self.sum_up();
        let advised = classless.map_or(Ok(()), |classless| self.advise(classless));
        self.tell(failed, advised.err());
    }

    fn count(&mut self, records: &[UsageRecord]) {
        self.written += records.len() as u64;
        for value in records.iter().flat_map(UsageRecord::missing) {
            *self.missing.entry(value.to_owned()).or_default() += 1;
        }
    }

    fn append(&mut self, records: &[UsageRecord]) -> std::io::Result<()> {
        let store = match &mut self.store {
            Some(store) => store,
            none => none.insert(Store::open(&self.folder, self.config.limits)?),
        };
        store.append(records)
    }

    /// Where the records cannot be read, no limit is recommended.
    fn recommend(&mut self, records: &[UsageRecord]) {
        if let Err(error) = self.limits.take(records, clock::unix_ms() / 1000) {
            tracing::warn!(%error, "no limits of VMs are recommended: the usage records could not be read");
        }
        let specs = self.notes.specs().into_iter();
        let tenants = specs.filter_map(|(vm, spec)| Some((vm, spec.tenant?))).collect();
        let limits = self.limits.answer(&tenants);
        self.notes.usage(|usage| usage.limits = limits);
    }

    /// Adds the records up once an hour. Where they cannot be read, what was made before gets old.
    fn sum_up(&mut self) {
        let hour = clock::unix_ms() / 3_600_000;
        if self.summed == Some(hour) {
            return;
        }
        match summary::make(&self.folder, clock::unix_ms() / 1000) {
            Ok(vms) => {
                self.notes.usage(|usage| usage.vms = vms);
                self.summed = Some(hour);
            }
            Err(error) => tracing::warn!(%error, "usage records could not be added up"),
        }
    }

    /// Makes advice if the day is another, or the VMs are. Fails if the records cannot be read, or advice not
    /// be written down: then every VM without a class is user-facing, and it is tried again with the next
    /// records.
    fn advise(&mut self, classless: Vec<VmInstance>) -> std::io::Result<()> {
        if self.config.auto_class == AutoMode::Off {
            return Ok(());
        }
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let (today, _) = local_time(now, &self.config.timezone);

        if self.advised.as_ref().is_some_and(|(day, of)| *day == today && *of == classless) {
            return Ok(());
        }
        self.advised = None;
        let made = advice::make(&self.folder, &classless, today, &self.config);
        let (advice, failed) = match made {
            Ok(advice) => (advice, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };

        let acted = self.act(&advice);

        for ((vm, _), advice) in &advice {
            tracing::info!(%vm, class = word(&advice.class), why = advice.why, "advice");
        }
        let told = |((vm, _), it): (VmInstance, Advice)| (vm, (it.class, it.why));
        let told = advice.into_iter().map(told).collect();
        self.notes.usage(|usage| usage.advice = told);

        match failed {
            Some(error) => return Err(error),
            None => acted?,
        }

        self.advised = Some((today, classless));

        Ok(())
    }

    /// Gives VMs the class that is advised, if that is wanted. Fails if it cannot be written down; then
    /// nobody becomes batch.
    fn act(&self, advice: &BTreeMap<VmInstance, Advice>) -> std::io::Result<()> {
        if self.config.auto_class != AutoMode::Act {
            return Ok(());
        }
        let batch = advice.iter().filter(|(_, it)| it.class == VmClass::NonUserFacing);
        let batch = batch.map(|(life, _)| life.clone()).collect();
        // Sent under the lock, so that no older set comes after a newer one.
        let mut vms = lock(&self.vms);
        let (set, written) = vms.advise(batch);
        if let Some(set) = set {
            // Fails only when the control thread has ended.
            let _ = self.messages.send(Message::Input(Input::Vms(set)));
        }
        written
    }

    fn tell(&mut self, unwritten: Option<std::io::Error>, unread: Option<std::io::Error>) {
        let (mut alarms, mut damaged, mut bytes) = (vec![], 0, 0);
        if let Some(store) = &self.store {
            alarms.extend_from_slice(store.aside());
            damaged = store.damaged();
            bytes = store.bytes().unwrap_or(0);
        }
        alarms.extend(unwritten.map(|error| {
            Alarm::new(AlarmId::RecordsNotWritten, format!("usage records are not written: {error}"))
        }));
        alarms.extend(unread.map(|error| {
            Alarm::new(AlarmId::RecordsNotRead, format!("VMs without a class are not labelled: {error}"))
        }));
        let (written, missing) = (self.written, self.missing.clone());
        let lost = std::mem::take(&mut self.lost);
        let found = damaged - std::mem::replace(&mut self.damaged, damaged);
        self.notes.usage(|usage| {
            (usage.records.written, usage.records.bytes) = (written, bytes);
            usage.records.missing = missing;
            usage.records.dropped += lost + found;
            usage.alarms = alarms;
        });
    }
}
