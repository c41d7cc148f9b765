//! The rig seen through `hw`: the same code that runs against a real `/`.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ballast_hw::{
    Bandwidth, CapSpec, Cgroup, CpuTime, Cpufreq, Floor, HwmonCap, HwmonSensor, MatchSpec, PmbusSupply,
    PowerMeter, RaplCap, RaplMeter, Root, SupplyMeter, UsageMeter, boot_id, rapl::Energy,
};
use ballast_sim::plant::{
    BatchSpec, Load, Plant, PlantSpec, Profile, SensorSpec, ServerSpec, SharedSpec, SupplySpec, VmLoad,
};
use ballast_testbed::rig::{
    METER_LABEL, METER_NAME, OWN_LOAD, Rig, chassis_root, load_file, server_root, slot_label, supply_hwmon,
    truth_file, vm_cgroup,
};
use ballast_types::{
    Cap as _, Core, CoreId, Instant, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId, SupplyState,
    VmClass, VmId, Watts,
};
use tempfile::TempDir;

const MHZ: fn(u32) -> KiloHertz = KiloHertz::from_mhz;
const W: fn(i64) -> Watts = Watts::from_whole;

/// Two servers of 2 × 20 fully loaded cores, an active and a standby supply.
fn spec() -> PlantSpec {
    let ladder = Ladder::stepped(MHZ(1200), MHZ(2400), MHZ(100)).unwrap();
    let cores: Vec<_> = (0..40).map(|n| Core { id: CoreId(n), ladder: ladder.clone() }).collect();
    let vm = |id: &str, cores: core::ops::Range<u16>| VmLoad {
        vcpus: None,
        id: VmId::new(id).unwrap(),
        class: VmClass::NonUserFacing,
        throttle_order: 0,
        cores: cores.map(CoreId).collect(),
        on_extreme: OnExtreme::None,
        load: Load::Batch(BatchSpec::endless(1e9, Profile::Constant(1.0))),
    };

    let server = |id: &str| ServerSpec {
        id: ServerId::new(id).unwrap(),
        model: PowerModel::PAPER,
        sockets: 2,
        cores: cores.clone(),
        vms: vec![vm("batch", 0..30), vm("web", 30..40)],
    };

    PlantSpec {
        servers: vec![server("s0"), server("s1")],
        supplies: vec![SupplySpec::active(W(1500)), SupplySpec::standby(W(1500))],
        shared: SharedSpec { fans_idle: W(20), fans_full: W(40), switch: W(10) },
        meter: SensorSpec::default(),
        supply_meter: SensorSpec::default(),
        hardware_caps: true,
        budget: W(800),
    }
}

struct Bench {
    dir: TempDir,
    rig: Rig,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        // In memory where that is possible: a disk's file system flushes at every replacement.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let rig = Rig::create(dir.path(), Plant::new(spec(), 7)).unwrap();
        Self { dir, rig, now: Instant::ZERO }
    }
    /// Lets the rig turn every 10 ms for this long.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now += Duration::from_millis(10);
            self.rig.turn(self.now).unwrap();
        }
    }
    fn server(&self) -> Root {
        Root::at(server_root(self.dir.path(), &ServerId::new("s0").unwrap()))
    }
    fn chassis(&self) -> Root {
        Root::at(chassis_root(self.dir.path()))
    }
    fn power(&self) -> f64 {
        self.rig.plant().server_power(0).as_f64()
    }
}

/// Every file that a daemon may write, and what it holds.
fn writable(dir: &Path, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || name == ".rig" {
            continue;
        }
        if path.is_dir() {
            writable(&path, into);
        } else if [
            "scaling_max_freq",
            "enabled",
            "power1_cap",
            "cpuset.cpus",
            "cpu.max",
            "constraint_0_power_limit_uw",
        ]
        .contains(&name.as_str())
        {
            into.insert(path.display().to_string(), fs::read_to_string(&path).unwrap());
        }
    }
}

fn all_writable(bench: &Bench) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    writable(bench.dir.path(), &mut files);
    assert_eq!(files.len(), 2 * (40 + 2 + 4 + 1 + 4));
    files
}

