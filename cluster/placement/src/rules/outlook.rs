//! For how long VMs and hosts are expected to be there, as shares at the horizons of survival curves.

use ballast_types::Instant;
use ballast_types::survival::{Curves, HORIZON_S, HORIZONS, HORIZONS_S};

use super::guests::{Guest, left_s};
use crate::{ExpectedEnd, HostId};

/// Up to which time each horizon stands for the time about it; the last is 14 days.
const UNTIL_S: [f32; HORIZONS] = until();
/// For how much time each horizon stands.
const WEIGHTS_S: [f32; HORIZONS] = weights();

const fn until() -> [f32; HORIZONS] {
    let mut until = [HORIZON_S; HORIZONS];
    let mut n = 0;
    while n + 1 < HORIZONS {
        until[n] = f32::midpoint(HORIZONS_S[n], HORIZONS_S[n + 1]);
        n += 1;
    }
    until
}

const fn weights() -> [f32; HORIZONS] {
    let mut weights = UNTIL_S;
    let mut n = HORIZONS - 1;
    while n > 0 {
        weights[n] = UNTIL_S[n] - UNTIL_S[n - 1];
        n -= 1;
    }
    weights
}

type Shares = [f32; HORIZONS];

/// The chance that a VM still lives at each horizon.
fn survival(guest: &Guest, curves: &Curves, now: Instant) -> Shares {
    match guest.end {
        Some(ExpectedEnd::Curve(id)) => *curves.survival(id, guest.uptime_s(now)),
        Some(ExpectedEnd::At(exit)) => {
            // Of the horizon's own time the share that it lives.
            let left_s = left_s(now, exit) as f32;
            core::array::from_fn(|n| ((left_s - (UNTIL_S[n] - WEIGHTS_S[n])) / WEIGHTS_S[n]).clamp(0.0, 1.0))
        }
        None => [1.0; HORIZONS],
    }
}

/// What is expected of a VM: its survival, each share times the horizon's time.
pub(super) struct Outlook(Shares);

impl Outlook {
    pub(super) fn of(guest: &Guest, curves: &Curves, now: Instant) -> Self {
        let survival = survival(guest, curves, now);
        Self(core::array::from_fn(|n| survival[n] * WEIGHTS_S[n]))
    }

    /// For how long it is expected to live, where what exceeds 14 days counts as 14 days.
    pub(super) fn expected_s(&self) -> f64 {
        f64::from(sum(&self.0))
    }
}

/// The chance that each host would be free at each horizon.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlooks {
    free: Vec<Shares>,
}

impl Outlooks {
    /// What the guests of a host come to.
    pub(super) fn set(&mut self, host: HostId, guests: &[Guest], curves: &Curves, now: Instant) {
        let at = host.0 as usize;
        if self.free.len() <= at {
            self.free.resize(at + 1, [1.0; HORIZONS]);
        }
        self.free[at] = [1.0; HORIZONS];
        guests.iter().for_each(|guest| self.join(host, guest, curves, now));
    }

    /// One more guest of a host.
    pub(super) fn join(&mut self, host: HostId, guest: &Guest, curves: &Curves, now: Instant) {
        let free = &mut self.free[host.0 as usize];
        match guest.end {
            // Nearly all VMs are of this kind, so that nothing is copied.
            Some(ExpectedEnd::Curve(id)) => join(free, curves.survival(id, guest.uptime_s(now))),
            _ => join(free, &survival(guest, curves, now)),
        }
    }

    /// For how long a host is expected to be busy, at most 14 days.
    pub(super) fn busy_s(&self, host: HostId) -> f64 {
        let free = &self.free[host.0 as usize];
        f64::from(sum(&core::array::from_fn(|n| (1.0 - free[n]) * WEIGHTS_S[n])))
    }

    /// For how long a host is expected to be busy for this VM alone.
    pub(super) fn extra_s(&self, host: HostId, vm: &Outlook) -> f64 {
        let free = &self.free[host.0 as usize];
        f64::from(sum(&core::array::from_fn(|n| free[n] * vm.0[n])))
    }
}

fn join(free: &mut Shares, lives: &Shares) {
    free.iter_mut().zip(lives).for_each(|(free, lives)| *free *= 1.0 - lives);
}

/// In eight lanes, so that it is done eight at a time.
fn sum(values: &Shares) -> f32 {
    let mut lanes = [0.0; 8];
    for eight in values.chunks_exact(8) {
        lanes.iter_mut().zip(eight).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().sum()
}
