//! How good curves are on VMs that they have not learnt from.

use ballast_types::survival::{BINS, SurvivalCurve, bin_of, edge_s};
use serde::{Deserialize, Serialize};

use super::concordance::concordance;
use super::counts::LifetimeSpan;
use super::kaplan_meier::KaplanMeier;

/// No outcome counts as less likely: a curve that has seen none is wrong once, not for ever.
const LEAST: f64 = 1e-6;
/// Brier scores end where fewer than this share of the VMs could still be seen.
const SEEN: f64 = 0.1;
/// And at 14 days.
const LONGEST_S: f32 = 1_209_600.0;
/// Steps of the integral over time.
const STEPS: u16 = 64;
/// From which lifetimes on a VM is long-lived: two hours (LA-Binary), a day, a week (LAVA, section 3).
pub const LONG_S: [f32; 3] = [7_200.0, 86_400.0, 604_800.0];
/// The recall at which LAVA's appendix B compares precisions.
const RECALL: f64 = 0.7;
/// Parts of the time after the cut.
const AGES: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct ScoredVm<'a> {
    pub curve: &'a SurvivalCurve,
    pub span: LifetimeSpan,
    /// For how long it could have been seen.
    pub seen_s: f32,
    /// How old the model was when it started.
    pub model_age_s: f32,
}

/// How good curves are. NaN where nothing can be said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeScores {
    pub vms: u64,
    pub ended: u64,
    /// Mean negative log-likelihood of a VM, in nats.
    pub log_loss: f64,
    /// Integrated Brier score over time, up to `brier_until_s`: mean squared error of survival, with VMs that were
    /// lost from sight replaced by weights (Graf et al., Statistics in Medicine 18, 1999).
    pub brier: f64,
    /// The same over the logarithm of time, where minutes count as much as days.
    pub brier_log: f64,
    pub brier_until_s: f64,
    /// Harrell's C of the expected lifetime.
    pub c_index: f64,
    /// Mean error of the median lifetime in decades, of VMs that ended.
    pub log10_error: f64,
    pub long: Vec<LongScores>,
    /// How many VMs ended in each tenth of their curve; 0.1 each is best (D-calibration: Haider et al., JMLR 21, 2020).
    pub calibration: Vec<f64>,
    /// The share of VMs that would have to be in another tenth.
    pub calibration_error: f64,
    /// By the age of the model: quarters of the hold-out but the last, each VM seen for a quarter of it at most.
    pub by_model_age: Vec<AgeScores>,
}

/// Is a VM long-lived? Of VMs that could have been seen so long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongScores {
    pub from_s: f64,
    pub vms: u64,
    /// Where the probability is one half or more.
    pub precision: f64,
    pub recall: f64,
    pub f1: f64,
    pub precision_at_recall_70: f64,
    /// F1 when predicted again after 0, 12.5, 25 … 87.5 % of each VM's lifetime.
    pub f1_by_share: Vec<f64>,
}

/// Of VMs that started when the model was so old.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgeScores {
    pub until_age_s: f64,
    pub vms: u64,
    pub log_loss: f64,
    pub c_index: f64,
}

/// How likely a curve said this was, as a logarithm: that a VM ended in that time, or had not ended by then. An end that
/// is known exactly counts as one in its bin.
pub fn log_likelihood(curve: &SurvivalCurve, span: LifetimeSpan) -> f64 {
    let chance = match ends(span) {
        Some((from_s, to_s)) => f64::from(curve.at(from_s) - curve.at(to_s)),
        None => f64::from(curve.at(span.from_s)),
    };
    libm::log(chance.max(LEAST))
}

/// Between which times it ended.
fn ends(span: LifetimeSpan) -> Option<(f32, f32)> {
    let to_s = span.to_s?;
    let bin = bin_of(span.from_s).min(BINS - 1);
    let (from, to) = (edge_s(bin), edge_s(bin + 1));
    Some(if span.from_s < to_s { (span.from_s, to_s) } else { (from, to.max(to_s)) })
}

