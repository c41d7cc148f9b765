//! The loads: what user-facing and batch VMs ask for over time.

use ballast_sim::demo::{loaded, moving};
use ballast_sim::load::Profile;
use ballast_sim::plant::{PlantSpec, peak_draw};
use ballast_types::{VmClass, Watts};
use serde::Serialize;

/// Batch VMs begin in full, in seconds.
const BATCH_BEGINS_S: f64 = 20.0;
/// What batch VMs ask for before and from then on, as shares of their cores.
const BATCH: (f64, f64) = (0.2, 1.0);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(into = "&'static str")]
pub struct Load {
    name: &'static str,
    kind: Kind,
}

/// What user-facing VMs ask for; batch VMs go from 20 to 100 % at 20 s, but for waves and squares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Every 0.25 s the VMs of a server go from 10 to 50 %, or back, with a probability of 3 %. At most 60 % of
    /// the servers are high.
    Moving,
    /// 30 % at all times.
    Lasting,
    /// On all servers 10 %, then 40 %, 10 s each.
    Steps,
    /// From 20 s on straight lines between 10 and 40 %, and for batch VMs between 20 and 100 % in phase; the
    /// period in seconds.
    Wave(f64),
    /// The same in jumps.
    Square(f64),
}

impl From<Load> for &'static str {
    fn from(load: Load) -> Self {
        load.name
    }
}

impl Load {
    pub const ALL: [Self; 13] = [
        Self::new("moving", Kind::Moving),
        Self::new("lasting", Kind::Lasting),
        Self::new("steps", Kind::Steps),
        Self::new("wave-0.1", Kind::Wave(0.1)),
        Self::new("wave-0.2", Kind::Wave(0.2)),
        Self::new("wave-0.5", Kind::Wave(0.5)),
        Self::new("wave-1", Kind::Wave(1.0)),
        Self::new("wave-2", Kind::Wave(2.0)),
        Self::new("square-0.1", Kind::Square(0.1)),
        Self::new("square-0.2", Kind::Square(0.2)),
        Self::new("square-0.5", Kind::Square(0.5)),
        Self::new("square-1", Kind::Square(1.0)),
        Self::new("square-2", Kind::Square(2.0)),
    ];

    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind }
    }

    pub const fn name(self) -> &'static str {
        self.name
    }

    /// A chassis under this load. With all batch cores at their lowest frequency its highest draw is the share
    /// `floor` of the budget.
    pub(crate) fn plant(self, servers: usize, seconds: f64, seed: u64, floor: f64) -> PlantSpec {
        let user_facing = self.user_facing(servers, seconds, seed);
        let batch = self.batch(seconds);
        let mut plant = loaded(servers, |server, class| match class {
            VmClass::UserFacing => user_facing[server % user_facing.len()].clone(),
            VmClass::NonUserFacing => batch.clone(),
        });
        // One sample for every step of the plant: waves are as short as 100 ms.
        let peak = peak_draw(&plant, seconds, (seconds * 100.0) as u32, true);
        plant.budget = Watts::from_f64(peak.as_f64() / floor).unwrap_or(Watts::MAX);
        plant
    }

    fn user_facing(self, servers: usize, seconds: f64, seed: u64) -> Vec<Profile> {
        match self.kind {
            Kind::Moving => moving(servers, seconds, seed),
            Kind::Lasting => vec![Profile::Constant(0.3)],
            Kind::Steps => vec![Profile::Steps(turns(0.0, seconds, 10.0, (0.1, 0.4)).into())],
            Kind::Wave(period_s) => vec![Profile::Ramps(swing(seconds, period_s, (0.1, 0.4)).into())],
            Kind::Square(period_s) => vec![Profile::Steps(swing(seconds, period_s, (0.1, 0.4)).into())],
        }
    }

    fn batch(self, seconds: f64) -> Profile {
        match self.kind {
            Kind::Wave(period_s) => Profile::Ramps(swing(seconds, period_s, BATCH).into()),
            Kind::Square(period_s) => Profile::Steps(swing(seconds, period_s, BATCH).into()),
            _ => Profile::Steps([(0.0, BATCH.0), (BATCH_BEGINS_S, BATCH.1)].into()),
        }
    }
}

/// `(second, value)` that takes turns every `half_s` seconds, low first.
fn turns(from_s: f64, to_s: f64, half_s: f64, (low, high): (f64, f64)) -> Vec<(f64, f64)> {
    let count = ((to_s - from_s) / half_s).max(0.0) as u32;
    (0..=count).map(|n| (from_s + f64::from(n) * half_s, if n % 2 == 0 { low } else { high })).collect()
}

/// The low value until batch VMs begin, then both in turn.
fn swing(seconds: f64, period_s: f64, values: (f64, f64)) -> Vec<(f64, f64)> {
    let mut points = vec![(0.0, values.0)];
    points.extend(turns(BATCH_BEGINS_S, seconds, 0.5 * period_s, values));
    points
}
