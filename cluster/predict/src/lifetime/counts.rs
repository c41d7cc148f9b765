//! VMs counted by bins of uptime: how many were there, and how many ended.

use ballast_types::survival::{BINS, bin_of, edge_s};

/// As strong as so many VMs, a cell is drawn to the wider category. A prototype's value, taken over; no sweep chose it.
pub const SHRINKAGE: f64 = 20.0;
/// Bins on each side of one: a fourfold of uptime altogether.
const ABOUT: usize = 4;
/// No category's hazard counts as larger.
const SURELY: f64 = 1.0 - 1e-9;

/// What is known of one VM's lifetime, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LifetimeSpan {
    /// It lived at least so long.
    pub from_s: f32,
    /// And at most so long; `None` if nobody saw its end. Equal to `from_s` if the end is known exactly. In between
    /// every second is as likely as any other.
    pub to_s: Option<f32>,
}

impl LifetimeSpan {
    pub fn ended(self) -> bool {
        self.to_s.is_some()
    }

    /// The middle of what is possible, or how long it was seen.
    pub fn middle_s(self) -> f32 {
        self.to_s.map_or(self.from_s, |to_s| f32::midpoint(self.from_s, to_s))
    }
}

/// VMs by bin.
#[derive(Clone, Debug)]
pub struct Counts {
    ends: [f64; BINS],
    /// VMs that were there in this whole bin, or ended in it, and in no later one.
    last: [f64; BINS],
    /// Of VMs that were last seen in this bin, the share of the bin, added up.
    part: [f64; BINS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { ends: [0.0; BINS], last: [0.0; BINS], part: [0.0; BINS] }
    }
}

impl Counts {
    /// Counts one VM of which nothing is known after it had lived for `seen_s`.
    pub fn add(&mut self, span: LifetimeSpan, seen_s: f32) {
        let LifetimeSpan { from_s, to_s: Some(to_s) } = span else {
            return self.add_running(span.from_s.min(seen_s), 1.0);
        };

        if from_s >= seen_s {
            self.add_running(seen_s, 1.0);
        } else if to_s <= seen_s {
            self.add_ended(from_s, to_s, 1.0);
        } else {
            // Whether it had ended by then is not known either.
            let ended = f64::from((seen_s - from_s) / (to_s - from_s));
            self.add_ended(from_s, seen_s, ended);
            self.add_running(seen_s, 1.0 - ended);
        }
    }

    fn add_ended(&mut self, from_s: f32, to_s: f32, weight: f64) {
        // Whoever outlived the grid did not end in it.
        let (first, end) = (bin_of(from_s), bin_of(to_s));
        for bin in first..=end {
            let within = to_s.min(edge_s(bin + 1)) - from_s.max(edge_s(bin));
            let share = if first == end { 1.0 } else { f64::from(within / (to_s - from_s)) };
            if bin < BINS {
                self.ends[bin] += weight * share;
            }
            self.last[bin.min(BINS - 1)] += weight * share;
        }
    }

    fn add_running(&mut self, seen_s: f32, weight: f64) {
        let bin = bin_of(seen_s);
        if bin > 0 {
            self.last[bin - 1] += weight;
        }
        if bin < BINS {
            self.part[bin] += weight * f64::from((seen_s - edge_s(bin)) / (edge_s(bin + 1) - edge_s(bin)));
        }
    }

    /// Of the VMs that were there in each bin, which share ended in it; drawn to what `wider` says, as if [`SHRINKAGE`]
    /// more VMs had ended so. What `wider` says is first raised or lowered as the bins about it ask.
    pub fn hazards(&self, wider: &[f64; BINS]) -> [f64; BINS] {
        let there = self.there();
        let expected: [f64; BINS] = std::array::from_fn(|bin| there[bin] * wider[bin]);

        std::array::from_fn(|bin| {
            let about = bin.saturating_sub(ABOUT)..BINS.min(bin + ABOUT + 1);
            let ends: f64 = self.ends[about.clone()].iter().sum();
            let times = (ends + SHRINKAGE) / (expected[about].iter().sum::<f64>() + SHRINKAGE);
            let drawn_to = -libm::expm1(times * libm::log1p(-wider[bin].min(SURELY)));
            (self.ends[bin] + SHRINKAGE * drawn_to) / (there[bin] + SHRINKAGE)
        })
    }

