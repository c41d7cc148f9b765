//! Chassis made of VMs whose CPU use was measured one by one: no chassis' power over days is public.
//!
//! VMs are dealt to servers. Where all have been dealt they are shuffled and dealt again. Nobody is moved in time:
//! what VMs do together in one week stays together, so that a month unlike the others is one here too.

use ballast_planner::Chassis;
use ballast_predict::month::p95;
use ballast_types::PowerModel;

use super::weeks::WEEK_S;
use super::{Chance, draws_of, stream};
use ballast_sim::cluster;
use ballast_sim::rng::Stream;
use ballast_sim::verify::{Draws, ServerLoads};

/// A VM of which more is missing in the history or in the later weeks is left out.
const GAPS: f64 = 0.2;
/// A chassis has no reading where this share of its allocated cores has none.
const UNKNOWN: f64 = 0.1;
/// No factor beyond this is looked for.
const FACTOR_MAX: f64 = 1_000.0;

/// One VM, as it was measured: shares of its cores, 0 to 1; NaN is a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredVm {
    pub cores: u16,
    pub user_facing: bool,
    pub history: Vec<f32>,
    pub held_out: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    History,
    /// Those that came later.
    HeldOut,
}

/// VMs to make chassis of, in whole weeks.
#[derive(Clone, Debug)]
pub struct Population {
    period_s: u32,
    vms: Vec<MeasuredVm>,
    left_out: usize,
}

impl Population {
    /// All of them that have cores and enough readings in either part. What is beyond whole weeks is cut off;
    /// a part that lacks less than a day of its last week is filled up with gaps.
    pub fn new(vms: Vec<MeasuredVm>, period_s: u32) -> Self {
        let all = vms.len();
        let week = (WEEK_S / period_s.max(1)) as usize;
        let whole = |values: &mut Vec<f32>| {
            let weeks = (values.len() + week / 7) / week;
            values.resize(weeks * week, f32::NAN);
        };
        let enough = |values: &[f32]| {
            let gaps = values.iter().filter(|v| v.is_nan()).count();
            !values.is_empty() && gaps as f64 <= GAPS * values.len() as f64
        };
        let vms = vms.into_iter().filter_map(|mut vm| {
            whole(&mut vm.history);
            whole(&mut vm.held_out);
            (vm.cores > 0 && enough(&vm.history) && enough(&vm.held_out)).then_some(vm)
        });
        let vms: Vec<MeasuredVm> = vms.collect();
        Self { period_s, left_out: all - vms.len(), vms }
    }

    pub fn vms(&self) -> &[MeasuredVm] {
        &self.vms
    }

    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    pub fn weeks(&self, part: Part) -> usize {
        self.vms.first().map_or(0, |vm| vm.part(part).len() / self.week())
    }

    const fn week(&self) -> usize {
        (WEEK_S / self.period_s) as usize
    }

    /// Deals VMs to `chassis` chassis of this kind, each until the next VM would be too much, and every one
    /// to the server with the fewest allocated cores. Who does not fit into an empty chassis is left out.
    pub fn pack(&self, seed: u64, chassis: u32, rack: Rack) -> Fleet {
        let capacity = (f64::from(rack.servers * rack.cores) * rack.alloc) as u32;
        let fits = |vm: &usize| u32::from(self.vms[*vm].cores) <= capacity.min(rack.cores);
        let all: Vec<usize> = (0..self.vms.len()).filter(fits).collect();
        let (mut deck, mut decks) = (Vec::new(), 0);
        let mut fleet = Fleet { rack, chassis: Vec::new(), cores: 0 };

        for _ in 0..chassis {
            let mut servers = vec![(0, Vec::new()); rack.servers as usize];
            let mut allocated = 0;
            loop {
                if deck.is_empty() {
                    deck = shuffled(&all, &mut stream(seed, Chance::Packing, decks));
                    decks += 1;
                }

                let emptiest = servers.iter_mut().min_by_key(|(taken, _)| *taken);
                let (Some(next), Some((taken, placed))) = (deck.last().copied(), emptiest) else {
                    break;
                };
                let cores = u32::from(self.vms[next].cores);

                if allocated + cores > capacity || *taken + cores > rack.cores {
                    break;
                }
                deck.pop();
                placed.push(next);
                *taken += cores;
                allocated += cores;
            }

            fleet.cores += u64::from(allocated);
            fleet.chassis.push(servers.into_iter().map(|(_, placed)| placed).collect());
        }

        fleet
    }

