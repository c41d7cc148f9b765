//! A VM that is to be placed, as it is asked for, and with what is predicted of it.

use std::time::Duration;

use ballast_placement::inventory::{NamedVm, VmSpec, VmTraits};
use ballast_placement::{Expected, MemoryKb, MilliCores, Resources};
use ballast_predict::{Features, Prediction, Request};
use ballast_types::{Utilisation, VmClass};
use serde::Serialize;

use super::ask::read_past;
use super::fields::Fields;
use super::predictor::{self, Loaded};

/// No VM lives longer: 100 years.
const LIFETIME_MAX_S: f64 = 3.2e9;
/// No batch has more VMs.
const BATCH_MAX: u32 = 1_000_000_000;

/// What is asked for a VM.
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
    /// Reads a VM; `all` is what is told of all VMs of a request.
    pub(super) fn read(vm: &Fields<'_>, all: Option<&Fields<'_>>) -> Result<Self, String> {
        let name = |key| {
            let own = vm.name(key)?;
            own.map_or_else(|| all.map_or(Ok(None), |all| all.name(key)), |own| Ok(Some(own)))
        };

        let cores = vm.needed("cores", vm.number("cores")?)?;
        let memory_gb = vm.needed("memory_gb", vm.number("memory_gb")?)?;
        let resources = resources(vm, cores, memory_gb)?;

        let p95 = vm.within("p95_percent", 0.0..=100.0, "0 to 100")?;
        let lifetime = vm.within("lifetime_s", 0.0..=LIFETIME_MAX_S, "0 to 3200000000")?;
        let spread = vm
            .flag("spread")?
            .map_or_else(|| all.map_or(Ok(None), |all| all.flag("spread")), |own| Ok(Some(own)))?;
        let domain_skew = vm
            .whole("domain_skew", u32::from(u8::MAX))?
            .map_or_else(|| all.map_or(Ok(None), |all| all.whole("domain_skew", 255)), |own| Ok(Some(own)))?;
        let subscription = name("subscription")?;
        let batch_vms = vm.whole("batch_vms", BATCH_MAX)?.map_or_else(
            || all.map_or(Ok(None), |all| all.whole("batch_vms", BATCH_MAX)),
            |own| Ok(Some(own)),
        )?;
        if batch_vms == Some(0) {
            return Err(vm.wrong("batch_vms", "1 or more"));
        }
        let labels = vm.texts("labels")?;
        let labels =
            labels.map_or_else(|| all.map_or(Ok(None), |all| all.texts("labels")), |it| Ok(Some(it)))?;
        let traits = VmTraits { vm_type: name("vm_type")?, batch_vms, labels: labels.unwrap_or_default() };
        let spec = VmSpec {
            deployment: name("deployment")?,
            tenant: subscription.clone(),
            lifetime: lifetime.map(Duration::from_secs_f64),
            extras: vm.amounts("extras")?.unwrap_or_default(),
            spread: spread.unwrap_or(false),
            domain_skew: domain_skew.unwrap_or(0) as u8,
            traits,
            ..VmSpec::new(resources)
        };

        if spec.spread && spec.deployment.is_none() {
            return Err(vm.wrong("spread", "only with a deployment, whose VMs are spread"));
        }
        if spec.domain_skew > 0 && spec.deployment.is_none() {
            return Err(vm.wrong("domain_skew", "only with a deployment, whose VMs are spread"));
        }
        let features = Features {
            // The model knows whole cores, and no smaller VM than one.
            cores: cores.max(1.0),
            memory_gb,
            vm_type: spec.traits.vm_type.clone(),
            past: vm.inner("past")?.map(|past| read_past(&past)).transpose()?,
        };

        let request = Self {
            name: vm.name("vm_id")?,
            spec,
            class: vm.word("class", &VmClass::ALL.map(|class| (class.name(), class)))?,
            batch_told: batch_vms.is_some(),
            p95: p95.and_then(|percent| Utilisation::from_ratio(percent / 100.0)),
            question: Request { vm_id: None, subscription, features },
        };

        if request.asks() {
            let checked = request.question.features.check();
            checked.map_err(|error| format!("{}{error}: or tell class and p95_percent", vm.at))?;
        }

        Ok(request)
    }

    /// Its tenant, whose label its deployment has.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.spec.tenant.as_deref()
    }

    /// What it takes of a host.
    pub(super) fn resources(&self) -> Resources {
        self.spec.resources
    }

    /// One of so many that are asked for together, where that was not told.
    pub(super) fn of_batch(mut self, vms: Option<u32>) -> Self {
        if !self.batch_told {
            self.spec.traits.batch_vms = vms;
        }
        self
    }

    /// How many VMs were asked for together, where that was told.
    pub(super) fn batch(&self) -> Option<u32> {
        self.spec.traits.batch_vms.filter(|_| self.batch_told)
    }

    /// Whether the predictor is asked.
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
        // A part of a request is the same request.
        let this = self.clone().of_batch(placed.traits.batch_vms).spec;
        let as_placed = VmSpec { known, class, p95, ..this };
        as_placed == *placed
            && self.class.is_none_or(|class| class == placed.class)
            && self.p95.is_none_or(|p95| p95 == placed.p95)
    }
}

/// What a body's `cores` and `memory_gb` are.
pub(super) fn resources(body: &Fields<'_>, cores: f64, memory_gb: f64) -> Result<Resources, String> {
    let milli = Some((cores * 1e3).round()).filter(|m| (1.0..=65_536e3).contains(m));
    let milli = milli.and_then(|milli| MilliCores::from_milli(milli as u64));
    Ok(Resources::new(
        milli.ok_or_else(|| body.wrong("cores", "0.001 to 65536"))?,
        MemoryKb::from_gb(memory_gb).ok_or_else(|| body.wrong("memory_gb", "0 to 100000"))?,
    ))
}
