//! A fixed histogram of latencies: 32 buckets an octave, so a percentile is at most 3 % off.

use serde::{Serialize, Serializer};

/// Buckets per octave, as a power of two.
const BITS: u32 = 5;
/// Up to 2^36 µs, about 19 hours.
const OCTAVES: u32 = 36;

/// Latencies of one VM's requests.
///
/// Serialises as a summary: count, mean and percentiles in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum_s: f64,
    max_s: f64,
}

fn bucket(micros: u64) -> usize {
    // Below 2^BITS µs the buckets are one microsecond wide.
    let octave = micros.max(1).ilog2().saturating_sub(BITS).min(OCTAVES - BITS - 1);
    let index = (octave << BITS) as usize + (micros >> octave) as usize;
    index.min(((OCTAVES - BITS + 1) << BITS) as usize - 1)
}

/// The lower edge of a bucket, in microseconds.
fn edge(index: usize) -> f64 {
    let index = index as u64;
    let octave = (index >> BITS).saturating_sub(1);
    ((index - (octave << BITS)) << octave) as f64
}

impl Latencies {
    pub(crate) fn add(&mut self, seconds: f64) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; ((OCTAVES - BITS + 1) << BITS) as usize];
        }
        self.buckets[bucket((seconds * 1e6) as u64)] += 1;
        self.count += 1;
        self.sum_s += seconds;
        self.max_s = self.max_s.max(seconds);
    }

    /// How many requests were answered.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean latency in milliseconds; `None` without requests.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_s * 1e3 / self.count as f64)
    }

    /// The latency in milliseconds that a share `q` of the requests stayed under; `None` without any.
    pub fn quantile_ms(&self, q: f64) -> Option<f64> {
        let rank = libm::ceil(q.clamp(0.0, 1.0) * self.count as f64).max(1.0) as u64;
        let mut below = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            if below + n >= rank {
                let within = (rank - below) as f64 / *n as f64;
                let micros = edge(index) + within * (edge(index + 1) - edge(index));
                return Some((micros / 1e3).min(self.max_s * 1e3));
            }
            below += n;
        }
        None
    }

    pub fn p95_ms(&self) -> Option<f64> {
        self.quantile_ms(0.95)
    }

    /// Adds another VM's latencies, for a figure over all of them.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_s += other.sum_s;
        self.max_s = self.max_s.max(other.max_s);
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Summary {
            count: u64,
            mean_ms: Option<f64>,
            p50_ms: Option<f64>,
            p95_ms: Option<f64>,
            p99_ms: Option<f64>,
        }
        Summary {
            count: self.count,
            mean_ms: self.mean_ms(),
            p50_ms: self.quantile_ms(0.5),
            p95_ms: self.p95_ms(),
            p99_ms: self.quantile_ms(0.99),
        }
        .serialize(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_of_a_uniform_line() {
        let mut l = Latencies::default();
        assert_eq!(l.p95_ms(), None);
        for ms in 1..=1000 {
            l.add(f64::from(ms) / 1e3);
        }
        for (q, want) in [(0.5, 500.0), (0.95, 950.0), (1.0, 1000.0)] {
            let got = l.quantile_ms(q).unwrap();
            assert!((got / want - 1.0).abs() < 0.02, "{q}: {got}");
        }
        assert!((l.mean_ms().unwrap() - 500.5).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_value(micros in 0u64..1 << 36) {
            let index = bucket(micros);
            prop_assert!(edge(index) <= micros as f64);
            prop_assert!((micros as f64) < edge(index + 1));
        }

        #[test]
        fn no_latency_panics(seconds in proptest::num::f64::ANY) {
            Latencies::default().add(seconds);
        }
    }
}