    /// What a chassis of these VMs is, from their classes and their P95 in the history, weighted by cores.
    ///
    /// With a `factor` of utilisation a VM counts with at most all of its cores, and allocated are as many
    /// more.
    pub fn estimate(&self, fleet: &Fleet, factor: f64, server: PowerModel) -> Chassis {
        let [mut cores, mut busy] = [[0.0; 2]; 2];
        for vm in &self.vms {
            let class = usize::from(vm.user_facing);
            let p95 = p95(&vm.history).unwrap_or(1.0);
            cores[class] += f64::from(vm.cores);
            busy[class] += f64::from(vm.cores) * (factor * p95).min(1.0);
        }

        let share = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let packed = fleet.alloc();
        let alloc = (packed * factor).min(1.0);
        let utilisation = |class: usize| share(busy[class], cores[class]) * share(packed, alloc);

        Chassis {
            servers: fleet.rack.servers,
            server,
            alloc,
            beta: share(cores[1], cores[0] + cores[1]),
            util_user_facing: utilisation(1),
            util_non_user_facing: utilisation(0),
            ..Chassis::default()
        }
    }
}

impl MeasuredVm {
    fn part(&self, part: Part) -> &[f32] {
        match part {
            Part::History => &self.history,
            Part::HeldOut => &self.held_out,
        }
    }
}

fn shuffled(vms: &[usize], chance: &mut Stream) -> Vec<usize> {
    let mut deck = vms.to_vec();
    for n in (1..deck.len()).rev() {
        deck.swap(n, chance.below(n + 1));
    }
    deck
}

/// Cores for VMs of which nobody told any: seeded, with the shares of the paper's Table I.
pub fn made_cores(seed: u64, vm: u32) -> u16 {
    cluster::made_cores(&mut stream(seed, Chance::Cores, vm))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rack {
    pub servers: u32,
    pub cores: u32,
    /// The share of cores that is allocated, at most.
    pub alloc: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    rack: Rack,
    /// VMs by chassis and server.
    chassis: Vec<Vec<Vec<usize>>>,
    cores: u64,
}

impl Fleet {
    /// The share of cores that is allocated.
    pub fn alloc(&self) -> f64 {
        let all = self.chassis.len() as u64 * u64::from(self.rack.servers * self.rack.cores);
        self.cores as f64 / all.max(1) as f64
    }

    /// How busy every server is, when these weeks of the population follow each other.
    pub fn busy(&self, of: &Population, part: Part, weeks: &[usize]) -> Busy {
        let chassis = self.chassis.iter().map(|servers| {
            let week = of.week();
            let mut unknown = vec![0_u32; weeks.len() * week];
            let mut allocated = 0;
            let mut busy = Vec::new();

            for placed in servers {
                let mut server = vec![[0.0_f32; 2]; unknown.len()];
                for vm in placed {
                    let vm = &of.vms[*vm];
                    let (cores, values) = (u32::from(vm.cores), vm.part(part));
                    let (weight, class) =
                        (f32::from(vm.cores) / self.rack.cores as f32, usize::from(!vm.user_facing));
                    let mean = mean(values);
                    allocated += cores;

                    for (slot, (server, unknown)) in
                        server.chunks_mut(week).zip(unknown.chunks_mut(week)).enumerate()
                    {
                        let from = weeks[slot] * week;
                        let played = values.get(from..from + week).unwrap_or_default();
                        for ((server, unknown), value) in server.iter_mut().zip(unknown).zip(played) {
                            if value.is_nan() {
                                server[class] += weight * mean;
                                *unknown += cores;
                            } else {
                                server[class] += weight * value;
                            }
                        }
                    }
                }

                busy.push(server);
            }

            let missing = |cores: &u32| f64::from(*cores) > UNKNOWN * f64::from(allocated);

            (busy, unknown.iter().map(missing).collect())
        });

        Busy { chassis: chassis.collect() }
    }
}

/// The mean of what is there.
fn mean(values: &[f32]) -> f32 {
    let there = values.iter().filter(|v| !v.is_nan()).map(|v| f64::from(*v));
    (there.clone().sum::<f64>() / there.count().max(1) as f64) as f32
}

/// How busy servers are with user-facing VMs and with others: shares of a server, in its chassis, with where
/// readings are missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Busy {
    /// By chassis: servers' shares, and where there is no reading.
    chassis: Vec<(Servers, Vec<bool>)>,
}

