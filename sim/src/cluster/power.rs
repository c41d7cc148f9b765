//! What a placement means for power: draws, capping events, and who is throttled.
//!
//! A chassis above its budget is capped as the paper caps it: every server has an even share, one above its share
//! takes its other VMs' cores to half frequency, and where that is not enough its own limit hits all cores,
//! user-facing ones too.

use ballast_types::{PowerModel, SplitMix64, VmClass};

use super::generate::ClusterVm;

/// The lowest frequency that other VMs' cores are taken to, as a share of the highest.
const FLOOR: f64 = 0.5;
/// The peak of user-facing load, as the hour of the day.
const PEAK_HOUR: f64 = 14.0;

/// What VMs use, hour by hour, such that the 95th percentile of every VM's hours is its own P95.
///
/// User-facing VMs follow the day, all with the same peak, between 0.4 and 1, up to 15 % off. Others use a uniform
/// share every hour. Both were chosen: no trace has class, size and utilisation of VMs that come and go.
#[derive(Clone, Debug)]
pub(super) struct Use {
    /// The day's course, by hour, over the P95 of it with its noise.
    day: [f64; 24],
}

impl Use {
    pub(super) fn new() -> Self {
        let course = core::array::from_fn::<f64, 24, _>(|hour| {
            let angle = 2.0 * core::f64::consts::PI * (hour as f64 - PEAK_HOUR) / 24.0;
            0.4 + 0.3 * (1.0 + libm::cos(angle))
        });
        let noises = (0..100).map(|n| noise((f64::from(n) + 0.5) / 100.0));
        let mut all: Vec<f64> = noises.flat_map(|noise| course.iter().map(move |c| c * noise)).collect();
        all.sort_by(f64::total_cmp);
        let p95 = all[all.len() * 95 / 100];
        Self { day: course.map(|c| c / p95) }
    }

    /// The VM's utilisation in this hour, 0 to 1.
    pub(super) fn at(&self, vm: &ClusterVm, hour: u32) -> f64 {
        let uniform = chance(vm.id.0, hour);
        let of_p95 = match vm.class {
            VmClass::UserFacing => self.day[(hour % 24) as usize] * noise(uniform),
            VmClass::NonUserFacing => uniform / 0.95,
        };
        (vm.p95.ratio() * of_p95).min(1.0)
    }
}

fn noise(uniform: f64) -> f64 {
    0.85 + 0.3 * uniform
}

/// Uniform in 0..1, by VM and hour.
fn chance(vm: u64, hour: u32) -> f64 {
    let word = vm.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(hour) << 40;
    (SplitMix64::finalise(word) >> 11) as f64 / (1u64 << 53) as f64
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Server {
    /// What it draws at full frequency, in watts.
    pub(super) draw_w: f64,
    /// What it sheds when its other VMs' cores are at half frequency.
    pub(super) sheddable_w: f64,
    pub(super) user_facing_cores: f64,
}

impl Server {
    pub(super) fn of(model: &PowerModel, cores: f64, vms: &[ClusterVm], usage: &Use, hour: u32) -> Self {
        let (mut user_facing, mut other, mut user_facing_cores) = (0.0, 0.0, 0.0);
        for vm in vms {
            let busy = f64::from(vm.cores) * usage.at(vm, hour);
            match vm.class {
                VmClass::UserFacing => {
                    user_facing += busy;
                    user_facing_cores += f64::from(vm.cores);
                }
                VmClass::NonUserFacing => other += busy,
            }
        }
        let per_core = model.dynamic_w() / cores;
        Self {
            draw_w: model.static_w(1.0) + per_core * (user_facing + other),
            sheddable_w: per_core * other * (1.0 - model.scale(FLOOR)),
            user_facing_cores,
        }
    }
}

/// What one chassis comes to in one hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Capping {
    /// Whether it draws more than its budget.
    pub(super) capped: bool,
    /// User-facing cores on servers that need their own limit.
    pub(super) throttled_cores: f64,
}

