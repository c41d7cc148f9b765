//! A VM as its history tells it: what was known at its arrival, and what came of it.

use ballast_types::VmClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

pub const DAY_S: i64 = 86_400;
/// So many whole weekdays must have passed before a VM's class can be told from its use (paper, III-B).
pub const WEEKDAYS: u32 = 5;
/// A VM that lived this long counts as long-lived (paper, III-B).
pub const LONG_LIVED_S: i64 = 7 * DAY_S;
/// No time is further from 1970 than this, in seconds: three thousand years.
const FAR_S: i64 = 100_000_000_000;

#[derive(Clone, Debug, PartialEq)]
pub struct VmHistory {
    /// Its name; another VM may have it again once this one has ended.
    pub id: String,
    /// Who pays for it: the account whose earlier VMs say what to expect.
    pub subscription: String,
    /// With which others of its subscription it was deployed; empty where nobody told.
    pub deployment: String,
    /// When it arrived, in Unix seconds.
    pub arrival_s: i64,
    /// When it ended; `None` while it runs.
    pub end_s: Option<i64>,
    pub cores: u32,
    pub memory_gb: f64,
    /// The name of its size or family, as the provider sells it.
    pub vm_type: String,
    /// What its use showed it to be (`ballast label`); `None` where nobody could tell.
    pub class: Option<VmClass>,
    /// Its mean CPU utilisation, in percent of its cores; `None` where it was not measured.
    pub avg_cpu: Option<f64>,
    /// The 95th percentile of its CPU utilisation, in percent; `None` where it was not measured.
    pub p95_cpu: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Error)]
#[error("{field} = {value}: {allowed}")]
pub struct VmError {
    pub field: &'static str,
    /// What was found there.
    pub value: String,
    pub allowed: String,
}

impl VmError {
    pub(crate) fn new(field: &'static str, value: &dyn ToString, allowed: impl Into<String>) -> Self {
        Self { field, value: value.to_string(), allowed: allowed.into() }
    }
}

impl VmHistory {
    /// Whether its values are possible.
    pub fn check(&self) -> Result<(), VmError> {
        let name = |field, value: &str| match value {
            "" => Err(VmError::new(field, &"\"\"", "a name is needed")),
            _ => Ok(()),
        };

        name("vm_id", &self.id)?;
        name("subscription", &self.subscription)?;

        if !(-FAR_S..=FAR_S).contains(&self.arrival_s) {
            let allowed = format!("Unix seconds, at most {FAR_S} from 1970");
            return Err(VmError::new("arrival_s", &self.arrival_s, allowed));
        }

        if let Some(end) = self.end_s
            && !(self.arrival_s..=FAR_S).contains(&end)
        {
            let allowed = format!("Unix seconds, not before arrival_s = {}", self.arrival_s);
            return Err(VmError::new("end_s", &end, allowed));
        }

        size(f64::from(self.cores), self.memory_gb)?;

        for (field, value) in [("avg_cpu", self.avg_cpu), ("p95_cpu", self.p95_cpu)] {
            if let Some(value) = value
                && !(0.0..=100.0).contains(&value)
            {
                return Err(VmError::new(field, &value, "a percentage from 0 to 100, or blank"));
            }
        }

        Ok(())
    }

    /// When its class could be told: after five whole weekdays, if it lived that long.
    pub fn aged_s(&self) -> Option<i64> {
        let aged = aged_s(self.arrival_s);
        self.end_s.is_none_or(|end| end >= aged).then_some(aged)
    }

    /// When its use counts as known: it has ended, or is five weekdays old.
    pub fn observed_s(&self) -> i64 {
        let aged = aged_s(self.arrival_s);
        self.end_s.map_or(aged, |end| end.min(aged))
    }

    /// The bucket of its P95.
    pub fn bucket(&self) -> Option<Bucket> {
        self.p95_cpu.map(Bucket::of)
    }
}

/// Whether a VM may have this size.
pub(crate) fn size(cores: f64, memory_gb: f64) -> Result<(), VmError> {
    if !(1.0..=65_536.0).contains(&cores) {
        return Err(VmError::new("cores", &cores, "1 to 65536"));
    }
    if !(memory_gb > 0.0 && memory_gb <= 1e6) {
        return Err(VmError::new("memory_gb", &memory_gb, "above 0, at most 1000000"));
    }
    Ok(())
}