/// Both classes' shares by server and unit.
type Servers = Vec<Vec<[f32; 2]>>;

/// Both classes' shares of a server, were they busier by `factor`: together no more than all of it.
fn busier(factor: f64, [user_facing, others]: [f32; 2]) -> [f32; 2] {
    let factor = (factor as f32).min(1.0 / (user_facing + others).max(f32::MIN_POSITIVE));
    [factor * user_facing, factor * others]
}

impl Busy {
    /// What the chassis draw, were all VMs busier by `factor`. A server is never busier than all of its
    /// cores.
    pub fn draws(&self, server: &PowerModel, factor: f64) -> Vec<Draws> {
        let one = |number| draws_of(number, self.watts(number, server, factor));
        (0..self.chassis.len()).map(one).collect()
    }

    pub fn loaded(&self, server: &PowerModel, factor: f64) -> Vec<Draws> {
        let loads = |(servers, _): &(Servers, _)| {
            let scaled = |units: &Vec<[f32; 2]>| units.iter().map(|both| busier(factor, *both)).collect();
            ServerLoads::new(servers.iter().map(scaled).collect::<Vec<_>>())
        };
        let draws = self.draws(server, factor).into_iter();
        draws.zip(&self.chassis).map(|(draws, chassis)| draws.with_loads(loads(chassis))).collect()
    }

    /// The same of one chassis in watts; NaN is a missing reading.
    fn watts(&self, chassis: usize, server: &PowerModel, factor: f64) -> impl Iterator<Item = f64> {
        let (servers, missing) = &self.chassis[chassis];
        let mut busy = vec![0.0_f32; missing.len()];
        for server in servers {
            for (sum, both) in busy.iter_mut().zip(server) {
                *sum += busier(factor, *both).iter().sum::<f32>();
            }
        }
        let (idle_w, dynamic_w) = (servers.len() as f64 * server.idle_w, server.dynamic_w());
        let draw = move |(busy, missing): (f32, &bool)| {
            if *missing { f64::NAN } else { idle_w + dynamic_w * f64::from(busy) }
        };
        busy.into_iter().zip(missing).map(draw)
    }

    /// The factor with which the chassis draw `mean_w` on average; `None` where no factor does.
    pub fn factor(&self, server: &PowerModel, mean_w: f64) -> Option<f64> {
        let mean = |factor: f64| {
            let all = (0..self.chassis.len()).flat_map(|n| self.watts(n, server, factor));
            let there = all.filter(|w| !w.is_nan());
            let (sum, count) = there.fold((0.0, 0_u64), |(sum, n), w| (sum + w, n + 1));
            sum / count.max(1) as f64
        };
        let (mut low, mut high) = (0.0, FACTOR_MAX);
        if !(mean(low)..=mean(high)).contains(&mean_w) {
            return None;
        }
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if mean(middle) < mean_w { low = middle } else { high = middle }
        }
        Some(high)
    }
}
