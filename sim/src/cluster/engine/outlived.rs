//! VMs that outlive what was predicted of them.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use ballast_placement::{ExpectedEnd, Scheduler, VmKey, VmRequest};
use ballast_types::Instant;

use crate::cluster::noise::Noise;

/// Predicts VMs anew when their time is over, and they are not.
#[derive(Debug)]
pub(super) struct Outlived {
    noise: Noise,
    /// When a VM's prediction is over, when it leaves indeed, and how often it was predicted.
    queue: BinaryHeap<Reverse<(u64, u64, VmKey, u32)>>,
}

impl Outlived {
    pub(super) fn new(noise: Noise) -> Self {
        Self { noise, queue: BinaryHeap::new() }
    }

    /// A VM has come, or was predicted anew.
    pub(super) fn expect(&mut self, vm: VmKey, end: Option<ExpectedEnd>, leaves_ms: u64, drawn: u32) {
        let Some(ExpectedEnd::At(exit)) = end else { return };
        // At its very instant a VM has left already.
        let over_ms = exit.as_nanos().div_ceil(1_000_000);
        if over_ms < leaves_ms {
            self.queue.push(Reverse((over_ms, leaves_ms, vm, drawn)));
        }
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.queue.peek().map(|next| next.0.0)
    }

    pub(super) fn predict(&mut self, now_ms: u64, scheduler: &mut Scheduler) {
        while let Some(Reverse((_, leaves_ms, vm, drawn))) =
            self.queue.peek().copied().filter(|next| next.0.0 <= now_ms)
        {
            self.queue.pop();
            let Some(resident) = scheduler.cluster().resident(vm) else { continue };
            let end = Some(self.noise.end(vm.0, drawn + 1, now_ms, leaves_ms - now_ms));
            let changed = scheduler.change(Instant::from_millis(now_ms), &VmRequest { end, ..resident.vm });
            debug_assert!(changed.is_ok(), "{changed:?}");
            self.expect(vm, end, leaves_ms, drawn + 1);
        }
    }
}
