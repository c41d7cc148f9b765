//! A VM that is to be placed, as it is asked for, and with what is predicted of it.

use std::time::Duration;

use ballast_placement::inventory::{NamedVm, VmSpec, VmTraits};
use ballast_placement::{Expected, Resources};
use ballast_predict::{Features, Prediction, Request};
use ballast_types::{Utilisation, VmClass};
use serde::Serialize;

use super::body::VmBody;
use super::predictor::{self, Loaded};
use crate::config::host_size;

#[derive(Clone, Debug)]
pub(super) struct VmRequest {
    pub(super) name: Option<String>,
    /// Without what was not told of it.
    spec: VmSpec,
    class: Option<VmClass>,
    p95: Option<Utilisation>,
    /// Whether it was told how many VMs were asked for together.
    batch_told: bool,
    /// What the predictor is asked for the rest.
    question: Request,
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum By {
    Request,
    Model,
    /// Nobody for sure: this is what is safe to assume.
    Default,
}

/// A VM with its class and P95, and who says them.
#[derive(Clone, Debug)]
pub(super) struct PredictedVm {
    /// The VM; its name is empty where it has none.
    pub(super) vm: NamedVm,
    pub(super) class_by: By,
    pub(super) p95_by: By,
    pub(super) prediction: Option<Prediction>,
}

impl VmRequest {
    /// Checks a request. `batch_vms` is the size of the batch if the request does not give it.
    pub(super) fn new(vm: VmBody, batch_vms: Option<u32>) -> Result<Self, String> {
        let (cores, memory_gb) = vm.size()?;
        let subscription = vm.subscription.map(|name| name.0);
        let vm_type = vm.vm_type.map(|name| name.0);
        let spec = VmSpec {
            deployment: vm.deployment.map(|name| name.0),
            tenant: subscription.clone(),
            lifetime: vm.lifetime_s.map(|lifetime| Duration::from_secs_f64(lifetime.0)),
            extras: vm.extras.map(Into::into).unwrap_or_default(),
            spread: vm.spread.unwrap_or(false),
            domain_skew: vm.domain_skew.map_or(0, |skew| skew.0 as u8),
            traits: VmTraits {
                vm_type: vm_type.clone(),
                batch_vms: vm.batch_vms.map(|vms| vms.0).or(batch_vms),
                labels: vm.labels.unwrap_or_default().0,
            },
            ..VmSpec::new(host_size(cores, memory_gb)?)
        };
        if spec.deployment.is_none() {
            const ALLOWED: &str = "only with a deployment, whose VMs are spread";
            if spec.spread {
                return Err(format!("spread = true: {ALLOWED}"));
            }
            if spec.domain_skew > 0 {
                return Err(format!("domain_skew = {}: {ALLOWED}", spec.domain_skew));
            }
        }
        // The model knows whole cores, and no smaller VM than one.
        let features = Features { cores: cores.max(1.0), memory_gb, vm_type, past: vm.past };
        let request = Self {
            name: vm.vm_id.map(|name| name.0),
            spec,
            class: vm.class,
            batch_told: vm.batch_vms.is_some(),
            p95: vm.p95_percent.and_then(|percent| Utilisation::from_ratio(percent.0 / 100.0)),
            question: Request { vm_id: None, subscription, features },
        };
        if request.asks() {
            let checked = request.question.features.check();
            checked.map_err(|error| format!("{error}: or tell class and p95_percent"))?;
        }
        Ok(request)
    }

    /// Fails without a name.
    pub(super) fn named(self) -> Result<Self, String> {
        if self.name.is_some() { Ok(self) } else { Err("vm_id is missing".to_owned()) }
    }

    /// Its tenant, whose label its deployment has.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.spec.tenant.as_deref()
    }

    pub(super) fn resources(&self) -> Resources {
        self.spec.resources
    }

    /// How many VMs were asked for together, where that was told.
    pub(super) fn batch(&self) -> Option<u32> {
        self.spec.traits.batch_vms.filter(|_| self.batch_told)
    }

    fn asks(&self) -> bool {
        self.class.is_none() || self.p95.is_none()
    }

    /// With what `model` says where nothing was told.
    pub(super) fn predicted(&self, model: Option<&Loaded>) -> PredictedVm {
        let asked = self.asks().then(|| predictor::answer(model, &self.question).ok());
        let said = asked.map(|said| said.map_or_else(Prediction::unknown, |it| it.prediction));
        let by = |told: bool, confident: Option<bool>| match (told, confident) {
            (true, _) => By::Request,
            (false, Some(true)) => By::Model,
            (false, _) => By::Default,
        };

        let class_by = by(self.class.is_some(), said.map(|said| said.class_confident));
        let p95_by = by(self.p95.is_some(), said.map(|said| said.p95_confident));
        let (class, p95) = said.as_ref().map_or((None, None), Prediction::sure);
        let Expected { known, class, p95 } = Expected::of(self.class.or(class), self.p95.or(p95));

        PredictedVm {
            vm: NamedVm {
                name: self.name.clone().unwrap_or_default(),
                spec: VmSpec { known, class, p95, ..self.spec.clone() },
            },
            class_by,
            p95_by,
            prediction: said,
        }
    }

    /// Whether this is what was asked for when a VM was placed that is so now. What was predicted does not
    /// count: by now another model may say otherwise.
    pub(super) fn is(&self, placed: &VmSpec) -> bool {
        let VmSpec { known, class, p95, .. } = *placed;
        let mut as_placed = VmSpec { known, class, p95, ..self.spec.clone() };
        if !self.batch_told {
            // A part of a request is the same request.
            as_placed.traits.batch_vms = placed.traits.batch_vms;
        }
        as_placed == *placed
            && self.class.is_none_or(|class| class == placed.class)
            && self.p95.is_none_or(|p95| p95 == placed.p95)
    }
}
