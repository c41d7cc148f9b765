//! Work shared among threads. Every item has a place of its own for its result, so who did it does not show.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

/// Does `work` once for each of `items`, on at most `threads` threads; the next free one takes the next item.
pub(crate) fn for_each<I>(items: I, threads: NonZeroUsize, work: impl Fn(I::Item) + Sync)
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
{
    let threads = threads.get().min(items.len());
    if threads <= 1 {
        return items.for_each(work);
    }
    let queue = Mutex::new(items);
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(item) = take() {
            work(item);
        }
    };

    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once() {
        for threads in [1, 2, 5] {
            let mut done = vec![0; 100];
            let threads = NonZeroUsize::new(threads).unwrap();
            for_each(done.iter_mut().enumerate(), threads, |(n, done)| *done += n);
            assert_eq!(done, (0..100).collect::<Vec<_>>());
        }
    }
}