/// The first moment at which a VM that arrived then has seen five whole weekdays (Monday to Friday, from
/// midnight to midnight UTC).
pub fn aged_s(arrival_s: i64) -> i64 {
    let mut day = arrival_s.div_euclid(DAY_S) + i64::from(arrival_s.rem_euclid(DAY_S) > 0);
    let mut seen = 0;
    while seen < WEEKDAYS {
        // 1 January 1970 was a Thursday.
        seen += u32::from((day + 3).rem_euclid(7) < 5);
        day += 1;
    }
    day * DAY_S
}

/// Finds a VM whose name another one has at the same time: the places of both, the earlier one first.
pub fn overlap(vms: &[VmHistory]) -> Option<(usize, usize)> {
    let mut by_id: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, vm) in vms.iter().enumerate() {
        by_id.entry(&vm.id).or_default().push(place);
    }
    for places in by_id.values_mut().filter(|places| places.len() > 1) {
        places.sort_by_key(|place| vms[*place].arrival_s);
        for pair in places.windows(2) {
            let end = vms[pair[0]].end_s;
            if end.is_none_or(|end| end > vms[pair[1]].arrival_s) {
                return Some((pair[0].min(pair[1]), pair[0].max(pair[1])));
            }
        }
    }
    None
}

/// VMs of a subscription that arrive within so many seconds of the first are one deployment where nobody told.
const TOGETHER_S: i64 = 300;

/// The deployment of each of these VMs, numbered from 0. What is learnt of one VM of a deployment is nearly
/// known of the others: who scores a model keeps them on one side.
pub fn deployments(vms: &[VmHistory]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by_key(|place| vms[*place].arrival_s);
    let mut open: BTreeMap<(&str, &str), (i64, u32)> = BTreeMap::new();
    let (mut count, mut numbers) = (0, vec![0; vms.len()]);

    for place in order {
        let vm = &vms[place];
        let key = (vm.subscription.as_str(), vm.deployment.as_str());
        let same = |first: i64| !vm.deployment.is_empty() || vm.arrival_s - first <= TOGETHER_S;
        let number = match open.get(&key) {
            Some((first, number)) if same(*first) => *number,
            _ => {
                open.insert(key, (vm.arrival_s, count));
                count += 1;
                count - 1
            }
        };
        numbers[place] = number;
    }

    numbers
}

/// One of the four buckets of P95 utilisation: 0–25, 26–50, 51–75, 76–100 % (paper, III-B). Written as its
/// number, 1 to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Bucket(u8);

impl Bucket {
    /// All of them, the least busy first.
    pub const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
    /// The busiest: what is assumed where nobody knows.
    pub const HIGHEST: Self = Self(3);

    /// The bucket of a utilisation in percent; what lies between two edges belongs to the higher one.
    pub fn of(percent: f64) -> Self {
        Self((libm::ceil(percent / 25.0) - 1.0).clamp(0.0, 3.0) as u8)
    }

    /// 0 to 3.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// 1 to 4.
    pub fn number(self) -> u8 {
        self.0 + 1
    }

    /// Its upper edge: what a careful scheduler reckons with.
    pub fn upper_percent(self) -> u8 {
        self.number() * 25
    }
}

impl From<Bucket> for u8 {
    fn from(bucket: Bucket) -> Self {
        bucket.number()
    }
}