#[test]
fn caps_lower_the_draw_and_a_release_leaves_nothing_behind() {
    let mut bench = Bench::new();
    bench.run(1000);
    let before = all_writable(&bench);
    let full = bench.power();
    assert!((full - 310.0).abs() < 0.1, "{full}");

    let mut cpufreq = Cpufreq::discover(&bench.server(), Floor::Half).unwrap();
    let cores = cpufreq.cores();
    assert_eq!(cores, bench.rig.plant().spec().servers[0].cores);

    for core in &cores {
        cpufreq.set(core.id, core.ladder.floor()).unwrap();
    }
    bench.run(20);
    assert!((bench.power() - 169.0).abs() < 0.1, "{}", bench.power());
    assert_eq!(bench.rig.plant().server_power(1).as_f64(), full);
    assert_eq!(cpufreq.read_back(CoreId(39)).unwrap(), MHZ(1200));

    for core in &cores {
        cpufreq.release(core.id).unwrap();
    }
    bench.run(20);
    assert_eq!(bench.power(), full);
    assert_eq!(all_writable(&bench), before);
    assert_eq!(cpufreq.read_back(CoreId(0)).unwrap(), MHZ(2400));
}

#[test]
fn the_kernels_ways_with_odd_values() {
    let mut bench = Bench::new();
    let file = bench.server().path("sys/devices/system/cpu/cpufreq/policy3/scaling_max_freq");

    // Clamped, rounded down, or refused: then the value of before stays.
    for (written, shown) in [
        ("1250000\n", "1200000\n"),
        ("1999999", "1900000\n"),
        ("0\n", "1200000\n"),
        ("2147483647\n", "2400000\n"),
        ("99999999999999\n", "2400000\n"),
        ("1500000\n", "1500000\n"),
        ("fast\n", "1500000\n"),
        ("-1\n", "1500000\n"),
        ("\n", "1500000\n"),
    ] {
        fs::write(&file, written).unwrap();
        bench.run(10);
        assert_eq!(fs::read_to_string(&file).unwrap(), shown, "{written:?}");
        let khz = bench.rig.plant().core_khz(0, CoreId(3));
        assert_eq!(format!("{}\n", khz.get()), shown, "{written:?}");
    }

    // Our own replacements are not taken for orders: nothing moves any more.
    bench.run(100);
    assert_eq!(fs::read_to_string(&file).unwrap(), "1500000\n");
}

#[test]
fn the_meters_show_the_plant() {
    let mut bench = Bench::new();
    let spec = MatchSpec { name: METER_NAME.into(), label: Some(METER_LABEL.into()) };
    let mut meter = PowerMeter::new(HwmonSensor::new(&bench.server(), spec), W(600));
    let mut rapl = RaplMeter::find(&bench.server(), W(600)).unwrap();
    let mut fresh = 0;
    let mut last = Instant::ZERO;
    bench.run(400);
    assert_eq!(rapl.sample(bench.now).unwrap(), Energy::Started);

    for _ in 0..25 {
        bench.run(200);
        let (watts, taken_at) = meter.sample(bench.now).unwrap();
        assert!((watts.as_f64() / 310.0 - 1.0).abs() < 0.06, "{watts}");
        fresh += u32::from(taken_at > last);
        last = taken_at;

        // 94 % of the packages (50 W idle, 198 W of load), and 10 W of memory.
        let Energy::Power(watts) = rapl.sample(bench.now).unwrap() else { panic!() };
        assert!((watts.as_f64() - 243.1).abs() < 0.5, "{watts}");
    }

    // A reading of the same tenth of a watt is not fresh, but rare.
    assert!(fresh >= 22, "{fresh}");
}

