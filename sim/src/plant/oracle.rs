//! The physical limit: p-states chosen with knowledge of the step that is about to begin.
//!
//! No real controller can do this. It says how much of what a policy loses was lost for want of watts, and
//! how much for want of knowledge.

use super::PlantSpec;
use super::server::{BatchCore, Server};

/// One step of a core's ladder: its share of the highest frequency, and `share^a`.
type Step = (f64, f64);

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    /// What the servers may draw together.
    limit_w: f64,
    /// The ladder of every core of every server.
    ladders: Vec<Vec<Vec<Step>>>,
    /// The batch cores of every server in this step; kept for its memory.
    batch: Vec<Vec<BatchCore>>,
}

impl Oracle {
    pub(super) fn new(spec: &PlantSpec, limit_w: f64) -> Self {
        let ladder = |core: &ballast_types::Core, model: &ballast_types::PowerModel| {
            let share = |n| core.ladder.khz(n).share_of(core.ladder.max());
            (0..core.ladder.len()).map(|n| (share(n), model.scale(share(n)))).collect()
        };
        let ladders =
            (spec.servers.iter()).map(|s| s.cores.iter().map(|core| ladder(core, &s.model)).collect());
        Self { limit_w, ladders: ladders.collect(), batch: vec![Vec::new(); spec.servers.len()] }
    }

    /// Caps the cores for the step that begins at second `t`: batch cores at the highest p-states that
    /// fit, all alike but for some that are one higher; user-facing ones are lowered, all alike, only
    /// when the floor of the others is not enough.
    pub(super) fn fit(&mut self, t: f64, spec: &PlantSpec, servers: &mut [Server]) {
        for (server, batch) in servers.iter_mut().zip(&mut self.batch) {
            server.batch_cores_at(t, batch);
        }
        let top = self.ladders.iter().flatten().map(Vec::len).max().unwrap_or(1) - 1;
        let mut high = top;
        let mut rest = self.rest_w(t, servers, high);

        while high > 0 && rest + self.batch_w(0) > self.limit_w {
            high -= 1;
            rest = self.rest_w(t, servers, high);
        }

        let fits = |level: usize| self.batch_w(level) + rest <= self.limit_w;
        let level = (1..=top).rev().find(|level| fits(*level)).unwrap_or(0);
        let mut left = self.limit_w - rest - self.batch_w(level);

        for (n, server) in servers.iter_mut().enumerate() {
            for core in server.user_facing_cores().collect::<Vec<_>>() {
                server.set_level(&spec.servers[n], core, high);
            }
            for core in &self.batch[n] {
                let more = self.core_w(n, core, level + 1) - self.core_w(n, core, level);
                let raised = level < top && more <= left;
                left -= if raised { more } else { 0.0 };
                server.set_level(&spec.servers[n], core.core, level + usize::from(raised));
            }
        }
    }

    /// All but the batch cores' work, with user-facing cores at `high`.
    fn rest_w(&self, t: f64, servers: &mut [Server], high: usize) -> f64 {
        let mut watts = 0.0;
        for (n, server) in servers.iter_mut().enumerate() {
            let share = self.ladders[n].first().map_or(1.0, |ladder| step(ladder, high).0);
            watts += server.idle_w() + server.user_facing_w_at(t, share);
        }
        watts
    }

    fn batch_w(&self, level: usize) -> f64 {
        let all = self.batch.iter().enumerate();
        all.flat_map(|(n, cores)| cores.iter().map(move |c| self.core_w(n, c, level))).sum()
    }

    fn core_w(&self, server: usize, core: &BatchCore, level: usize) -> f64 {
        let (share, scale) = step(&self.ladders[server][core.core], level);
        core.draw_w(share, scale)
    }
}

/// Every core free.
pub(super) fn lift(spec: &PlantSpec, servers: &mut [Server]) {
    for (server, spec) in servers.iter_mut().zip(&spec.servers) {
        for core in 0..spec.cores.len() {
            server.set_level(spec, core, usize::MAX);
        }
    }
}

fn step(ladder: &[Step], level: usize) -> Step {
    ladder.get(level).or(ladder.last()).copied().unwrap_or((1.0, 1.0))
}
