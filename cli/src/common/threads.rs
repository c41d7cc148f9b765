//! Independent jobs on several threads, with a progress bar; results in the jobs' order.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::common::terminal::progress_bar;

/// All cores of this machine: how many threads work where nobody says.
pub fn all_cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Runs every job, at most `threads` at a time. The results are in the jobs' order, whatever the
/// number of threads. The bar is shown only where stderr is a terminal.
pub fn run<J: Sync, R: Send>(what: &str, jobs: &[J], threads: usize, job: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let template = "{msg} {wide_bar} {pos} of {len} runs, {eta} left";
    let bar = progress_bar(jobs.len() as u64, template).with_message(what.to_owned());
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(this) = jobs.get(index) else { return done };
            done.push((index, job(this)));
            bar.inc(1);
        }
    };

    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.clamp(1, jobs.len().max(1))).map(|_| scope.spawn(worker)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.flatten().collect()
    });

    bar.finish_and_clear();
    done.sort_by_key(|(index, _)| *index);

    done.into_iter().map(|(_, result)| result).collect()
}

/// The same for jobs that can fail: the first error in the jobs' order, if there is one.
pub fn run_all<J: Sync, R: Send, E: Into<anyhow::Error> + Send>(
    what: &str,
    jobs: &[J],
    threads: usize,
    job: impl Fn(&J) -> Result<R, E> + Sync,
) -> anyhow::Result<Vec<R>> {
    run(what, jobs, threads, job).into_iter().map(|result| result.map_err(Into::into)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_jobs_order_whatever_the_number_of_threads() {
        let jobs: Vec<u64> = (0..97).collect();
        let expected: Vec<u64> = jobs.iter().map(|j| j * j).collect();
        for threads in [0, 1, 2, 7, 200] {
            // Early jobs take longest, so that they end after later ones.
            let result = run("test", &jobs, threads, |job| {
                for _ in 0..(97 - job) * 50 {
                    std::hint::spin_loop();
                }
                job * job
            });
            assert_eq!(result, expected, "{threads} threads");
        }
    }

    #[test]
    fn no_jobs_are_no_results() {
        assert!(run("test", &[] as &[u8], 4, |job| *job).is_empty());
    }
}