#[test]
fn the_servers_own_limit_and_its_slots_cap_act_on_it() {
    let mut bench = Bench::new();
    bench.run(1000);
    let before = all_writable(&bench);
    let mut limit = RaplCap::find(&bench.server(), W(60)).unwrap().unwrap();
    let original = limit.read().unwrap();
    limit.set(W(180), &original).unwrap();
    bench.run(3000);

    // Two packages at 90 W as RAPL counts, 191.5 W in truth; the rest of the server draws 62 W.
    assert!((245.0..=255.0).contains(&bench.power()), "{}", bench.power());
    assert!(RaplCap::is_on(&limit.read().unwrap(), &original));
    limit.put_back(&original).unwrap();
    bench.run(3000);
    assert!((bench.power() - 310.0).abs() < 0.5, "{}", bench.power());

    let label = slot_label(&ServerId::new("s0").unwrap());
    let mut slot = HwmonCap::new(&bench.chassis(), CapSpec::Slot(label));
    let original = slot.read().unwrap();
    slot.set(W(200), &original).unwrap();
    bench.run(5000);
    assert!((195.0..=201.0).contains(&bench.power()), "{}", bench.power());
    slot.put_back(&original).unwrap();
    bench.run(5000);
    assert!((bench.power() - 310.0).abs() < 0.5, "{}", bench.power());
    assert_eq!(all_writable(&bench), before);
}

#[test]
fn a_lost_feed_shows_at_the_supplies() {
    use SupplyState::{Active, Failed, Standby};
    let mut bench = Bench::new();
    bench.run(600);
    let root = bench.chassis();
    let mut supplies = [0, 1].map(|n| {
        let name = supply_hwmon(n);
        SupplyMeter::new(&name, PmbusSupply::new(&root, &name))
    });

    let reads = supplies.each_mut().map(|supply| supply.poll(bench.now).0);
    let draw = bench.rig.plant().power().as_f64();
    assert_eq!([reads[0].state, reads[1].state], [Active, Standby]);
    let seen: Watts = reads.iter().filter_map(|read| read.input).sum();
    assert!((seen.as_f64() / draw - 1.0).abs() < 0.06, "{seen} of {draw}");

    bench.rig.plant_mut().fail_supply(0, true);
    bench.run(800);
    let [lost, other] = supplies.each_mut().map(|supply| supply.poll(bench.now));
    assert_eq!([lost.0.state, other.0.state], [Failed, Active]);
    assert_eq!(lost.0.input, Some(Watts::ZERO));
    assert!(lost.1 && other.1, "both have moved");
}

#[test]
fn a_killed_vm_draws_nothing_and_its_cgroup_is_empty() {
    let mut bench = Bench::new();
    bench.run(1000);
    let before = bench.power();
    let group = |vm: &str| Cgroup::at(&bench.server(), &vm_cgroup(&VmId::new(vm).unwrap())).unwrap();
    let (batch, web) = (group("batch"), group("web"));
    assert!(batch.populated().unwrap());

    // What is no kill is none.
    let file = bench.server().path("sys/fs/cgroup/machine.slice/batch.scope/cgroup.kill");
    fs::write(&file, "2\n").unwrap();
    bench.run(100);
    assert!(batch.populated().unwrap() && (bench.power() - before).abs() < 0.5);

    batch.kill(&bench.server(), batch.inode().unwrap()).unwrap();
    bench.run(100);
    assert!(!batch.populated().unwrap() && web.populated().unwrap());

    // 30 of the 40 cores have nothing to do any more.
    let dynamic = before - 112.0;
    assert!((before - bench.power() - 0.75 * dynamic).abs() < 0.5, "{}", bench.power());
    batch.kill(&bench.server(), batch.inode().unwrap()).unwrap();
    bench.run(100);
    let truth = &bench.rig.plant().truth().vms;
    let dead: Vec<_> = truth.iter().filter(|vm| vm.killed_at_s.is_some()).collect();
    assert!(dead.len() == 1 && dead[0].vm.as_str() == "batch", "{dead:?}");
}

#[test]
fn a_load_that_is_set_shows_in_draw_and_cpu_time_and_is_taken_off_again() {
    let mut bench = Bench::new();
    bench.run(100);
    let own = bench.power();
    let file = load_file(&bench.server().path(""));

    for (text, share, shown) in [
        ("0.5\n", 0.5, "0.5\n"),
        ("0", 0.0, "0\n"),
        ("1.5", 0.0, "0\n"),
        ("much", 0.0, "0\n"),
        ("1", 1.0, "1\n"),
    ] {
        fs::write(&file, text).unwrap();
        bench.run(50);
        let before = CpuTime::read(&bench.server()).unwrap();
        bench.run(1000);
        assert!((bench.power() - (112.0 + 198.0 * share)).abs() < 0.1, "{text}: {}", bench.power());
        let busy = CpuTime::read(&bench.server()).unwrap().busy_since(&before).unwrap();
        assert!((busy - share).abs() < 0.002, "{text}: {busy}");
        assert_eq!(fs::read_to_string(&file).unwrap(), shown, "{text}");
    }

    fs::write(&file, OWN_LOAD).unwrap();
    bench.run(50);
    assert_eq!(bench.power(), own);
}

