//! Whether new deployments may come, and why.

use std::collections::BTreeMap;

use ballast_placement::admission::demand::{Decision, DemandError, Threshold};
use ballast_placement::admission::{Order, Reserve};
use ballast_placement::inventory::NamedVm;
use ballast_placement::{Cluster, Totals};
use ballast_types::Instant;
use ballast_types::wire::AdmissionStatus;
use serde::Serialize;

use super::book::AdmissionBook;
use super::record::{Newcomer, key, name};
use crate::config::AdmissionPolicy;

/// Where the condition is tightest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Binds {
    after_h: f64,
    expected_cores: f64,
    /// The standard deviation of these.
    sd: f64,
    capacity: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AdmissionAnswer {
    /// In shadow mode always true.
    pub(crate) admit: bool,
    /// In shadow mode, whether it would have been refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) would_refuse: Option<bool>,
    /// The most that the chance can be that the capacity does not suffice; `null` where no variance is looked at.
    pub(crate) risk: Option<f64>,
    pub(crate) binds: Option<Binds>,
    /// Whether it comes only because it will be small where there is no room.
    pub(crate) marginal: bool,
    pub(crate) why: String,
}

impl AdmissionAnswer {
    pub(super) fn admitted(why: String) -> Self {
        Self { admit: true, would_refuse: None, risk: None, binds: None, marginal: false, why }
    }

    fn refused(why: String) -> Self {
        Self { admit: false, ..Self::admitted(why) }
    }
}

impl AdmissionBook {
    /// Whether the deployments of these VMs that are not there yet may come, with their names and how many there are; `None`
    /// where all are there. How many of those that are there want more than what is kept for them is added to `scale_outs`.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        cluster: &Cluster,
        vms: &[NamedVm],
        scale_outs: &mut u64,
    ) -> Option<(String, usize, AdmissionAnswer)> {
        self.tick(now);
        let (mut new, mut others): (BTreeMap<String, Newcomer>, BTreeMap<String, f64>) = Default::default();
        for NamedVm { name, spec } in vms {
            let key = key(spec.deployment.as_deref(), name);
            if self.deployments.cores_of(&key).is_some() {
                *others.entry(key).or_default() += spec.resources.cores.cores();
                continue;
            }
            let newcomer = new.entry(key.clone()).or_insert_with(|| Newcomer {
                key,
                label: spec.tenant.clone(),
                vms: vec![],
            });
            newcomer.vms.push(spec.resources);
        }
        *scale_outs += others.iter().filter(|(key, cores)| self.goes_beyond(key, **cores)).count() as u64;
        let names: Vec<&str> = new.keys().map(String::as_str).map(name).take(3).collect();
        let more = if new.len() > 3 { ", …" } else { "" };
        let names = format!("{}{more}", names.join(", "));
        let new: Vec<Newcomer> = new.into_values().collect();
        self.decide(cluster, &new).map(|answer| (names, new.len(), answer))
    }

    /// Whether all of these may come, as of the last tick; `None` where nothing is asked.
    pub(crate) fn decide(&mut self, cluster: &Cluster, newcomers: &[Newcomer]) -> Option<AdmissionAnswer> {
        if newcomers.is_empty() {
            return None;
        }
        let answer = match self.config.policy {
            AdmissionPolicy::Reserve(share) => self.by_reserve(share, cluster, newcomers),
            AdmissionPolicy::Moments(order) => self.by_moments(order, cluster, newcomers),
        };
        if !self.config.shadow {
            return Some(answer);
        }
        Some(AdmissionAnswer { admit: true, would_refuse: Some(!answer.admit), ..answer })
    }

    fn by_reserve(&self, share: f64, cluster: &Cluster, newcomers: &[Newcomer]) -> AdmissionAnswer {
        let Some(reserve) = Reserve::new(share) else {
            return AdmissionAnswer::refused(format!("reserve_share = {share}: 0 to 1"));
        };

        let vms = newcomers.iter().flat_map(|it| &it.vms);
        let requested = vms.fold(Totals::default(), |sum, vm| sum + *vm);
        match reserve.holds(cluster, requested, self.committed_room()) {
            Ok(()) => AdmissionAnswer::admitted(format!("a share of {share} stays free")),
            Err(why) => AdmissionAnswer::refused(format!("reserve: {why}")),
        }
    }

    fn by_moments(&mut self, order: Order, cluster: &Cluster, newcomers: &[Newcomer]) -> AdmissionAnswer {
        let capacity = self.capacity(cluster);
        let Some(threshold) = self.deployments.priors().threshold(order, capacity) else {
            return AdmissionAnswer::refused(
                "the priors have no threshold: run `ballast admit tune`".to_owned(),
            );
        };
        let new: Vec<_> = newcomers.iter().map(|it| (it.label.as_deref(), it.cores())).collect();
        let active = self.deployments.cores() + new.iter().map(|it| it.1).sum::<f64>();
        answer(self.deployments.decide(self.now_h, threshold, &new), threshold, capacity, active)
    }

    /// In cores.
    pub(crate) fn capacity(&self, cluster: &Cluster) -> f64 {
        self.config.capacity.unwrap_or(cluster.capacity().milli_cores as f64 / 1e3)
    }

    /// What status says, but for what is counted.
    pub(crate) fn status(&self, cluster: &Cluster) -> AdmissionStatus {
        AdmissionStatus {
            policy: self.config.policy.name().to_owned(),
            shadow: self.config.shadow,
            priors: self.config.priors.as_ref().map(|file| file.path.display().to_string()),
            sla: self.deployments.priors().tuned.map(|it| it.sla),
            capacity_cores: self.capacity(cluster),
            committed_cores: self.committed_cores(),
            deployments: self.deployments.len() as u64,
            ..AdmissionStatus::default()
        }
    }
}

