//! What is done to the cluster on the way: drains, sizes, another policy; and who is let in.

use ballast_placement::drain::DrainOrder;
use ballast_placement::rules::Alpha;
use ballast_placement::{HostId, MemoryKb, MilliCores, Reserve, Resources, Ties};
use ballast_sim::cluster::{Action, Below, Drained, Drains, Moving, Phase, Plan};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::policy::PolicyArg;

/// Arguments about it.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// Admission before placement: `reserve=F` refuses a new batch that would leave less than this share of the
    /// cluster's cores or memory free; one that has VMs running may scale out into it
    #[arg(long, value_name = "reserve=F", value_parser = admission)]
    admission: Option<Reserve>,
    /// S seconds after the first arrival drain these hosts: no VM is placed there any more, and VMs are moved
    /// away one after the other
    #[arg(long, value_name = "S=A-B,C,…", value_parser = at_hosts)]
    drain: Vec<(u64, Hosts)>,
    /// S seconds after the first arrival open them again
    #[arg(long, value_name = "S=A-B,C,…", value_parser = at_hosts)]
    open: Vec<(u64, Hosts)>,
    /// S seconds after the first arrival move the VMs off the N hosts with the fewest cores in use; each of them is open
    /// again once it is empty
    #[arg(long, value_name = "S=N", value_parser = at_count)]
    defragment: Vec<(u64, u32)>,
    /// Whenever less than this share of the hosts is empty, and no host is being drained, move the VMs off the K hosts with
    /// the most cores free; each of them is open again once it is empty
    #[arg(long, value_name = "SHARE=K", value_parser = below)]
    defragment_below: Option<Below>,
    /// Who leaves a host that is drained first
    #[arg(long, value_enum, default_value_t = DrainOrderArg::Largest)]
    drain_order: DrainOrderArg,
    /// So many VMs may be on their way together [default: one of every host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    drain_limit: Option<u32>,
    /// S seconds after the first arrival these hosts have so many cores and GB of memory; VMs that take more stay
    #[arg(long, value_name = "S=A-B,C,…:CORES:GB", value_parser = at_size)]
    resize: Vec<(u64, (Hosts, Resources))>,
    /// S seconds after the first arrival go on with another policy; the phases are reported each on its own
    #[arg(long, value_name = "S=NAME", value_parser = at_policy)]
    policy_after: Vec<(u64, PolicyArg)>,
    /// How long a VM is on its way, holding its room on both hosts, whatever its size
    #[arg(long, value_name = "S", default_value = "10", allow_negative_numbers = true,
          value_parser = move_ms)]
    migration_s: u64,
    /// And for every GB of its memory
    #[arg(long, value_name = "S", default_value = "1", allow_negative_numbers = true, value_parser = move_ms)]
    migration_s_per_gb: u64,
}

/// Who leaves a host that is drained first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrainOrderArg {
    /// Of every host by itself the VM with the most cores, then the most memory
    Largest,
    /// Host after host, the VM that came first
    Arrival,
    /// Host after host, the VM that is expected to live longest
    PerHost,
    /// Of all hosts together, the VM that is expected to live longest
    Global,
}

impl From<DrainOrderArg> for DrainOrder {
    fn from(order: DrainOrderArg) -> Self {
        match order {
            DrainOrderArg::Largest => Self::Largest,
            DrainOrderArg::Arrival => Self::Arrival,
            DrainOrderArg::PerHost => Self::PerHost,
            DrainOrderArg::Global => Self::Global,
        }
    }
}

#[derive(Clone, Debug)]
struct Hosts(Vec<(u32, u32)>);

#[derive(Debug, Serialize)]
pub(super) struct Named {
    policy: &'static str,
    from_s: f64,
    #[serde(flatten)]
    phase: Phase,
}

impl PlanArgs {
    pub(super) const fn admission(&self) -> Option<Reserve> {
        self.admission
    }

    /// The policy that goes on to the end, where it changes.
    pub(super) fn last_policy(&self) -> Option<PolicyArg> {
        self.policy_after.iter().max_by_key(|(at_ms, _)| *at_ms).map(|(_, policy)| *policy)
    }

    /// As the simulator takes it. At equal times a policy changes first, then hosts are resized, others open, others drain.
    pub(super) fn plan(&self, alpha: Alpha, ties: Ties) -> Plan {
        let policies = self.policy_after.iter();
        let policies = policies.map(|(at, policy)| (*at, Action::Policy(policy.policy(alpha, ties))));
        let open = self.open.iter().map(|(at, hosts)| (*at, Action::Open(hosts.ids())));
        let drain = self.drain.iter().map(|(at, hosts)| (*at, Action::Drain(hosts.ids())));
        let resize = self.resize.iter();
        let resize = resize.map(|(at, (hosts, size))| (*at, Action::Resize(hosts.ids(), *size)));
        let defragment = self.defragment.iter().map(|(at, hosts)| (*at, Action::Defragment(*hosts)));
        let moving = Moving { base_ms: self.migration_s, per_gb_ms: self.migration_s_per_gb };
        let actions = policies.chain(resize).chain(open).chain(drain).chain(defragment).collect();
        let drains =
            Drains { order: self.drain_order.into(), limit: self.drain_limit, below: self.defragment_below };
        Plan { actions, moving, drains }
    }

