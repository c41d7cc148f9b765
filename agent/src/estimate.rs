//! What throttling can still shed and what lifting would bring back, by the server's power model.

mod clamps;
mod pstates;
mod quotas;

use std::sync::Arc;

use ballast_types::wire::ClassWatts;
use ballast_types::{VmClass, Watts};
use serde::{Deserialize, Serialize};

use self::clamps::Clamps;
use self::pstates::Pstates;
use self::quotas::Quotas;
use crate::bandwidth::View;
use crate::throttle::Class;
use crate::{Actuator, Params};

/// Dynamic watts, by what is throttled: cores, or units of floating VMs.
pub(crate) trait Dynamic {
    /// Dynamic watts that a low-priority core, or unit, would draw at another level, by its use as last read;
    /// `None` if that is not known.
    ///
    /// A slower core is busier with the same work. What the work is, the use says only together with the
    /// level that it was read at: the highest of late, so that what is left is not made too little.
    fn used_core_w(&self, view: &View<'_>, core: usize, highest: usize, level: usize) -> Option<f64>;

    /// What a class still sheds at its floor; a low estimate. What cannot be set, or whose use is unknown,
    /// sheds nothing.
    fn sheddable(&self, view: &View<'_>, class: &Class) -> f64;

    /// What comes back when a class, or everything, is lifted; a high estimate. What cannot be set counts as
    /// if at its floor, and as busy where its use is unknown.
    fn restorable(&self, view: &View<'_>, class: Option<&Class>) -> f64;

    /// What all would draw if nothing were restricted, with the use of now: a high estimate, for what is slowed
    /// is busier. `None` where no use is known; one that is unknown counts as the others do on average.
    fn unrestricted(&self, view: &View<'_>) -> Option<f64>;
}

/// The server's power model, with what is throttled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Estimate {
    full: Watts,
    idle: Watts,
    model: Model,
}

/// Never changes, so that copies share it.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Model {
    Pstates(Arc<Pstates>),
    Quotas(Arc<Quotas>),
    Clamps(Arc<Clamps>),
}

impl Estimate {
    pub(crate) fn new(params: &Params) -> Self {
        let watts = |w| Watts::from_f64(w).unwrap_or(Watts::ZERO);
        let model = match params.actuator {
            Actuator::Pstate => Model::Pstates(Arc::new(Pstates::new(params))),
            Actuator::CpuMax => Model::Quotas(Arc::new(Quotas::new(params))),
            Actuator::Uclamp => Model::Clamps(Arc::new(Clamps::new(params))),
        };
        Self { full: watts(params.model.full_w), idle: watts(params.model.idle_w), model }
    }

    /// Dynamic watts, core by core or unit by unit.
    pub(crate) fn dynamic(&self) -> &dyn Dynamic {
        match &self.model {
            Model::Pstates(model) => &**model,
            Model::Quotas(model) => &**model,
            Model::Clamps(model) => &**model,
        }
    }

    /// What throttling can do, class by class.
    pub(crate) fn classes(&self, view: &View<'_>) -> Vec<ClassWatts> {
        let class = |class: &Class| ClassWatts {
            class: if class.user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing },
            order: class.order,
            cores: class.cores.len() as u16,
            sheddable_w: low(self.dynamic().sheddable(view, class)),
            restorable_w: high(self.dynamic().restorable(view, Some(class))),
        };
        view.throttle.classes().iter().map(class).collect()
    }

    /// Watts that come back when everything is lifted but user-facing cores; a high estimate.
    ///
    /// What the server's own limit holds down is not known core by core: then it is the rise to the draw
    /// that the use would make unrestricted.
    pub(crate) fn restorable(&self, view: &View<'_>, draw: Option<Watts>) -> Watts {
        if view.actuators.limit_on() {
            return (self.unrestricted(view) - draw.unwrap_or(self.idle)).at_least_zero();
        }
        let user_facing = view.throttle.classes().iter().filter(|class| class.user_facing);
        let theirs: Watts = user_facing.map(|class| high(self.dynamic().restorable(view, Some(class)))).sum();
        high(self.dynamic().restorable(view, None)) - theirs
    }

    /// Where no use is known, the server counts as fully busy.
    fn unrestricted(&self, view: &View<'_>) -> Watts {
        let dynamic = self.dynamic().unrestricted(view);
        dynamic.map_or(self.full, |watts| (self.idle + high(watts)).min(self.full))
    }
}

/// What one core draws beyond idle, fully busy at the highest frequency.
fn watts_per_core(params: &Params) -> f64 {
    params.model.dynamic_w() / online(params) as f64
}

/// How many cores the model is of.
fn online(params: &Params) -> usize {
    params.cores.len().saturating_sub(params.offline_cores.into()).max(1)
}

/// What floating VMs would draw on `all` cores of so many watts each; every VM is told with its cores, and how many of
/// them it would keep busy, where that is known. The cores that no VM accounts for count as the others do; `None` where
/// nothing is known.
fn floating_w(core_w: f64, all: usize, vms: impl Iterator<Item = (f64, Option<f64>)>) -> Option<f64> {
    let (mut known, mut busy) = (0.0, 0.0);
    for (cores, used) in vms {
        if let Some(used) = used {
            known += cores;
            busy += used;
        }
    }
    (known > 0.0).then(|| core_w * busy * (all as f64 / known).max(1.0))
}

fn low(watts: f64) -> Watts {
    Watts::from_f64(watts).unwrap_or(Watts::ZERO).at_least_zero()
}

fn high(watts: f64) -> Watts {
    Watts::from_f64(watts).unwrap_or(Watts::MAX).at_least_zero()
}