#[test]
fn a_vm_moves_to_other_cores() {
    let bench = Bench::new();
    let (root, dir, mut rig) = (bench.server(), bench.dir, bench.rig);
    let vm = VmId::new("batch").unwrap();
    let group = Cgroup::at(&root, &vm_cgroup(&vm)).unwrap();
    let original = group.own_cpus().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let running = scope.spawn(|| rig.run(&stop));
        let cpus = "0-9".parse().unwrap();
        // On a busy machine the rig's first turn may be later than it is waited for.
        assert!((0..300).any(|_| group.confine(&cpus).is_ok()));
        assert_eq!(
            fs::read_to_string(root.path("sys/fs/cgroup/machine.slice/batch.scope/cpuset.cpus")).unwrap(),
            "0-9\n"
        );

        stop.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap();
    });

    assert_eq!(rig.plant().spec().servers[0].vms[0].cores.len(), 10);
    assert_eq!(original, "0-29".parse().unwrap());

    // The final truth is there, in one piece.
    let truth: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(truth_file(dir.path())).unwrap()).unwrap();
    for key in ["power_w", "elapsed_s", "over_budget_s_max", "servers", "vms"] {
        assert!(!truth[key].is_null(), "{key}");
    }

    let mut usage = UsageMeter::new(group.clone());
    let mut now = rig.plant().now();
    let step = Duration::from_millis(200);
    let mut seen = Vec::new();

    for _ in 0..4 {
        now += step;
        rig.turn(now).unwrap();
        seen.extend(usage.sample(now, 10).unwrap());
    }

    assert!(seen.iter().all(|u| u.utilisation.ratio() > 0.99), "{seen:?}");

    // An empty list, garbage and CPUs that are not there.
    let file = root.path("sys/fs/cgroup/machine.slice/batch.scope/cpuset.cpus");
    for (text, own, effective) in [
        ("\n", "0-9\n", "0-9"),
        ("x\n", "0-9\n", "0-9"),
        ("90-99\n", "90-99\n", "0-39"),
        ("5,4\n", "4-5\n", "4-5"),
    ] {
        fs::write(&file, text).unwrap();
        rig.turn(now).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), own, "{text:?}");
        assert_eq!(group.effective().unwrap().to_string(), effective, "{text:?}");
    }
}

