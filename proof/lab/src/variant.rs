//! Runs of one server with options that vary.

use crate::server;
use ballast_sim::world::Violation;

/// One run to be made, by what varies in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job<V> {
    pub(crate) variant: V,
    pub(crate) job: server::Job,
}

/// What one run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run<V> {
    variant: V,
    run: server::Run,
}

impl<V: Copy> Job<V> {
    pub fn run(&self) -> Result<Run<V>, Violation> {
        Ok(Run { variant: self.variant, run: self.job.run()? })
    }
}

/// What the runs came to whose variant `counts`.
pub(crate) fn of<V: Copy>(runs: &[Run<V>], counts: impl Fn(V) -> bool) -> Vec<&server::Run> {
    runs.iter().filter(|run| counts(run.variant)).map(|run| &run.run).collect()
}
