//! A batch VM: work to finish, slower at a lower frequency.

use serde::{Deserialize, Serialize};

use super::{Cursor, Profile};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchSpec {
    /// One job, in core-seconds at the highest frequency.
    pub work_core_s: f64,
    /// The share of its cores that it keeps busy while it has work, over time.
    pub demand: Profile,
    /// The share of the work that scales with the clock.
    pub frequency_bound: f64,
    /// Whether the next job starts when one is finished; otherwise the VM is idle from then on.
    pub repeat: bool,
}

impl BatchSpec {
    /// One job after the other, bound to the clock as batch work is.
    pub fn endless(work_core_s: f64, demand: Profile) -> Self {
        Self { work_core_s, demand, frequency_bound: super::BATCH_BOUND, repeat: true }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    demand: Cursor,
    job: f64,
    left: f64,
    repeat: bool,
}

impl Batch {
    pub(crate) fn new(spec: &BatchSpec) -> Self {
        let job = if spec.work_core_s > 0.0 { spec.work_core_s } else { 0.0 };
        Self { demand: Cursor::new(spec.demand.clone()), job, left: job, repeat: spec.repeat && job > 0.0 }
    }

    /// The share of its cores that it wants at second `t`; zero once all is done.
    pub(crate) fn demand(&mut self, t: f64) -> f64 {
        let demand = self.demand.at(t);
        if self.left > 0.0 { demand } else { 0.0 }
    }

    /// Takes `work` core-seconds off; gives the number of jobs that were finished.
    pub(crate) fn progress(&mut self, work: f64) -> u64 {
        self.left -= work;
        if self.left > 0.0 || work <= 0.0 {
            return 0;
        }
        if !self.repeat {
            self.left = 0.0;
            return 1;
        }
        let more = libm::floor(-self.left / self.job) + 1.0;
        self.left += more * self.job;
        more as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_finish_and_start_again() {
        let mut once =
            Batch::new(&BatchSpec { repeat: false, ..BatchSpec::endless(2.0, Profile::Constant(0.5)) });
        assert_eq!(once.demand(0.0), 0.5);
        assert_eq!((once.progress(1.5), once.progress(1.0)), (0, 1));
        assert_eq!(once.demand(1.0), 0.0);
        assert_eq!(once.progress(0.0), 0);

        let mut again = Batch::new(&BatchSpec::endless(2.0, Profile::Constant(0.5)));
        assert_eq!(again.progress(5.0), 2);
        assert_eq!(again.demand(1.0), 0.5);
    }

    #[test]
    fn a_job_of_no_work_is_idle_and_never_loops() {
        for work in [0.0, -1.0, f64::NAN] {
            let mut batch = Batch::new(&BatchSpec::endless(work, Profile::Constant(1.0)));
            assert_eq!(batch.demand(0.0), 0.0);
            batch.progress(1.0);
        }
    }
}