    /// How many VMs were there in each bin.
    fn there(&self) -> [f64; BINS] {
        let (mut there, mut later) = (self.part, 0.0);
        for bin in (0..BINS).rev() {
            later += self.last[bin];
            there[bin] += later;
        }
        there
    }

    /// Where nobody was seen, the root goes on as the last fourfold of uptime with enough VMs, as a power of the uptime:
    /// the hazards to draw the root to. Of nothing it is 1/t (Pareto, α = 1).
    pub fn prior(&self) -> [f64; BINS] {
        let there = self.there();
        let last = (4..BINS).rev().find(|bin| there[*bin] >= SHRINKAGE);
        let window = last.map_or(0..0, |last| last.saturating_sub(7).max(4)..last + 1);
        // As if SHRINKAGE VMs had ended as α = 1 says. Whoever ends in a bin was there for half of it.
        let (mut ends, mut lived) = (SHRINKAGE, SHRINKAGE);
        for bin in window {
            ends += self.ends[bin];
            let there = there[bin] - self.ends[bin] / 2.0;
            lived += there * libm::log(f64::from(edge_s(bin + 1) / edge_s(bin)));
        }

        let power = (ends / lived).clamp(0.1, 4.0);
        std::array::from_fn(|bin| {
            let longer = f64::from(edge_s(bin.max(1)) / edge_s(bin + 1));
            1.0 - libm::pow(longer, power)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from_s: f32, to_s: Option<f32>) -> LifetimeSpan {
        LifetimeSpan { from_s, to_s }
    }

    /// The hazards without shrinkage, of bins 0 to 4, times those that were there.
    fn hazard(vms: &[(LifetimeSpan, f32)], bin: usize, there: f64) -> f64 {
        let mut counts = Counts::default();
        vms.iter().for_each(|(span, seen_s)| counts.add(*span, *seen_s));
        counts.hazards(&[0.0; BINS])[bin] * (there + SHRINKAGE)
    }

    #[test]
    fn each_vm_counts_in_the_bins_that_it_was_in() {
        // Bins of 16 s. One ends in the second, one in the first or second, one runs after half of the second.
        let exact = (span(20.0, Some(20.0)), 100.0);
        let between = (span(8.0, Some(24.0)), 100.0);
        let running = (span(24.0, None), 100.0);
        let all = [exact, between, running];
        assert_eq!(hazard(&all, 0, 3.0), 0.5);
        assert_eq!(hazard(&all, 1, 1.0 + 0.5 + 0.5), 1.5);
        assert_eq!(hazard(&all, 2, 0.0), 0.0);
    }

    #[test]
    fn what_came_after_the_last_look_is_not_counted() {
        // Ends at 20 s, was seen for 8 s: there for half of the first bin.
        let early = [(span(20.0, Some(20.0)), 8.0)];
        assert_eq!((hazard(&early, 0, 0.5), hazard(&early, 1, 0.0)), (0.0, 0.0));
        // Ends between 0 and 32 s, was seen for 16 s: it had ended with half a chance.
        let half = [(span(0.0, Some(32.0)), 16.0)];
        assert_eq!((hazard(&half, 0, 1.0), hazard(&half, 1, 0.0)), (0.5, 0.0));
    }

    #[test]
    fn whoever_outlives_the_grid_ends_in_no_bin() {
        let far = [(span(1e9, Some(1e9)), 1e9), (span(1e9, None), 1e9)];
        assert!((0..BINS).all(|bin| hazard(&far, bin, 2.0) == 0.0));
    }

    #[test]
    fn where_nobody_was_seen_the_curve_goes_on() {
        let nothing = Counts::default().prior();
        assert!((nothing[71] - (1.0 - 7.0 / 8.0)).abs() < 1e-6);

        // 3,000 VMs of which a quarter lives twice as long (α = 2), seen up to two hours.
        let mut counts = Counts::default();
        for n in 0..3000 {
            let lives = 64.0 / ((n as f32 + 0.5) / 3000.0).sqrt();
            counts.add(span(lives, Some(lives)), 7_200.0);
        }
        let prior = counts.prior();
        let power = libm::log(1.0 - prior[71]) / libm::log(7.0 / 8.0);
        assert!((1.6..2.2).contains(&power), "{power}");
    }
}