pub(super) fn cap(servers: &[Server], budget_w: f64) -> Capping {
    let draw_w: f64 = servers.iter().map(|server| server.draw_w).sum();
    if draw_w <= budget_w {
        return Capping::default();
    }
    let share_w = budget_w / servers.len() as f64;
    let limited = servers.iter().filter(|s| s.draw_w - s.sheddable_w > share_w);
    Capping { capped: true, throttled_cores: limited.map(|s| s.user_facing_cores).sum() }
}

/// The draw that so large a share of these exceeds: the budget that is overrun as often.
pub fn exceeded(mut draws_w: Vec<f64>, share: f64) -> f64 {
    draws_w.sort_by(|a, b| b.total_cmp(a));
    let above = libm::floor(share * draws_w.len() as f64) as usize;
    draws_w.get(above).or(draws_w.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_placement::VmKey;
    use ballast_types::Utilisation;

    fn vm(id: u64, cores: u16, class: VmClass, p95: f64) -> ClusterVm {
        let p95 = Utilisation::from_ratio(p95).unwrap();
        ClusterVm { id: VmKey(id), cores, lifetime_ms: 1, class, p95, luck: [0.0; 4] }
    }

    #[test]
    fn every_vms_hours_have_its_own_p95() {
        let usage = Use::new();
        for class in [VmClass::UserFacing, VmClass::NonUserFacing] {
            for p95 in [0.1, 0.44, 0.9] {
                let vm = vm(9, 4, class, p95);
                let mut hours: Vec<f64> = (0..24 * 300).map(|h| usage.at(&vm, h)).collect();
                hours.sort_by(f64::total_cmp);
                let seen = hours[hours.len() * 95 / 100];
                assert!((seen / p95 - 1.0).abs() < 0.02, "{class:?} {p95}: {seen}");
            }
        }
    }

    #[test]
    fn a_server_draws_by_the_papers_model_and_sheds_what_is_not_user_facing() {
        let model = PowerModel::PAPER;
        let idle = Server::of(&model, 40.0, &[], &Use::new(), 0);
        assert_eq!((idle.draw_w, idle.sheddable_w), (112.0, 0.0));
        let vms = [vm(1, 20, VmClass::UserFacing, 1.0), vm(2, 20, VmClass::NonUserFacing, 1.0)];
        let usage = Use::new();
        let [facing, other] = [0, 1].map(|n| usage.at(&vms[n], 5));
        let server = Server::of(&model, 40.0, &vms, &usage, 5);
        assert!((server.draw_w - (112.0 + 99.0 * (facing + other))).abs() < 1e-9);
        // Half frequency leaves 58 of 198 W.
        assert!((server.sheddable_w - 99.0 * other * (1.0 - 58.0 / 198.0)).abs() < 1e-9);
        assert_eq!(server.user_facing_cores, 20.0);
    }

    #[test]
    fn only_what_sheds_too_little_throttles_user_facing_cores() {
        let server = |draw_w, sheddable_w| Server { draw_w, sheddable_w, user_facing_cores: 10.0 };
        let servers = [server(250.0, 60.0), server(250.0, 20.0), server(150.0, 0.0)];
        assert_eq!(cap(&servers, 650.0), Capping::default());
        // 600 W: 200 W each; the first comes down to 190, the second to 230 only.
        assert_eq!(cap(&servers, 600.0), Capping { capped: true, throttled_cores: 10.0 });
        // The third one is above its share of 140 W as well, and has nothing to shed.
        assert_eq!(cap(&servers, 420.0).throttled_cores, 30.0);
    }

    #[test]
    fn the_budget_is_overrun_as_often_as_asked() {
        let draws: Vec<f64> = (1..=200).map(f64::from).collect();
        let budget = exceeded(draws.clone(), 0.01);
        assert_eq!(draws.iter().filter(|d| **d > budget).count(), 2);
        assert_eq!(exceeded(vec![5.0], 0.01), 5.0);
        assert_eq!(exceeded(Vec::new(), 0.01), 0.0);
    }
}
