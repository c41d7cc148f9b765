use std::collections::{BTreeMap, BTreeSet};

use ballast_types::{CoreId, KiloHertz};
use serde::Serialize;

use super::files::{line, told, writable};
use crate::cpufreq::{PolicyFacts, ReferenceSource};
use crate::{CpuList, Cpufreq, Floor, Root, Topology};

const CPU: &str = "sys/devices/system/cpu";

#[derive(Clone, Debug, Serialize)]
pub struct Cpus {
    pub online: String,
    /// CPUs that are there and do not run; empty if all do.
    pub offline: String,
    pub count: usize,
    /// Whether cores run more than one thread now; `None` where the kernel does not say.
    pub smt: Option<bool>,
    /// `smt/control`: `on`, `off`, `forceoff`, `notsupported`, `notimplemented`.
    pub smt_control: Option<String>,
    /// Groups of CPUs that share a clock: what is throttled as one core.
    pub clock_domains: usize,
    /// The most CPUs that share one clock.
    pub widest_domain: usize,
    pub packages: usize,
    /// NUMA nodes with CPUs.
    pub nodes: usize,
    /// Why the topology could not be read.
    pub error: Option<String>,
}

impl Cpus {
    pub(super) fn read(root: &Root) -> Self {
        let list =
            |file: &str| line(root, &format!("{CPU}/{file}")).and_then(|text| text.parse::<CpuList>().ok());
        let online = list("online").unwrap_or_default();
        let present = list("present").unwrap_or_default();
        let offline: CpuList = present.iter().filter(|cpu| !online.contains(*cpu)).collect();
        let topology = Topology::read(root);
        let domains = topology.as_ref().map(Topology::domains).unwrap_or_default();

        Self {
            online: online.to_string(),
            offline: offline.to_string(),
            count: online.len(),
            smt: line(root, &format!("{CPU}/smt/active")).map(|text| text == "1"),
            smt_control: line(root, &format!("{CPU}/smt/control")),
            clock_domains: domains.len(),
            widest_domain: domains.iter().map(|domain| domain.cpus.len()).max().unwrap_or(0),
            packages: domains.iter().map(|domain| domain.package).collect::<BTreeSet<_>>().len(),
            nodes: domains.iter().map(|domain| domain.node).collect::<BTreeSet<_>>().len(),
            error: topology.as_ref().err().map(|error| told(root, error)),
        }
    }
}

/// Who scales the CPUs' frequencies, and how far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scaling {
    /// Why there is nothing to scale.
    pub error: Option<String>,
    /// Policies that are alike but for their limit, by the lowest policy number.
    pub groups: Vec<PolicyGroup>,
    /// Policies that stood below their maximum when they were looked at, and at how many kHz.
    pub limited: BTreeMap<CoreId, u32>,
    /// Policies that the firmware holds below their maximum (`bios_limit`), and at how many kHz.
    pub bios_limited: BTreeMap<CoreId, u32>,
    /// Policies whose limit this process may not write.
    pub read_only: String,
}

/// Policies of one driver, governor and ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyGroup {
    pub policies: String,
    pub driver: String,
    /// Whether that driver is known to obey a limit.
    pub known: bool,
    pub governor: Option<String>,
    pub min_khz: u32,
    /// The hardware's range, turbo included where the driver counts it.
    pub max_khz: u32,
    /// The highest frequency without turbo.
    pub reference_khz: u32,
    pub reference_from: &'static str,
    /// The lowest that the agent goes to.
    pub floor_khz: u32,
    /// How many frequencies there are from the floor to the reference.
    pub steps: usize,
    /// Whether these are the driver's own table.
    pub table: bool,
}

impl Scaling {
    pub(super) fn read(root: &Root) -> Self {
        let cpufreq = match Cpufreq::discover(root, Floor::Half) {
            Ok(cpufreq) => cpufreq,
            Err(error) => return Self { error: Some(told(root, &error)), ..Self::default() },
        };

        let mut scaling = Self::default();
        let mut groups: Vec<(PolicyGroup, CpuList)> = Vec::new();
        let mut read_only = CpuList::default();

        for policy in cpufreq.policies() {
            let dir = format!("{CPU}/cpufreq/policy{}", policy.id);
            let number = [u32::from(policy.id.0)];
            if policy.original < policy.cpuinfo_max {
                scaling.limited.insert(policy.id, policy.original.get());
            }
            let bios = line(root, &format!("{dir}/bios_limit")).and_then(|text| text.parse().ok());

            if let Some(khz) = bios.filter(|khz| *khz < policy.cpuinfo_max.get()) {
                scaling.bios_limited.insert(policy.id, khz);
            }
            if !writable(&root.path(&format!("{dir}/scaling_max_freq"))) {
                read_only.extend(number);
            }
            let group = group(policy, line(root, &format!("{dir}/scaling_governor")));

            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, policies)) => policies.extend(number),
                None => groups.push((group, number.into_iter().collect())),
            }
        }

        let named = |(group, policies): (PolicyGroup, CpuList)| PolicyGroup {
            policies: policies.to_string(),
            ..group
        };

        scaling.groups = groups.into_iter().map(named).collect();
        scaling.read_only = read_only.to_string();

        scaling
    }
}

fn group(policy: &PolicyFacts, governor: Option<String>) -> PolicyGroup {
    let khz = KiloHertz::get;
    PolicyGroup {
        policies: String::new(),
        driver: policy.driver.name().to_owned(),
        known: policy.driver.is_known(),
        governor,
        min_khz: khz(policy.cpuinfo_min),
        max_khz: khz(policy.cpuinfo_max),
        reference_khz: khz(policy.reference),
        reference_from: match policy.reference_source {
            ReferenceSource::Base => "base_frequency",
            ReferenceSource::Table => "scaling_available_frequencies",
            ReferenceSource::Nominal => "acpi_cppc/nominal_freq",
            ReferenceSource::TurboShare => "intel_pstate/turbo_pct",
            ReferenceSource::HardwareMax => "cpuinfo_max_freq",
        },
        floor_khz: khz(policy.ladder.floor()),
        steps: policy.ladder.len(),
        table: policy.table,
    }
}
