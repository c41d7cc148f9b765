//! The plant against its specification.

use super::*;
use ballast_types::{Core, Ladder, OnExtreme, PowerModel, ServerId};

const MHZ: fn(u32) -> KiloHertz = KiloHertz::from_mhz;

/// 2 × 20 cores, 1.2 to 2.4 GHz, one VM on every core.
fn server(load: Load) -> ServerSpec {
    let ladder = Ladder::stepped(MHZ(1200), MHZ(2400), MHZ(100)).unwrap();
    let cores: Vec<_> = (0..40).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
    let vm = VmLoad {
        vcpus: None,
        id: VmId::new("vm").unwrap(),
        class: VmClass::NonUserFacing,
        throttle_order: 0,
        cores: cores.iter().map(|c| c.id).collect(),
        on_extreme: OnExtreme::None,
        load,
    };
    let id = ServerId::new("s0").unwrap();
    ServerSpec { id, model: PowerModel::PAPER, sockets: 2, cores, vms: vec![vm] }
}

/// One server, one big supply, no fans.
fn one(load: Load) -> PlantSpec {
    let none = Watts::ZERO;
    PlantSpec {
        servers: vec![server(load)],
        supplies: vec![SupplySpec::active(Watts::from_whole(1000))],
        shared: SharedSpec { fans_idle: none, fans_full: none, switch: none },
        meter: SensorSpec::default(),
        supply_meter: SensorSpec::default(),
        hardware_caps: true,
        budget: Watts::from_whole(300),
    }
}

