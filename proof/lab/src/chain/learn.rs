//! What is told of every VM: labels from use, a model from labels, answers from the model.

use ballast_predict::features::Features;
use ballast_predict::fleet::{SyntheticFleet, Uses};
use ballast_predict::label::{Pattern, PatternOptions};
use ballast_predict::train::{ClassSource, Options as Training, TrainError, Trial, worse};
use ballast_predict::vm::DAY_S;
use ballast_predict::{ModelFile, Request, VmHistory};
use ballast_types::VmClass;

use super::{Options, Predicted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Labeller {
    /// The pattern that ships, with its options that ship.
    Ours,
    Truth,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Weights by what is told and what is true: user-facing first.
    sums: [[f64; 2]; 2],
}

impl Share {
    pub(super) fn add(&mut self, told: VmClass, is: VmClass, weight: f64) {
        self.sums[batch(told)][batch(is)] += weight;
    }

    /// Of what is user-facing, the share that is told so.
    pub fn user_facing_recall(&self) -> f64 {
        self.sums[0][0] / (self.sums[0][0] + self.sums[1][0])
    }

    /// Of what is told to be batch, the share that is.
    pub fn batch_precision(&self) -> f64 {
        self.sums[1][1] / (self.sums[1][0] + self.sums[1][1])
    }

    /// Of what is batch, the share that is told so: who may be slowed.
    pub fn batch_recall(&self) -> f64 {
        self.sums[1][1] / (self.sums[0][1] + self.sums[1][1])
    }
}

/// The index of a class: 1 for batch.
pub(super) fn batch(class: VmClass) -> usize {
    usize::from(class == VmClass::NonUserFacing)
}

pub(super) struct Knowledge {
    /// By VM; of those that were never placed nothing.
    pub(super) told: Vec<Predicted>,
    pub(super) labels: Share,
    pub(super) kept_out: u32,
}

/// Learns again and again from what is known by then, and answers for the VMs that arrive until the next time;
/// the first model also for those that run already.
pub(super) fn told(
    fleet: &SyntheticFleet,
    uses: &Uses,
    labeller: Labeller,
    options: &Options,
    seed: u64,
    placed_s: i64,
) -> Result<Knowledge, TrainError> {
    let classes = classes(fleet, uses, labeller);
    let mut labels = Share::default();
    for (class, purpose) in classes.iter().zip(&fleet.purposes) {
        class.iter().for_each(|class| labels.add(*class, purpose.class, 1.0));
    }

    let [.., end_s] = options.times();
    let classes_from = match labeller {
        Labeller::Ours => ClassSource::Labeller,
        Labeller::Truth => ClassSource::Operator,
    };
    let training = Training { seed, classes: classes_from, ..Training::default() };
    let mut knowledge = Knowledge { told: vec![(None, None); fleet.vms.len()], labels, kept_out: 0 };
    let mut model: Option<ModelFile> = None;
    let mut at_s = placed_s;

    while at_s < end_s {
        let known = known(fleet, &classes, at_s);
        let trial = Trial::new(&known, &training)?;
        let scores = (&trial.scores.0, &trial.scores.1);
        let old = model.as_ref().map(|old| trial.score(&old.trial));
        match old.and_then(|old| worse(scores, (&old.0, &old.1), training.classes)) {
            Some(_) => knowledge.kept_out += 1,
            None => model = Some(trial.learn_all(&training)?),
        }

        let next_s = at_s + i64::from(options.retrain_days) * DAY_S;
        let first = at_s == placed_s;
        let asks = |vm: &VmHistory| {
            (at_s..next_s).contains(&vm.arrival_s)
                || first && vm.arrival_s < at_s && vm.end_s.is_none_or(|end| end > at_s)
        };
        for (vm, told) in fleet.vms.iter().zip(&mut knowledge.told).filter(|(vm, _)| asks(vm)) {
            let reply = model.as_ref().and_then(|model| model.answer(&request(vm)).ok());
            *told = reply.map_or((None, None), |reply| reply.prediction.sure());
        }
        at_s = next_s;
    }

    Ok(knowledge)
}

/// The class of every VM that has one to be told from its use.
fn classes(fleet: &SyntheticFleet, uses: &Uses, labeller: Labeller) -> Vec<Option<VmClass>> {
    let pattern = Pattern::new(PatternOptions::default());
    let class = |(place, vm): (usize, &VmHistory)| {
        let aged_s = vm.aged_s()?;
        Some(match labeller {
            Labeller::Truth => fleet.purposes[place].class,
            Labeller::Ours => match pattern.label(&uses.vm(place).week(aged_s)).user_facing {
                true => VmClass::UserFacing,
                false => VmClass::NonUserFacing,
            },
        })
    };
    fleet.vms.iter().enumerate().map(class).collect()
}

/// The fleet's VMs as they are known at this second.
fn known(fleet: &SyntheticFleet, classes: &[Option<VmClass>], at_s: i64) -> Vec<VmHistory> {
    let arrived = fleet.vms.iter().zip(classes).take_while(|(vm, _)| vm.arrival_s < at_s);
    let as_known = |(vm, class): (&VmHistory, &Option<VmClass>)| VmHistory {
        end_s: vm.end_s.filter(|end| *end < at_s),
        class: class.filter(|_| vm.aged_s().is_some_and(|aged| aged <= at_s)),
        ..vm.clone()
    };
    arrived.map(as_known).collect()
}

fn request(vm: &VmHistory) -> Request {
    let features = Features {
        cores: f64::from(vm.cores),
        memory_gb: vm.memory_gb,
        vm_type: Some(vm.vm_type.clone()),
        past: None,
    };
    Request { vm_id: None, subscription: Some(vm.subscription.clone()), features }
}