#[test]
fn a_vms_bandwidth_is_limited_and_its_stops_are_counted() {
    let bench = Bench::new();
    let (root, mut rig) = (bench.server(), bench.rig);
    let vm = VmId::new("batch").unwrap();
    let path = vm_cgroup(&vm);
    let mut bandwidth = Bandwidth::new(&root, Duration::from_millis(20));
    bandwidth.know(&vm, &path, 30).unwrap();
    let mut meter = UsageMeter::new(Cgroup::at(&root, &path).unwrap());
    let mut now = rig.plant().now();
    let mut run = |rig: &mut Rig, meter: &mut UsageMeter| {
        now += Duration::from_secs(1);
        rig.turn(now).unwrap();
        meter.sample(now, 30).unwrap().map(|it| (it.utilisation.ratio(), it.stopped))
    };

    let file = root.path(&format!("sys/fs/cgroup/{path}/cpu.max"));
    run(&mut rig, &mut meter);
    assert_eq!(run(&mut rig, &mut meter), Some((1.0, false)));
    let free = rig.plant().truth().mean_power_w;
    bandwidth.set(&vm, 15_000).unwrap();
    let (used, stopped) = run(&mut rig, &mut meter).unwrap();
    assert!((used - 0.5).abs() < 0.02 && stopped, "{used}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "300000 20000\n");
    assert!(rig.plant().truth().mean_power_w < free);
    let stat = fs::read_to_string(file.with_file_name("cpu.stat")).unwrap();
    assert!(stat.contains("\nnr_periods 50\n") && stat.contains("\nnr_throttled 50\n"), "{stat}");

    // 15 core-seconds were stopped in the second.
    let usec = stat.lines().find_map(|line| line.strip_prefix("throttled_usec ")).unwrap();
    assert!((usec.parse::<f64>().unwrap() / 15e6 - 1.0).abs() < 0.02, "{stat}");
    bandwidth.release(&vm).unwrap();
    run(&mut rig, &mut meter);
    assert_eq!(run(&mut rig, &mut meter), Some((1.0, false)));

    for (text, own) in [
        ("x 100000\n", "max 100000\n"),
        ("500 100000\n", "max 100000\n"),
        ("5000 2000000\n", "max 100000\n"),
        ("5000\n", "5000 100000\n"),
    ] {
        fs::write(&file, text).unwrap();
        run(&mut rig, &mut meter);
        assert_eq!(fs::read_to_string(&file).unwrap(), own, "{text:?}");
    }
}

#[test]
fn no_reader_sees_half_a_file_and_no_write_is_lost() {
    let mut bench = Bench::new();
    let root = bench.server();
    let energy = root.path("sys/class/powercap/intel-rapl:0/energy_uj");
    let written = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn({
            let root = root.clone();
            move || {
                let mut cpufreq = Cpufreq::discover(&root, Floor::Half).unwrap();
                for n in 0..500u32 {
                    // A release is replaced by the rig while the next cap is on its way.
                    cpufreq.release(CoreId(1)).unwrap();
                    cpufreq.set(CoreId(1), MHZ(1200 + 100 * (n % 7))).unwrap();
                }
            }
        });

        // A busy machine may begin this thread late: the rig publishes until 500 reads are done, too.
        let reader = scope.spawn(|| {
            let mut reads = 0u32;
            while reads < 500 || !written.load(Ordering::Relaxed) {
                let text = fs::read_to_string(&energy).unwrap();
                assert!(text.ends_with('\n') && text.trim().parse::<u64>().is_ok(), "{text:?}");
                reads += 1;
            }
        });

        while !writer.is_finished() || !reader.is_finished() {
            written.store(writer.is_finished(), Ordering::Relaxed);
            bench.run(20);
        }
    });

    bench.run(20);
    let expected = MHZ(1200 + 100 * (499 % 7));
    assert_eq!(bench.rig.plant().core_khz(0, CoreId(1)), expected);
}

#[test]
fn a_writer_that_opened_the_file_before_it_was_replaced_is_obeyed() {
    let mut bench = Bench::new();
    let mut check = |core: u16, truncate: bool| {
        let policy = format!("sys/devices/system/cpu/cpufreq/policy{core}/scaling_max_freq");
        let file = bench.server().path(&policy);
        fs::write(&file, "2000000\n").unwrap();
        bench.run(10);
        fs::write(&file, "2147483647\n").unwrap();
        let mut held = fs::OpenOptions::new().write(true).open(&file).unwrap();

        // The release is replaced by the frequency in force, under the writer's hands.
        bench.run(10);
        assert_eq!(fs::read_to_string(&file).unwrap(), "2400000\n");

        if truncate {
            held.set_len(0).unwrap();
            bench.run(10);
        }

        held.write_all(b"1300000\n").unwrap();
        held.set_len(8).unwrap();
        drop(held);
        bench.run(20);
        assert_eq!(bench.rig.plant().core_khz(0, CoreId(core)), MHZ(1300));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1300000\n");

        // And it stays so.
        bench.run(100);
        assert_eq!(bench.rig.plant().core_khz(0, CoreId(core)), MHZ(1300));
        fs::write(&file, "1700000\n").unwrap();
        bench.run(20);
        assert_eq!(bench.rig.plant().core_khz(0, CoreId(core)), MHZ(1700));
    };

    check(1, false);
    check(2, true);
}

#[test]
fn every_machine_has_its_own_boot() {
    let bench = Bench::new();
    let other = Root::at(server_root(bench.dir.path(), &ServerId::new("s1").unwrap()));
    let ids = [bench.server(), other, bench.chassis()].map(|root| boot_id(&root).unwrap());
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}
