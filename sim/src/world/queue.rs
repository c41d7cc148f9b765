//! The queue of what is still to come, ordered by instant and then by the order of scheduling.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use ballast_types::Instant;

/// Future events. Payloads stay where they are; the heap moves only small keys.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    scheduled: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), scheduled: 0 }
    }
}

impl<T> Queue<T> {
    /// Puts `event` at `at`; of two at one instant the one put first comes first.
    pub(crate) fn put(&mut self, at: Instant, event: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(event);
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, slot)));
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(crate) fn take(&mut self) -> Option<(Instant, T)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        let event = self.slots[slot as usize].take()?;
        self.free.push(slot);
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_instant_and_then_in_the_order_of_scheduling() {
        let mut queue = Queue::default();
        for (ms, name) in [(5, "a"), (3, "b"), (5, "c"), (1, "d")] {
            queue.put(Instant::from_millis(ms), name);
        }
        assert_eq!(queue.next_at(), Some(Instant::from_millis(1)));
        assert_eq!(queue.take().map(|(_, n)| n), Some("d"));
        // A slot that is used again does not change the order.
        queue.put(Instant::from_millis(3), "e");
        let rest: Vec<_> = std::iter::from_fn(|| queue.take()).map(|(_, n)| n).collect();
        assert_eq!(rest, ["b", "e", "a", "c"]);
        assert!(queue.next_at().is_none());
    }
}