/// A chance from 0 to 1.
fn three_digits(chance: f64) -> String {
    let places = 2.0 - chance.max(1e-9).log10().floor();
    format!("{chance:.*}", places.clamp(3.0, 11.0) as usize)
}

fn answer(
    decided: Result<Option<Decision>, DemandError>,
    threshold: Threshold,
    capacity: f64,
    active: f64,
) -> AdmissionAnswer {
    let decision = match decided {
        Ok(Some(decision)) if !decision.incomputable => decision,
        Ok(_) => {
            return AdmissionAnswer::refused(
                "what is expected of the deployments cannot be computed".to_owned(),
            );
        }
        Err(error) => return AdmissionAnswer::refused(format!("cannot be computed: {error}")),
    };
    let at = decision.binds.map_or(String::new(), |it| {
        format!("{:.1} h ahead {:.1} ± {:.1} cores are expected", it.after_h, it.expected_cores, it.sd_cores)
    });
    let all = format!("with it {active:.1} of {capacity:.1} cores are taken");
    // Thresholds may be above what there is, because expectations are too high.
    if active > capacity {
        return AdmissionAnswer::refused(all);
    }
    let mut why = match threshold {
        Threshold::Zeroth { cores } => format!("{all}; they must be fewer than {cores:.1}"),
        Threshold::First { cores } => format!("{all}; {at}, which must be fewer than {cores:.1}"),
        Threshold::Second { risk, .. } => format!(
            "{all}; {at}: the chance that they are too few is at most {}, which must be at most {}",
            three_digits(decision.risk.unwrap_or(1.0)),
            three_digits(risk)
        ),
    };
    if decision.marginal {
        why.push_str("; it will have less than a core where that does not hold");
    }
    let binds = decision.binds.map(|it| Binds {
        after_h: it.after_h,
        expected_cores: it.expected_cores,
        sd: it.sd_cores,
        capacity,
    });
    let risk = decision.risk.filter(|_| matches!(threshold, Threshold::Second { .. }));
    AdmissionAnswer {
        admit: decision.admit,
        would_refuse: None,
        risk,
        binds,
        marginal: decision.marginal,
        why,
    }
}