fn constant(u: f64) -> Load {
    Load::Batch(BatchSpec::endless(1e9, Profile::Constant(u)))
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn cap_all(plant: &mut Plant, khz: KiloHertz) {
    for n in 0..40 {
        plant.set_core_cap(0, CoreId(n), khz);
    }
}

#[test]
fn a_server_draws_what_the_paper_measured() {
    for (u, mhz, want) in [
        (0.0, 2400, 112.0),
        (1.0, 2400, 310.0),
        (0.0, 1200, 111.0),
        (1.0, 1200, 169.0),
        (1.0, 1800, 110.0 + 1.5 + 118.9),
    ] {
        let mut plant = Plant::new(one(constant(u)), 1);
        cap_all(&mut plant, MHZ(mhz));
        plant.advance(ms(20));
        let got = plant.server_power(0).as_f64();
        assert!((got - want).abs() < 0.1, "u {u} at {mhz} MHz: {got} W, not {want}");
    }
}

#[test]
fn a_server_that_is_kept_busy_draws_by_the_model_and_its_vms_stand_still() {
    let mut plant = Plant::new(one(constant(1.0)), 1);
    cap_all(&mut plant, MHZ(1800));
    plant.keep_busy(0, Some(0.25));
    plant.advance(ms(10));
    let (before, start) = (plant.cpu_us(0), plant.vm_usage_us(0, &VmId::new("vm").unwrap()));
    plant.advance(ms(1015));
    let want = PowerModel::PAPER.power(0.25, 0.75);
    assert!((plant.server_power(0).as_f64() - want.as_f64()).abs() < 0.01);
    let (busy, all) = plant.cpu_us(0);

    // A quarter of 40 cores for 1.005 s.
    assert_eq!(all - before.1, 40 * 1_005_000);
    assert!((busy - before.0).abs_diff(10 * 1_005_000) < 10, "{busy} {before:?}");
    assert_eq!(plant.vm_usage_us(0, &VmId::new("vm").unwrap()), start);
    plant.keep_busy(0, Some(f64::NAN));
    plant.advance(ms(1030));
    assert!((plant.server_power(0).as_f64() - 111.5).abs() < 0.01);
    plant.keep_busy(0, None);
    plant.advance(ms(1050));
    assert!(plant.server_power(0).as_f64() > 200.0);
    plant.keep_busy(9, Some(1.0));
    assert_eq!(plant.cpu_us(9), (0, 0));
}

#[test]
fn conversion_is_best_at_part_load_and_never_free() {
    let supply = SupplySpec::active(Watts::from_whole(1000));
    let efficiency = |output: f64| output / supply.input_w(output);
    assert!((0.935..0.945).contains(&efficiency(400.0)), "{}", efficiency(400.0));
    assert!(efficiency(400.0) > efficiency(100.0) && efficiency(400.0) > efficiency(950.0));
    assert!((0.89..0.91).contains(&efficiency(100.0)));

    let mut plant = Plant::new(one(constant(1.0)), 1);
    plant.advance(ms(20));
    let want = supply.input_w(310.0);
    assert!((plant.power().as_f64() - want).abs() < 0.01);
}

/// Three servers at full load on three supplies and one in standby.
fn fed(rated: i64) -> PlantSpec {
    let rated = Watts::from_whole(rated);
    let mut supplies = vec![SupplySpec::active(rated); 2];
    supplies.push(SupplySpec::standby(rated));
    PlantSpec { servers: vec![server(constant(1.0)); 3], supplies, ..one(constant(1.0)) }
}

#[test]
fn a_lost_feed_shifts_its_load_to_the_others() {
    let mut plant = Plant::new(fed(1000), 1);
    plant.advance(ms(2000));
    let states = |p: &Plant| [0, 1, 2].map(|n| p.supply_meter(n)).map(|r| (r.state, r.input.as_f64()));
    let [a, b, c] = states(&plant);
    assert_eq!([a.0, b.0, c.0], [SupplyState::Active, SupplyState::Active, SupplyState::Standby]);
    assert!((a.1 / b.1 - 1.0).abs() < 0.1 && a.1 > 400.0, "{a:?} {b:?}");
    assert!((1.0..8.0).contains(&c.1), "standby draws a few watts: {c:?}");

    plant.fail_supply(0, true);
    plant.advance(ms(4000));
    let [a, b, c] = states(&plant);
    assert_eq!([a.0, b.0, c.0], [SupplyState::Failed, SupplyState::Active, SupplyState::Active]);
    assert_eq!(a.1, 0.0);
    assert!(c.1 > 400.0, "the standby supply took over: {c:?}");

    plant.fail_supply(1, true);
    plant.fail_supply(2, true);
    plant.advance(ms(4020));
    assert_eq!(plant.power(), Watts::ZERO, "no feed, no draw");

    for n in 0..3 {
        plant.fail_supply(n, false);
    }
    plant.advance(ms(6000));
    assert_eq!(states(&plant)[2].0, SupplyState::Standby);
}

#[test]
fn overloaded_supplies_slow_every_core_by_themselves() {
    // Two of 550 W carry about 990 W; one alone cannot.
    let mut plant = Plant::new(fed(550), 1);
    plant.advance(ms(1000));
    assert_eq!(plant.truth().hardware_engaged_s, 0.0);
    plant.fail_supply(0, true);
    plant.fail_supply(2, true);
    plant.advance(ms(2000));
    assert!(plant.power() <= Watts::from_whole(555), "{}", plant.power());
    assert!(plant.truth().batch_throttled_core_s.supply > 0.0);
    assert!(plant.truth().hardware_engaged_s > 0.9);
    plant.fail_supply(0, false);
    plant.advance(ms(4000));
    assert_eq!(plant.core_khz(0, CoreId(0)), MHZ(2400), "and lets go again");

    let mut free = Plant::new(PlantSpec { hardware_caps: false, ..fed(550) }, 1);
    free.fail_supply(0, true);
    free.fail_supply(2, true);
    free.advance(ms(2000));
    assert!(free.power() > Watts::from_whole(900), "without hardware caps nothing acts");
}

/// One VM of each class on half of the cores, mixed over both packages.
fn mixed() -> PlantSpec {
    let mut spec = one(constant(1.0));
    let vms = &mut spec.servers[0].vms;
    vms[0].cores = (0..40).step_by(2).map(CoreId).collect();
    vms.push(VmLoad {
        vcpus: None,
        id: VmId::new("web").unwrap(),
        class: VmClass::UserFacing,
        throttle_order: 0,
        cores: (1..40).step_by(2).map(CoreId).collect(),
        on_extreme: OnExtreme::None,
        load: Load::Profile(Profile::Constant(0.8)),
    });
    spec
}

#[test]
fn rapl_settles_within_two_seconds_and_hits_every_core() {
    let mut plant = Plant::new(mixed(), 1);
    plant.advance(ms(1000));
    let before = plant.server_power(0).as_f64();
    assert!(before > 285.0, "{before}");

    // Packages draw 25 W idle each; together they may draw 150 W.
    let limit = Watts::from_whole(75);

    for package in 0..2 {
        plant.set_package_limit(0, package, Some(limit));
    }
    let mut settled = None;
    let mut last = [0, 1].map(|p| plant.package_energy(0, p));

    for step in 1..=300u64 {
        plant.advance(ms(1000 + step * 10));
        let now = [0, 1].map(|p| plant.package_energy(0, p));
        let over = [0, 1].iter().any(|p| {
            let watts = now[*p].since_wrapping(last[*p], Microjoules::new(u64::MAX)).over(STEP);
            watts.is_none_or(|w| w > limit.ppm(1_020_000))
        });

        settled = if over { None } else { settled.or(Some(step * 10)) };
        last = now;
    }

    let settled = settled.expect("the limit is kept");
    assert!((200..2000).contains(&settled), "settled after {settled} ms");
    let (web, batch) = (plant.core_khz(0, CoreId(1)), plant.core_khz(0, CoreId(0)));
    assert!(web < MHZ(2400) && web == batch, "{web} {batch}");
    let held = plant.truth().user_facing_throttled_core_s;
    assert!(held.rapl > 30.0 && held.software == 0.0, "{held:?}");

    plant.set_package_limit(0, 0, None);
    plant.set_package_limit(0, 1, None);
    plant.advance(ms(8000));
    assert_eq!(plant.core_khz(0, CoreId(1)), MHZ(2400));
    assert!((plant.server_power(0).as_f64() - before).abs() < 1.0);
}

#[test]
fn a_slot_limit_holds_the_whole_server_and_is_told_apart() {
    let mut plant = Plant::new(mixed(), 1);
    plant.set_slot_cap(0, Some(Watts::from_whole(200)));
    plant.advance(ms(4000));
    assert!((195.0..204.0).contains(&plant.server_power(0).as_f64()), "{}", plant.server_power(0));
    let held = plant.truth().user_facing_throttled_core_s;
    assert!(held.out_of_band > 30.0 && held.total() == held.out_of_band, "{held:?}");

    // A limit that nothing reaches holds nobody.
    let mut calm = Plant::new(mixed(), 1);
    calm.set_slot_cap(0, Some(Watts::from_whole(400)));
    calm.set_package_limit(0, 0, Some(Watts::from_whole(400)));
    calm.advance(ms(4000));
    assert_eq!(calm.truth().hardware_engaged_s, 0.0);

    let mut off = Plant::new(PlantSpec { hardware_caps: false, ..mixed() }, 1);
    off.set_slot_cap(0, Some(Watts::from_whole(200)));
    off.set_package_limit(0, 0, Some(Watts::from_whole(30)));
    off.advance(ms(4000));
    assert!(off.server_power(0) > Watts::from_whole(285));
    assert_eq!(off.truth().user_facing_throttled_core_s.total(), 0.0);
}

#[test]
fn an_impossible_limit_stops_at_the_lowest_frequency() {
    let mut plant = Plant::new(mixed(), 1);
    plant.set_slot_cap(0, Some(Watts::from_whole(-5)));
    plant.set_package_limit(0, 7, Some(Watts::ZERO));
    plant.advance(ms(10_000));
    assert_eq!(plant.core_khz(0, CoreId(3)), MHZ(800));
}

#[test]
fn software_caps_lower_their_cores_only_and_round_down_to_a_step() {
    let mut plant = Plant::new(mixed(), 1);
    plant.set_core_cap(0, CoreId(0), KiloHertz::new(1_799_999));
    plant.set_core_cap(0, CoreId(2), MHZ(1));
    plant.set_core_cap(0, CoreId(4), MHZ(9999));
    plant.set_core_cap(0, CoreId(99), MHZ(1200));
    plant.set_core_cap(9, CoreId(0), MHZ(1200));
    plant.advance(ms(1010));
    for (core, mhz) in [(0, 1700), (1, 2400), (2, 1200), (4, 2400)] {
        assert_eq!(plant.core_khz(0, CoreId(core)), MHZ(mhz), "core {core}");
    }
    let truth = plant.truth();
    assert!((truth.batch_throttled_core_s.software - 2.0).abs() < 1e-9);
    assert_eq!(truth.user_facing_throttled_core_s.total(), 0.0);
    let ratio = (18.0 + 1700.0 / 2400.0 + 0.5) / 20.0;
    assert!((truth.batch_frequency_ratio_end - ratio).abs() < 1e-9);
}

#[test]
fn a_line_stretches_as_frequency_falls_and_batch_work_takes_longer() {
    let mut line = one(Load::Profile(Profile::Constant(0.4)));
    line.servers[0].vms[0].class = VmClass::UserFacing;
    for (spec, mhz, want) in [
        (one(Load::Profile(Profile::Constant(0.4))), 2400, 0.4),
        (one(Load::Profile(Profile::Constant(0.4))), 1200, 0.72),
        (one(Load::Profile(Profile::Constant(0.9))), 1200, 1.0),
        (line, 1200, 0.62),
    ] {
        let mut plant = Plant::new(spec, 1);
        cap_all(&mut plant, MHZ(mhz));
        plant.advance(ms(2000));
        let got = plant.vm_utilisation(0, 0).ratio();
        assert!((got - want).abs() < 1e-3, "{mhz}: {got}, not {want}");
    }

    // The demand that is met is the work done: 40 cores at 0.4, 0.9, and at most 1 of a half-speed core.
    for (demand, mhz, per_s) in [(0.4, 2400, 16.0), (0.4, 1200, 16.0), (0.9, 1200, 40.0 / 1.8)] {
        let mut plant = Plant::new(one(Load::Profile(Profile::Constant(demand))), 1);
        cap_all(&mut plant, MHZ(mhz));

        // A cap acts from the second step on.
        plant.advance(ms(10));
        let before = plant.truth().vms[0].work_core_s;
        plant.advance(ms(2010));
        let work = plant.truth().vms[0].work_core_s - before;
        assert!((work - 2.0 * per_s).abs() < 1e-6, "{demand} at {mhz}: {work}");
        let energy = plant.truth().mean_power_w.as_f64() * 2.01;
        assert!((plant.energy_j() - energy).abs() < 0.01, "{} J, not {energy}", plant.energy_j());
    }

    let done_after = |mhz| {
        let job = BatchSpec { repeat: false, ..BatchSpec::endless(200.0, Profile::Constant(1.0)) };
        let mut plant = Plant::new(one(Load::Batch(job)), 1);
        cap_all(&mut plant, MHZ(mhz));

        (1..).find(|n| {
            plant.advance(ms(n * 10));
            plant.truth().vms[0].jobs == 1
        })
    };

    let (fast, slow) = (done_after(2400).unwrap(), done_after(1200).unwrap());
    assert!((499..=502).contains(&fast), "200 core-seconds on 40 cores: {fast}");
    assert!((898..=902).contains(&slow), "1.8 times as long at half frequency: {slow}");
}

#[test]
fn queues_answer_later_at_a_lower_frequency() {
    let p95 = |mhz| {
        let queue = QueueSpec::new(Profile::Constant(0.55));
        let mut plant = Plant::new(one(Load::Queue(queue)), 1);
        cap_all(&mut plant, MHZ(mhz));
        plant.advance(ms(10_000));
        plant.truth().vms[0].latency.p95_ms().unwrap()
    };
    assert!(p95(1200) > 1.4 * p95(2400), "{} {}", p95(1200), p95(2400));
}

#[test]
fn meters_lag_refresh_and_round() {
    let exact = SensorSpec { noise_ppm: 0, ..SensorSpec::default() };

    // The load jumps at one second.
    let jump = Load::Batch(BatchSpec::endless(1e9, Profile::Steps([(0.0, 0.0), (1.0, 1.0)].into())));
    let mut plant = Plant::new(PlantSpec { meter: exact, ..one(jump) }, 1);
    let (mut moved, mut settled, mut refreshes) = (None, None, Vec::new());

    for n in 0..300 {
        plant.advance(ms(n * 10));
        let reading = plant.server_meter(0);
        assert_eq!(reading.watts.milli() % 100, 0, "a multiple of the quantum");

        if refreshes.last() != Some(&reading.refreshed_at) {
            refreshes.push(reading.refreshed_at);
        }
        if reading.watts > Watts::from_whole(113) {
            moved = moved.or(Some(n * 10));
        }
        if reading.watts == Watts::from_whole(310) {
            settled = settled.or(Some(n * 10));
        }
    }

    // At the earliest one lag after the jump; at the latest one more whole window and its phase.
    assert!((1200..=1400).contains(&moved.unwrap()), "{moved:?}");
    assert!((1400..=1600).contains(&settled.unwrap()), "{settled:?}");
    assert!(refreshes[1..].windows(2).all(|w| w[1] - w[0] == Duration::from_millis(200)));
    assert!(refreshes.len() > 12);
}

#[test]
fn meters_are_noisy_by_as_much_as_they_say_and_each_by_itself() {
    let mut plant = Plant::new(fed(1000), 1);
    let mut errors = [const { Vec::new() }; 3];
    for n in 1..1500 {
        plant.advance(ms(n * 200));
        for (server, errors) in errors.iter_mut().enumerate() {
            errors.push(plant.server_meter(server).watts.as_f64() / 310.0 - 1.0);
        }
    }
    for errors in &errors {
        let n = errors.len() as f64;
        let mean = errors.iter().sum::<f64>() / n;
        let sd = libm::sqrt(errors.iter().map(|e| e * e).sum::<f64>() / n);
        assert!(mean.abs() < 0.001 && (0.009..0.011).contains(&sd), "{mean} {sd}");
    }
    assert!(errors[0] != errors[1]);
}

#[test]
fn energy_is_power_over_time_and_runs_on_within_a_step() {
    let mut plant = Plant::new(one(constant(0.5)), 1);
    plant.advance(ms(1000));
    let total = |p: &Plant| {
        [0, 1].map(|n| p.package_energy(0, n).get() + p.dram_energy(0, n).get()).iter().sum::<u64>()
    };
    // 50 of the 112 idle watts and all dynamic power are in the packages, of which RAPL counts 94 %;
    // 10 W are in their memory.
    let watts = 0.94 * (50.0 + 99.0) + 10.0;
    let before = total(&plant);
    assert!((before as f64 / 1e6 - watts).abs() < 0.01, "{before}");
    plant.advance(Instant::from_nanos(1_003_000_000));
    let after = total(&plant);
    assert!(((after - before) as f64 / 1e6 - 0.003 * watts).abs() < 1e-4);
    let vm = VmId::new("vm").unwrap();
    assert!((plant.vm_usage_us(0, &vm) as f64 / 20.06e6 - 1.0).abs() < 1e-6);
    assert!((plant.truth().mean_power_w.as_f64() - plant.power().as_f64()).abs() < 0.01);
}

#[test]
fn truth_knows_the_longest_stretch_above_the_budget() {
    let steps = [(0.0, 0.0), (1.0, 1.0), (1.5, 0.0), (2.0, 1.0), (2.2, 0.0)];
    let load = Load::Batch(BatchSpec::endless(1e9, Profile::Steps(steps.into())));
    let mut plant = Plant::new(PlantSpec { budget: Watts::from_whole(200), ..one(load) }, 1);
    plant.advance(ms(3000));
    let truth = plant.truth();
    assert!((truth.over_budget_s_max - 0.5).abs() < 0.011, "{truth:?}");
    assert!((truth.over_budget_s_total - 0.7).abs() < 0.021);
    assert!(truth.max_power_w > Watts::from_whole(310));
    assert!(serde_json::to_string(truth).unwrap().contains("\"over_budget_s_max\""));
}

#[test]
fn vms_move_between_cores() {
    let mut plant = Plant::new(mixed(), 1);
    let (web, vm) = (VmId::new("web").unwrap(), VmId::new("vm").unwrap());
    assert!(!plant.set_vm_cores(0, &VmId::new("nobody").unwrap(), &[CoreId(1)]));
    assert!(!plant.set_vm_cores(0, &web, &[CoreId(77)]));
    assert!(!plant.set_vm_cores(5, &web, &[CoreId(1)]));
    assert!(plant.set_vm_cores(0, &vm, &[]));
    assert!(plant.set_vm_cores(0, &web, &[CoreId(39), CoreId(38)]));
    plant.advance(ms(1000));
    let want = 112.0 + 198.0 * 0.8 * 2.0 / 40.0;
    assert!((plant.server_power(0).as_f64() - want).abs() < 0.1);
    assert_eq!(plant.spec().servers[0].vms[1].cores, [CoreId(39), CoreId(38)]);
}

/// Every bit that the plant shows, folded into one number.
fn fingerprint(spec: PlantSpec, seed: u64, call_every: u64) -> u64 {
    use std::hash::Hasher;
    let mut hash = siphasher::sip::SipHasher13::new();
    let mut plant = Plant::new(spec, seed);

    for t in (0..=60_000).step_by(call_every as usize) {
        plant.advance(ms(t));

        // Acts at instants that both ways of calling share.
        if t % 4000 == 2000 {
            plant.set_core_cap(0, CoreId((t / 2000) as u16), MHZ(1200 + t as u32 / 100));
            plant.set_slot_cap(1, (t % 8000 == 2000).then_some(Watts::from_whole(150)));
        }

        if t % 1000 == 0 {
            for n in 0..plant.spec().servers.len() {
                hash.write_i64(plant.server_power(n).milli());
                hash.write_i64(plant.server_meter(n).watts.milli());
                hash.write_u64(plant.server_meter(n).refreshed_at.as_nanos());
                hash.write_u64(plant.package_energy(n, 0).get());
            }

            hash.write_i64(plant.supply_meter(0).input.milli());
        }
    }

    hash.write(serde_json::to_string(plant.truth()).unwrap().as_bytes());

    hash.finish()
}

#[test]
fn the_same_seed_is_the_same_to_the_bit_however_it_is_called() {
    let spec = || {
        let options = crate::demo::DemoOptions { servers: 3, ..Default::default() };
        crate::demo::demo(&options)
    };
    let first = fingerprint(spec(), 7, 1000);
    assert_eq!(first, fingerprint(spec(), 7, 1000));
    assert_eq!(first, fingerprint(spec(), 7, 8), "calls of 8 ms are not whole steps");
    assert!(first != fingerprint(spec(), 8, 1000));
}

#[test]
fn the_oracle_fits_every_step_under_its_limit_and_wastes_little() {
    // Two servers of one batch and one user-facing VM each, behind supplies that lose something.
    let mut spec = one(constant(1.0));
    let halves = |server: &mut ServerSpec| {
        let mut web = server.vms[0].clone();
        web.id = VmId::new("web").unwrap();
        web.class = VmClass::UserFacing;
        web.cores = server.vms[0].cores.split_off(20);
        let steps = Profile::Steps([(0.0, 0.5), (1.0, 0.9), (2.0, 0.2), (3.0, 0.95)].into());
        web.load = Load::Queue(QueueSpec::new(steps));
        server.vms.push(web);
    };

    halves(&mut spec.servers[0]);
    spec.servers.push(spec.servers[0].clone());

    for (limit_w, user_facing_held) in [(540.0, false), (420.0, true)] {
        let mut plant = Plant::new(spec.clone(), 1);
        plant.set_oracle(Watts::from_f64(limit_w));
        let mut tight = 0;

        for step in 1..=400 {
            plant.advance(ms(10 * step));
            let power = plant.power().as_f64();
            assert!(power <= limit_w, "step {step}: {power} W, limit {limit_w} W");
            tight += u32::from(power > limit_w - 2.0);
        }

        let held = plant.truth().user_facing_throttled_core_s.total();
        assert_eq!(held > 0.0, user_facing_held, "limit {limit_w} W: {held} core-seconds");
        assert!(tight > 200 || user_facing_held, "limit {limit_w} W: {tight} steps near it");
        plant.set_oracle(None);
        plant.advance(ms(4020));
        assert_eq!(plant.core_khz(0, CoreId(0)), MHZ(2400));
    }
}

/// Twenty batch VMs of four CPUs share 20 of the cores; others are alone on theirs.
#[test]
fn vms_that_share_cores_get_them_in_turns() {
    let mut spec = one(constant(0.0));
    let pooled = |n: u16, cores: core::ops::Range<u16>, load: Load| VmLoad {
        id: VmId::new(&format!("p{n}")).unwrap(),
        cores: cores.map(CoreId).collect(),
        vcpus: Some(4),
        load,
        ..server(constant(0.0)).vms[0].clone()
    };
    let queue = |utilisation| {
        Load::Queue(QueueSpec {
            utilisation: Profile::Constant(utilisation),
            service_mean: Duration::from_millis(5),
            service: ServiceTime::Exponential,
            frequency_bound: 0.55,
            max_wait: Duration::from_secs(1),
        })
    };
    spec.servers[0].vms = (0..10).map(|n| pooled(n, 20..40, constant(1.0))).collect();
    spec.servers[0].vms.extend((10..20).map(|n| pooled(n, 0..20, queue(0.2))));
    // Forty CPUs want to run all the time on twenty cores.
    let mut plant = Plant::new(spec.clone(), 1);
    plant.advance(ms(20_000));
    let cpu_s =
        |plant: &Plant, name: &str| plant.truth().vms.iter().find(|vm| vm.vm.as_str() == name).unwrap().cpu_s;
    assert!((cpu_s(&plant, "p0") - 40.0).abs() < 0.1, "half of four CPUs' time: {}", cpu_s(&plant, "p0"));
    let web: f64 = (10..20).map(|n| cpu_s(&plant, &format!("p{n}"))).sum();
    assert!((web / 20.0 - 8.0).abs() < 0.3, "a fifth of forty CPUs: {web}");
    let uncapped = plant.truth().mean_power_w.as_f64();

    // Slower, they work less; and a pool that is slowed is slowed once, however many share it.
    for core in 20..40 {
        plant.set_core_cap(0, CoreId(core), MHZ(1200));
    }
    plant.advance(ms(40_000));
    let batch = f64::from(20_u16) * PowerModel::PAPER.dynamic_w() / 40.0;
    let capped = 2.0 * plant.truth().mean_power_w.as_f64() - uncapped;
    let shed = (uncapped - capped) / batch;
    assert!((0.68..0.80).contains(&shed), "{shed}");
    let throttled = plant.truth().batch_throttled_core_s.software;
    assert!((throttled - 400.0).abs() < 1.0, "{throttled}");
    assert_eq!(plant.truth().user_facing_throttled_core_s.total(), 0.0);

    // On cores that batch fills as well, user-facing VMs wait for their turn.
    for vm in &mut spec.servers[0].vms {
        vm.cores = (0..40).map(CoreId).collect();
        if vm.id.as_str().len() == 3 {
            vm.class = VmClass::UserFacing;
        }
    }
    let crowded = |share: f64| {
        let mut spec = spec.clone();
        for vm in spec.servers[0].vms.iter_mut().filter(|vm| vm.class == VmClass::NonUserFacing) {
            vm.load = constant(share);
        }
        let mut plant = Plant::new(spec, 1);
        plant.advance(ms(20_000));
        plant.user_facing_p95_ms().unwrap()
    };
    let (with, without) = (crowded(1.0), crowded(0.0));
    assert!(with > 1.1 * without, "{with} ms beside batch, {without} ms without");
}