impl TryFrom<u8> for Bucket {
    type Error = String;
    fn try_from(number: u8) -> Result<Self, String> {
        match number {
            1..=4 => Ok(Self(number - 1)),
            _ => Err(format!("{number} is no bucket: 1 to 4 is allowed")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn vm() -> VmHistory {
        VmHistory {
            id: "a".into(),
            subscription: "s".into(),
            deployment: String::new(),
            arrival_s: 0,
            end_s: None,
            cores: 2,
            memory_gb: 8.0,
            vm_type: "general".into(),
            class: None,
            avg_cpu: Some(10.0),
            p95_cpu: Some(30.0),
        }
    }

    #[test]
    fn five_whole_weekdays_from_any_day_of_the_week() {
        // Days since 1970: 4 is a Monday.
        for (arrival, aged) in [
            (4 * DAY_S, 9),            // Monday, midnight: Monday to Friday
            (4 * DAY_S + 1, 12),       // a second later: Tuesday to Friday, and Monday
            (8 * DAY_S + 43_200, 16),  // Friday noon: the whole next week
            (9 * DAY_S + 43_200, 16),  // Saturday
            (10 * DAY_S + 43_200, 16), // Sunday
            (-3 * DAY_S, 2),           // a Monday before 1970
        ] {
            assert_eq!(aged_s(arrival), aged * DAY_S, "{arrival}");
        }
    }

    #[test]
    fn a_vm_is_known_when_it_ended_or_aged() {
        let aged = aged_s(0);
        assert_eq!((vm().aged_s(), vm().observed_s()), (Some(aged), aged));
        let short = VmHistory { end_s: Some(100), ..vm() };
        assert_eq!((short.aged_s(), short.observed_s()), (None, 100));
        let just = VmHistory { end_s: Some(aged), ..vm() };
        assert_eq!((just.aged_s(), just.observed_s()), (Some(aged), aged));
    }

    #[test]
    fn buckets_have_their_upper_edge() {
        let cases = [(0.0, 1), (25.0, 1), (25.1, 2), (50.0, 2), (50.5, 3), (75.0, 3), (76.0, 4), (100.0, 4)];
        for (percent, number) in cases {
            let bucket = Bucket::of(percent);
            assert_eq!(bucket.number(), number, "{percent}");
            assert!(percent <= f64::from(bucket.upper_percent()));
        }
        assert_eq!(Bucket::try_from(4), Ok(Bucket::HIGHEST));
        assert!(Bucket::try_from(0).is_err() && Bucket::try_from(5).is_err());
    }

    #[test]
    fn impossible_values_are_named() {
        assert_eq!(vm().check(), Ok(()));
        for (vm, field) in [
            (VmHistory { id: String::new(), ..vm() }, "vm_id"),
            (VmHistory { subscription: String::new(), ..vm() }, "subscription"),
            (VmHistory { arrival_s: i64::MAX, ..vm() }, "arrival_s"),
            (VmHistory { end_s: Some(-1), ..vm() }, "end_s"),
            (VmHistory { cores: 0, ..vm() }, "cores"),
            (VmHistory { memory_gb: f64::NAN, ..vm() }, "memory_gb"),
            (VmHistory { memory_gb: 0.0, ..vm() }, "memory_gb"),
            (VmHistory { avg_cpu: Some(-0.1), ..vm() }, "avg_cpu"),
            (VmHistory { p95_cpu: Some(f64::NAN), ..vm() }, "p95_cpu"),
        ] {
            assert_eq!(vm.check().unwrap_err().field, field);
        }
    }

    #[test]
    fn a_name_may_come_again_but_not_twice_at_a_time() {
        let first = VmHistory { end_s: Some(100), ..vm() };
        let after = VmHistory { arrival_s: 100, ..vm() };
        let other = VmHistory { id: "b".into(), ..vm() };
        assert_eq!(overlap(&[after.clone(), other.clone(), first.clone()]), None);
        let within = VmHistory { arrival_s: 99, ..vm() };
        assert_eq!(overlap(&[within, other, first]), Some((0, 2)));
        assert_eq!(overlap(&[vm(), after]), Some((0, 1)));
    }

    #[test]
    fn a_deployment_is_what_was_told_or_what_arrived_together() {
        let at = |arrival_s, deployment: &str| VmHistory { arrival_s, deployment: deployment.into(), ..vm() };
        let other = VmHistory { subscription: "t".into(), ..at(0, "") };
        let vms = [at(900, ""), at(0, ""), other, at(300, ""), at(0, "d"), at(DAY_S, "d"), at(301, "")];
        let found = deployments(&vms);
        assert_eq!(found[1], found[3]);
        assert_eq!(found[4], found[5]);
        let distinct: std::collections::BTreeSet<u32> = found.iter().copied().collect();
        assert_eq!(distinct.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
