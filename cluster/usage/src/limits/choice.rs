//! Which recommender serves the VMs of a server best: every candidate as if it had been in service, and judged by the last week.

use super::family::{Family, Resource, Settings};
use super::job::{Bounds, JobLimit};
use super::replay::{Score, best};
use super::{DAY, UseWindow};

/// What a server chooses among: fewer than `ballast recommend` has, because each is tried on every VM's last two weeks once a day.
pub fn candidates(resource: Resource) -> Vec<Settings> {
    let window = |(share, margin)| Settings::Window { share, half_life_h: 48.0, margin };
    let windows = [(0.95, 0.15), (0.98, 0.15), (0.99, 0.15), (0.999, 0.3)].map(window);
    let peaks = [(24, 0.1), (168, 0.1), (168, 0.3)].map(|(hours, margin)| Settings::Peak { hours, margin });
    let vpas = [0.9, 0.98, 0.999].map(|share| Settings::Vpa { share, resource });
    let experts = [20.0, 50.0, 100.0, 200.0, 500.0].map(|over| Settings::Experts { over, quiet: false });
    let quiet = [50.0, 200.0, 500.0].map(|over| Settings::Experts { over, quiet: true });
    [&windows[..], &peaks, &vpas, &experts, &quiet].concat()
}

/// The settings of a server that has too little history to choose.
pub const fn fallback(resource: Resource) -> Settings {
    match resource {
        Resource::Cpu => Settings::usual(Family::Experts, resource),
        Resource::Memory => Settings::usual(Family::Vpa, resource),
    }
}

/// The limits of one VM under every candidate.
pub struct Trial {
    resource: Resource,
    jobs: Vec<JobLimit>,
}

impl Trial {
    pub fn new(resource: Resource, candidates: &[Settings], bounds: Bounds) -> Self {
        let jobs = candidates.iter().map(|settings| JobLimit::new(*settings, bounds)).collect();
        Self { resource, jobs }
    }

    /// Learns what was used. Of memory a limit that was too low would have killed a task, of which its recommender would have heard.
    pub fn observe(&mut self, window: &UseWindow<'_>) {
        for job in &mut self.jobs {
            let is_over = job.is_over(window);
            job.observe(window);
            if is_over && self.resource == Resource::Memory {
                job.handle_oom(window.number, window.peak().map_or(0.0, super::bucket::UseBucket::edge));
            }
        }
    }

    /// What each candidate came to over the last week of this VM.
    pub fn scores(&self) -> impl Iterator<Item = Score> + '_ {
        self.jobs.iter().map(JobLimit::score)
    }
}

/// The candidate that left the least unused among those that kept within `overruns`; the one with the fewest overruns where none
/// did. `None` where fewer windows were judged than are needed to see two overruns of so many allowed, or less than a week.
pub fn choose(candidates: &[Settings], trials: &[Trial], overruns: f64) -> Option<Settings> {
    let mut sums = vec![Score::default(); candidates.len()];
    for trial in trials {
        sums.iter_mut().zip(trial.scores()).for_each(|(sum, score)| sum.merge(&score));
    }
    let needed = (2.0 / overruns).max((7 * DAY) as f64);
    sums.first().filter(|sum| sum.windows() as f64 >= needed)?;
    candidates.get(best(&sums, overruns)).copied()
}

#[cfg(test)]
mod tests {
    use super::super::bucket::UseBucket;
    use super::*;

    const FREE: Bounds = Bounds { margin: 0.0, min: 0.0, max: 1.0 };

    /// A server's choice after so many days of VMs that use what `used` says of a window.
    fn after(
        days: usize,
        resource: Resource,
        overruns: f64,
        used: impl Fn(usize) -> f32,
    ) -> Option<Settings> {
        let candidates = candidates(resource);
        let mut trials: Vec<Trial> = (0..2).map(|_| Trial::new(resource, &candidates, FREE)).collect();
        for number in 0..days * DAY {
            let samples = [(UseBucket::of(used(number)).unwrap(), 1.0)];
            let window = UseWindow { number: number as u64, samples: &samples };
            trials.iter_mut().for_each(|trial| trial.observe(&window));
        }
        choose(&candidates, &trials, overruns)
    }

    #[test]
    fn what_is_allowed_decides_who_serves() {
        // Busy at one hour of each day: who knows the hour leaves least; at another hour every day nobody can know it.
        let daily = |number: usize| if number % DAY / 12 == 9 { 0.6 } else { 0.05 };
        let chosen = after(14, Resource::Cpu, 0.001, daily).unwrap();
        assert!(matches!(chosen.family(), Family::Experts | Family::Quiet), "{chosen:?}");
        let wandering = |number: usize| {
            let hour = (number / DAY * 7) % 24;
            if number % DAY / 12 == hour { 0.6 } else { 0.05 }
        };
        let strict = after(14, Resource::Cpu, 0.001, wandering).unwrap();
        let lax = after(14, Resource::Cpu, 0.1, wandering).unwrap();
        assert_ne!(strict, lax);
    }

    #[test]
    fn without_enough_history_nothing_is_chosen() {
        let even = |number: usize| 0.2 + 0.01 * (number % 3) as f32;
        for resource in [Resource::Cpu, Resource::Memory] {
            assert_eq!(after(4, resource, 0.001, even), None);
            assert!(after(9, resource, 0.001, even).is_some());
            assert_eq!(
                after(9, resource, 0.0001, even),
                None,
                "two in 10,000 windows are not seen in 16 days"
            );
        }
        assert_eq!(choose(&candidates(Resource::Cpu), &[], 0.001), None);
    }
}
