//! What a server would draw in the step that is about to begin: for the oracle, which may know it.

use super::{Server, Work};
use crate::load::{Latencies, stretch};
use crate::plant::{STEP_S, ServerSpec};

/// One batch core in the step that is about to begin.
#[derive(Clone, Copy, Debug)]
pub(in crate::plant) struct BatchCore {
    pub(in crate::plant) core: usize,
    /// Watts at full use and the highest frequency.
    watts: f64,
    /// Watts of idle draw that go with its frequency.
    idle: f64,
    /// How busy it would be at the highest frequency.
    use_: f64,
    /// The share of its work that scales with the clock, where its use grows as it slows down.
    bound: f64,
}

impl BatchCore {
    /// What it would add to the server's idle draw at a frequency share, whose `f^a` is `scale`.
    pub(in crate::plant) fn draw_w(&self, share: f64, scale: f64) -> f64 {
        let work = (self.use_ * stretch(self.bound, share)).min(1.0) * self.watts * scale;
        work + self.idle * (share - 1.0)
    }
}

impl Server {
    /// The batch cores as they would be from second `t` for one step.
    pub(in crate::plant) fn batch_cores_at(&mut self, t: f64, into: &mut Vec<BatchCore>) {
        into.clear();
        let (watts, idle) = (self.watts_per_core(), self.idle_per_core());
        for vm in self.vms.iter_mut().filter(|vm| !vm.user_facing) {
            let (all, bound) = match &mut vm.work {
                Work::Batch(batch) => (Some(batch.demand(t)), 0.0),
                Work::Series(line) => (Some(line.at(t)), vm.bound),
                Work::Queue(_) => (None, vm.bound),
                Work::Nothing => (Some(0.0), 0.0),
            };

            let busy = match &vm.work {
                Work::Queue(queue) => dry_run(queue, t, 1.0),
                _ => Vec::new(),
            };

            into.extend(vm.cores.iter().enumerate().map(|(n, core)| {
                let use_ = all.unwrap_or_else(|| busy.get(n).map_or(0.0, |s| s / STEP_S));
                BatchCore { core: *core, watts, idle, use_, bound }
            }));
        }
    }

    /// What the user-facing VMs would add to the server's idle draw with their cores at a frequency share.
    pub(in crate::plant) fn user_facing_w_at(&mut self, t: f64, share: f64) -> f64 {
        let watts = self.watts_per_core() * self.model.scale(share);
        let cores = self.user_facing_cores().count() as f64;
        let idle = self.idle_per_core() * cores * (share - 1.0);
        let mut busy = 0.0;
        for vm in self.vms.iter_mut().filter(|vm| vm.user_facing) {
            busy += match &mut vm.work {
                Work::Queue(queue) => dry_run(queue, t, share).iter().sum::<f64>() / STEP_S,
                Work::Batch(batch) => batch.demand(t) * vm.cores.len() as f64,
                Work::Nothing => 0.0,
                Work::Series(line) => {
                    (line.at(t) * stretch(vm.bound, share)).min(1.0) * vm.cores.len() as f64
                }
            };
        }
        busy * watts + idle
    }

    /// What it would draw in the step that begins at second `t` if nothing held its cores.
    pub(in crate::plant) fn unrestricted_w(&mut self, t: f64) -> f64 {
        if self.kept_busy.is_some() {
            return self.power_w;
        }
        let mut batch = Vec::new();
        self.batch_cores_at(t, &mut batch);
        let batch_w: f64 = batch.iter().map(|core| core.draw_w(1.0, 1.0)).sum();
        self.idle_w() + batch_w + self.user_facing_w_at(t, 1.0)
    }

    /// Which of the server's cores work for user-facing VMs.
    pub(in crate::plant) fn user_facing_cores(&self) -> impl Iterator<Item = usize> + '_ {
        self.vms.iter().filter(|vm| vm.user_facing).flat_map(|vm| vm.cores.iter().copied())
    }

    /// What it draws beside its cores' work, all at their highest frequency.
    pub(in crate::plant) fn idle_w(&self) -> f64 {
        self.model.static_w(1.0)
    }

    fn idle_per_core(&self) -> f64 {
        (self.model.static_w(1.0) - self.model.static_w(0.0)) / self.cores.len().max(1) as f64
    }

    /// Caps one core at a step of its ladder.
    pub(in crate::plant) fn set_level(&mut self, spec: &ServerSpec, core: usize, level: usize) {
        if let Some(c) = spec.cores.get(core) {
            self.cap_core(core, &c.ladder, level.min(c.ladder.top()));
        }
    }
}

/// For how long each core of a queue would be busy in one step.
fn dry_run(queue: &crate::load::Queue, t: f64, share: f64) -> Vec<f64> {
    let mut copy = queue.clone();
    copy.run(t, STEP_S, |_| share, &mut Latencies::default(), &mut 0);
    copy.busy().to_vec()
}
