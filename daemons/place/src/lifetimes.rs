//! What the model says of how long VMs live, for the inventory and for whoever asks.

use std::sync::Arc;

use ballast_placement::inventory::{PredictLifetimes, VmSpec};
use ballast_predict::VmError;
use ballast_predict::lifetime::{LifetimeAnswer, LifetimeFeatures, LifetimeFile, LifetimeQuestion};
use ballast_types::Instant;
use ballast_types::survival::{CurveId, Curves};
use ballast_types::wire::LifetimeModelStatus;

#[derive(Debug)]
pub(super) struct Lifetimes {
    file: LifetimeFile,
    /// For the inventory, which keeps them beside the ids of its VMs.
    curves: Arc<Curves>,
}

impl Lifetimes {
    pub(super) fn new(file: LifetimeFile) -> Self {
        let curves = Arc::new(file.model.curves().clone());
        Self { file, curves }
    }

    /// The last thing that is known, in Unix seconds.
    pub(super) fn until_s(&self) -> i64 {
        self.file.about.until_s
    }

    /// What status says of them, but for their age.
    pub(super) fn status(&self) -> LifetimeModelStatus {
        let about = &self.file.about;
        LifetimeModelStatus {
            vms: about.cleaned.vms,
            curves: about.curves,
            until_s: about.until_s,
            age_s: 0,
            better_than_kaplan_meier: about.better_than_kaplan_meier,
        }
    }

    /// Fails when a value of the question is impossible.
    pub(super) fn reply(&self, question: &LifetimeQuestion) -> Result<LifetimeAnswer, VmError> {
        self.file.model.reply(question, seconds(ballast_runtime::unix_now()))
    }
}

impl PartialEq for Lifetimes {
    fn eq(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

impl PredictLifetimes for Lifetimes {
    fn curves(&self) -> Arc<Curves> {
        Arc::clone(&self.curves)
    }

    fn curve(&self, vm: &VmSpec, since: Instant) -> Option<CurveId> {
        let features = LifetimeFeatures {
            cores: Some(vm.resources.cores.cores()),
            memory_gb: Some(vm.resources.memory.gb()),
            tenant: vm.tenant.clone(),
            vm_type: vm.traits.vm_type.clone(),
            batch_vms: vm.traits.batch_vms,
            labels: vm.traits.labels.clone(),
        };
        Some(self.file.model.curve(&features, seconds(since)))
    }
}

fn seconds(at: Instant) -> i64 {
    (at.as_millis() / 1000) as i64
}