/// By how much VMs are more likely by `of` than by `than`, in the mean, in nats, and the standard error of that, where
/// all VMs of a group are one.
pub fn gain(of: &[f64], than: &[f64], groups: &[u32]) -> (f64, f64) {
    let count = of.len() as f64;
    let mean = of.iter().zip(than).map(|(a, b)| a - b).sum::<f64>() / count;
    let mut sums = vec![0.0; groups.iter().max().map_or(0, |most| *most as usize + 1)];
    for ((a, b), group) in of.iter().zip(than).zip(groups) {
        sums[*group as usize] += a - b - mean;
    }
    (mean, libm::sqrt(sums.iter().map(|sum| sum * sum).sum::<f64>()) / count)
}

impl LifetimeScores {
    pub fn of(vms: &[ScoredVm<'_>]) -> Self {
        let ended: Vec<&ScoredVm<'_>> = vms.iter().filter(|vm| vm.span.ended()).collect();
        let brier = Brier::of(vms);
        let (calibration, calibration_error) = calibration(vms);
        Self {
            vms: vms.len() as u64,
            ended: ended.len() as u64,
            log_loss: log_loss(vms),
            brier: brier.over_time(vms),
            brier_log: brier.over_log_time(vms),
            brier_until_s: brier.until_s.into(),
            c_index: c_index(vms),
            log10_error: log10_error(&ended),
            long: LONG_S.map(|from_s| LongScores::of(vms, from_s)).to_vec(),
            calibration,
            calibration_error,
            by_model_age: by_model_age(vms),
        }
    }
}

fn log_loss(vms: &[ScoredVm<'_>]) -> f64 {
    -mean(vms.iter().map(|vm| log_likelihood(vm.curve, vm.span)))
}

fn c_index(vms: &[ScoredVm<'_>]) -> f64 {
    let pair = |vm: &ScoredVm<'_>| (vm.curve.remaining_s(0.0), vm.span.middle_s(), vm.span.ended());
    concordance(&vms.iter().map(pair).collect::<Vec<_>>())
}

fn log10_error(ended: &[&ScoredVm<'_>]) -> f64 {
    let log = |time_s: f32| libm::log10(f64::from(time_s.max(1.0)));
    mean(ended.iter().map(|vm| (log(vm.curve.quantile_s(0.0, 0.5)) - log(vm.span.middle_s())).abs()))
}

/// Squared errors of survival, with the weights of VMs that were lost from sight.
struct Brier {
    /// The share of VMs that is still seen after a time.
    seen: KaplanMeier,
    until_s: f32,
}

impl Brier {
    fn of(vms: &[ScoredVm<'_>]) -> Self {
        let seen =
            KaplanMeier::of(vms.iter().map(|vm: &ScoredVm<'_>| (vm.span.middle_s(), !vm.span.ended())));
        let mut times: Vec<f32> = vms.iter().map(|vm| vm.span.middle_s()).collect();
        times.sort_unstable_by(f32::total_cmp);
        let sees = times.partition_point(|time_s| seen.after(*time_s) >= SEEN);
        let until_s = sees.checked_sub(1).map_or(0.0, |last| times[last]);
        Self { seen, until_s: until_s.min(LONGEST_S) }
    }

    fn at(&self, vms: &[ScoredVm<'_>], time_s: f32) -> f64 {
        let there = self.seen.after(time_s);
        mean(vms.iter().map(|vm| {
            let (said, middle_s) = (f64::from(vm.curve.at(time_s)), vm.span.middle_s());
            match vm.span.ended() {
                _ if middle_s > time_s => (1.0 - said) * (1.0 - said) / there,
                true => said * said / self.seen.until(middle_s),
                false => 0.0,
            }
        }))
    }

    fn over_time(&self, vms: &[ScoredVm<'_>]) -> f64 {
        let step = |n: u16| self.until_s * (f32::from(n) + 0.5) / f32::from(STEPS);
        mean((0..STEPS).map(|n| self.at(vms, step(n))))
    }

    fn over_log_time(&self, vms: &[ScoredVm<'_>]) -> f64 {
        // Bins of the grid are nearly of one width there.
        mean((8..bin_of(self.until_s)).map(|bin| self.at(vms, f32::midpoint(edge_s(bin), edge_s(bin + 1)))))
    }
}

impl LongScores {
    fn of(all: &[ScoredVm<'_>], from_s: f32) -> Self {
        let mut vms: Vec<(&ScoredVm<'_>, f32)> =
            all.iter().filter(|vm| vm.seen_s >= from_s).map(|vm| (vm, vm.curve.at(from_s))).collect();
        let long = |vm: &ScoredVm<'_>| vm.span.middle_s() >= from_s;
        let said = Said::of(vms.iter().map(|(vm, chance)| (long(vm), *chance >= 0.5)));

        vms.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (mut first, mut hits) = (0.0, 0.0);
        let mut at_recall = f64::NAN;
        for same in vms.chunk_by(|a, b| a.1 == b.1) {
            first += same.len() as f64;
            hits += same.iter().filter(|(vm, _)| long(vm)).count() as f64;
            if hits > 0.0 && hits >= RECALL * said.long {
                at_recall = hits / first;
                break;
            }
        }

        let again = |eighths: u8| {
            let each = |vm: &ScoredVm<'_>| {
                let uptime_s = vm.span.middle_s() * f32::from(eighths) / 8.0;
                (long(vm), vm.curve.conditional(uptime_s, (from_s - uptime_s).max(0.0)) >= 0.5)
            };
            Said::of(vms.iter().map(|(vm, _)| each(vm))).f1()
        };

        Self {
            from_s: from_s.into(),
            vms: vms.len() as u64,
            precision: said.hits / said.said,
            recall: said.hits / said.long,
            f1: said.f1(),
            precision_at_recall_70: at_recall,
            f1_by_share: (0..8).map(again).collect(),
        }
    }
}

/// Counts of VMs that are long-lived, that are said to be, and both.
struct Said {
    long: f64,
    said: f64,
    hits: f64,
}

impl Said {
    fn of(answers: impl Iterator<Item = (bool, bool)>) -> Self {
        let mut counts = Self { long: 0.0, said: 0.0, hits: 0.0 };
        for (long, said) in answers {
            counts.long += f64::from(u8::from(long));
            counts.said += f64::from(u8::from(said));
            counts.hits += f64::from(u8::from(long && said));
        }
        counts
    }

    fn f1(&self) -> f64 {
        2.0 * self.hits / (self.long + self.said)
    }
}

/// The share of VMs that ended in each tenth of their curve, and how far these are from a tenth each. A VM that still
/// runs is shared among the tenths that are left to it.
fn calibration(vms: &[ScoredVm<'_>]) -> (Vec<f64>, f64) {
    let mut tenths = vec![0.0; 10];
    for vm in vms {
        let (low, high) = match ends(vm.span) {
            Some((from_s, to_s)) => (f64::from(vm.curve.at(to_s)), f64::from(vm.curve.at(from_s))),
            None => (0.0, f64::from(vm.curve.at(vm.span.from_s))),
        };
        let wide = high - low;
        for (n, tenth) in tenths.iter_mut().enumerate() {
            let (from, to) = (n as f64 / 10.0, (n + 1) as f64 / 10.0);
            let whole = low >= from && (low < to || n == 9);
            let within = (high.min(to) - low.max(from)).max(0.0);
            *tenth += if wide > 1e-9 { within / wide } else { f64::from(u8::from(whole)) };
        }
    }

    let count = vms.len() as f64;
    tenths.iter_mut().for_each(|tenth| *tenth /= count);
    let error = tenths.iter().map(|tenth| (tenth - 0.1).abs()).sum::<f64>() / 2.0;
    (tenths, error)
}

fn by_model_age(vms: &[ScoredVm<'_>]) -> Vec<AgeScores> {
    let oldest = vms.iter().map(|vm| vm.model_age_s).fold(0.0, f32::max);
    // Each is looked at for as long as the last of them could be seen.
    let part_s = oldest / AGES as f32;
    let part = |n: usize| {
        let [from_s, until_s] = [n, n + 1].map(|n| n as f32 * part_s);
        let of_age = vms.iter().filter(|vm| (from_s..until_s).contains(&vm.model_age_s));
        let mut vms: Vec<ScoredVm<'_>> = of_age.copied().collect();
        for vm in vms.iter_mut().filter(|vm| vm.span.to_s.is_none_or(|to_s| to_s > part_s)) {
            vm.span = LifetimeSpan { from_s: vm.span.from_s.min(part_s), to_s: None };
        }
        AgeScores {
            until_age_s: until_s.into(),
            vms: vms.len() as u64,
            log_loss: log_loss(&vms),
            c_index: c_index(&vms),
        }
    };
    (0..AGES - 1).map(part).collect()
}

/// The mean; NaN of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[cfg(test)]
mod tests;