    /// The phases by name, where there is more than one.
    pub(super) fn named(&self, first: PolicyArg, phases: &[Phase]) -> Option<Vec<Named>> {
        let mut later: Vec<_> = self.policy_after.clone();
        later.sort_by_key(|(at_ms, _)| *at_ms);
        let policies = core::iter::once(first).chain(later.into_iter().map(|(_, policy)| policy));
        let named = policies.zip(phases).map(|(policy, phase)| Named {
            policy: policy.name(),
            from_s: phase.from_ms as f64 / 1e3,
            phase: *phase,
        });
        (phases.len() > 1).then(|| named.collect())
    }

    /// What came of drains, where there were any.
    pub(super) fn drained(&self, drained: Drained) -> Option<Drained> {
        let drains = !self.drain.is_empty() || !self.defragment.is_empty();
        let drains = drains || self.defragment_below.is_some();
        drains.then_some(drained)
    }
}

impl Named {
    pub(super) fn line(&self) -> String {
        let Self { policy, from_s, phase } = self;
        format!(
            "from {from_s} s on {policy}: {} placed, {} failed, hosts without a VM {:.2} % of at most \
             {:.2} %, cores in use on the others {:.2} %",
            phase.placed,
            phase.failed,
            phase.empty_host_ratio * 100.0,
            phase.bound_empty_ratio * 100.0,
            phase.packing_density * 100.0,
        )
    }
}

pub(super) fn drained_line(drained: &Drained) -> String {
    let Drained { hosts, emptied, longest_s, scheduled, moved, saved, left, held_core_h } = drained;
    format!(
        "{hosts} hosts drained: {emptied} became empty, the last after {longest_s} s; {moved} VMs moved of \
         {scheduled}, {saved} ended before their turn, {left} are left; moves held {held_core_h:.2} \
         core-hours twice"
    )
}

impl Hosts {
    fn ids(&self) -> Vec<HostId> {
        self.0.iter().flat_map(|(first, last)| (*first..=*last).map(HostId)).collect()
    }
}

fn admission(text: &str) -> Result<Reserve, String> {
    let share = text.strip_prefix("reserve=").and_then(|share| share.parse().ok());
    share.and_then(Reserve::new).ok_or_else(|| "reserve=F is needed, F from 0 to 1".to_owned())
}

/// `S=what`, as milliseconds and the rest.
fn at(text: &str) -> Option<(u64, &str)> {
    let (seconds, what) = text.split_once('=')?;
    Some((seconds.parse::<u64>().ok()?.checked_mul(1000)?, what))
}

fn at_count(text: &str) -> Result<(u64, u32), String> {
    at(text)
        .and_then(|(at_ms, count)| Some((at_ms, count.parse().ok().filter(|n| *n > 0)?)))
        .ok_or_else(|| "S=N is needed: whole seconds, then 1 host or more".to_owned())
}

fn below(text: &str) -> Result<Below, String> {
    let read = text.split_once('=').and_then(|(share, hosts)| {
        let empty_share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
        let hosts = hosts.parse().ok().filter(|hosts| (1..1_000_000).contains(hosts))?;
        Some(Below { empty_share, hosts })
    });
    read.ok_or_else(|| "SHARE=K is needed: a share from 0 to 1, then 1 host or more".to_owned())
}

fn at_size(text: &str) -> Result<(u64, (Hosts, Resources)), String> {
    let read = at(text).and_then(|(at_ms, text)| {
        let (hosts, text) = text.split_once(':')?;
        let (cores, gb) = text.split_once(':')?;
        let cores = cores.parse().ok().filter(|cores| *cores > 0).map(MilliCores::from_cores);
        let size = Resources::new(cores?, MemoryKb::from_gb(gb.parse().ok()?)?);
        Some((at_ms, (hosts_of(hosts)?, size)))
    });
    read.ok_or_else(|| {
        "S=HOSTS:CORES:GB is needed: whole seconds, ids as 4 or 0-9 with commas between, 1 to 65535 cores, \
         and 0 to 100000 GB"
            .to_owned()
    })
}

/// Ids as 4 or 0-9 with commas between.
fn hosts_of(list: &str) -> Option<Hosts> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        // No cluster has more hosts than `--servers` allows.
        (first <= last && last < 1_000_000).then_some((first, last))
    });
    ranges.collect::<Option<Vec<_>>>().map(Hosts)
}

fn at_hosts(text: &str) -> Result<(u64, Hosts), String> {
    at(text).and_then(|(at_ms, list)| Some((at_ms, hosts_of(list)?))).ok_or_else(|| {
        "S=HOSTS is needed: whole seconds, then ids as 4 or 0-9 with commas between".to_owned()
    })
}

fn at_policy(text: &str) -> Result<(u64, PolicyArg), String> {
    use clap::ValueEnum as _;
    at(text)
        .and_then(|(at_ms, name)| Some((at_ms, PolicyArg::from_str(name, false).ok()?)))
        .ok_or_else(|| "S=NAME is needed: whole seconds, then a name that --policy takes".to_owned())
}

fn move_ms(text: &str) -> Result<u64, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|s| (0.0..=1e6).contains(s));
    let ms = seconds.map(|s| (s * 1e3).round() as u64);
    ms.ok_or_else(|| "a number of seconds from 0 to 1000000 is needed".to_owned())
}
