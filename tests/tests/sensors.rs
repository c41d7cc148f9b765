//! Real daemons with sensors that are slow, hang, or are elsewhere.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ballast_testbed::lab::bmc::{Generation, MockBmc, Model, PASSWORD, USERNAME};
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::{METER_LABEL, METER_NAME, chassis_root, server_root, supply_hwmon};
use ballast_types::ServerId;
use ballast_types::wire::{AgentState, AgentStatus, Alarm, ChassisState};
use serde_json::{Value, json};

ballast_testbed::wall_time![
    a_chassis_that_sees_no_supply_holds_its_budget_by_what_it_is_told,
    a_meter_that_hangs_holds_up_nothing_but_itself,
    a_slow_meter_with_rapl_beside_it_holds_the_budget,
    supplies_and_a_meter_that_only_bmcs_see_hold_the_budget_and_null_is_blind,
];

/// Changes a daemon's config before it is started.
fn reconfigure(lab: &Lab, name: &str, change: impl FnOnce(String) -> String) {
    let file = lab.config(name);
    let text = fs::read_to_string(&file).expect("a config");
    fs::write(&file, change(text)).expect("a config");
}

/// Posts what the rig's supplies draw, as somebody else's meter would.
struct Feeder<'a> {
    lab: &'a Lab,
    began: Instant,
    seq: u64,
}

impl Feeder<'_> {
    /// One reading; the answer's status.
    fn post(&mut self) -> u16 {
        self.seq += 1;
        let class = chassis_root(&self.lab.tree()).join("sys/class/hwmon");
        let microwatts = |dir: fs::DirEntry| -> Option<u64> {
            let name = fs::read_to_string(dir.path().join("name")).ok()?;
            let is_supply = name.trim() == supply_hwmon(0).split('@').next()?;
            let input = fs::read_to_string(dir.path().join("power1_input")).ok()?;

            is_supply.then(|| input.trim().parse().ok())?
        };

        let sum: u64 = fs::read_dir(class).expect("a tree").flatten().filter_map(microwatts).sum();
        let body = serde_json::json!({
            "source": "shelf-1",
            "source_boot_id": "feeder",
            "source_ms": self.began.elapsed().as_millis() as u64 + 1,
            "age_ms": 0,
            "watts": sum as f64 / 1e6,
            "seq": self.seq,
        });

        self.lab.order("POST", "chassis", "/v1/power", &body.to_string()).0
    }
}

fn a_chassis_that_sees_no_supply_holds_its_budget_by_what_it_is_told() {
    let power_input = "[power_input]\nsource = \"shelf-1\"\nmax_w = 5000\ngood_for_ms = 4000\n";
    let mut lab = Lab::new(steady(2, 420, (0.3, 0.95)), power_input);

    // The same supplies, but not the manager's any more.
    reconfigure(&lab, "chassis", |text| {
        let (before, rest) = text.split_once("[[supply]]").unwrap();
        format!("{before}{}", &rest[rest.find("[[server]]").unwrap()..])
    });

    for name in ["s01", "s02", "chassis"] {
        lab.start(name);
    }
    lab.wait("the manager answers", |lab| lab.get("chassis", "/readyz").0 != 0);
    let mut feeder = Feeder { lab: &lab, began: Instant::now(), seq: 0 };
    let until = |feeder: &mut Feeder<'_>, what: &str, done: &dyn Fn(&Lab) -> bool| {
        let began = Instant::now();
        while !done(feeder.lab) {
            assert!(began.elapsed() < ballast_testbed::lab::PATIENCE, "never: {what}");

            // A reading that this machine has made late is refused.
            assert!(matches!(feeder.post(), 204 | 409));
            thread::sleep(Duration::from_millis(100));
        }
    };

    until(&mut feeder, "ready", &|lab| lab.get("chassis", "/readyz").0 == 200);
    until(&mut feeder, "the budget holds", &Lab::holds);

    // A repeated reading is refused, and the manager goes on.
    feeder.seq -= 1;
    assert_eq!(feeder.post(), 409);
    let status = lab.chassis().unwrap();
    let sensor = &status.sensors[0];
    assert_eq!((sensor.sensor.as_str(), sensor.problem.as_deref()), ("power input shelf-1", None));

    // The feeder stops: the manager is blind, and no server may draw more than its share.
    let told = |alarms: &[Alarm]| alarms.iter().any(|alarm| alarm.message.contains("no reading"));
    lab.wait("blind", |lab| lab.chassis().is_some_and(|c| c.state == ChassisState::Blind && told(&c.alarms)));
    let status = lab.chassis().unwrap();
    let (ready, why) = lab.get("chassis", "/readyz");
    assert!(ready == 503 && why.contains("blind: no usable reading"), "{why}");
    let granted: f64 = status.servers.iter().map(|s| s.granted_w.unwrap().as_f64()).sum();
    assert!(granted <= status.limit_w.as_f64(), "{granted}");
    assert_eq!(status.power_w, None);
    let mut feeder = Feeder { lab: &lab, began: feeder.began, seq: 10_000 };

    until(&mut feeder, "it sees again", &|lab| {
        lab.chassis().is_some_and(|c| c.state != ChassisState::Blind && c.power_w.is_some())
    });
    lab.end_all();
    lab.replay("chassis");
}

fn a_meter_that_hangs_holds_up_nothing_but_itself() {
    let mut lab = Lab::new(steady(1, 300, (0.3, 0.95)), "");

    // A file that blocks its reader, as a BMC does that does not answer.
    let root = server_root(&lab.tree(), &ServerId::new("s01").unwrap());
    let dir = root.join("sys/class/hwmon/hwmon9");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("name"), "slow\n").unwrap();
    let file = dir.join("power1_average");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let rig = format!("name = {METER_NAME:?}\nlabel = {METER_LABEL:?}\n");
    reconfigure(&lab, "s01", |text| {
        assert!(text.contains(&rig));
        text.replace(&rig, "name = \"slow\"\ndeadline_ms = 300\nsample_ms = 1000\n")
    });

    lab.start("s01");
    let alarmed = |lab: &Lab, what: &str| {
        lab.agent("s01").is_some_and(|agent| agent.alarms.iter().any(|a| a.message.contains(what)))
    };
    lab.wait("the hang is told of", |lab| alarmed(lab, "hwmon slow: no answer for"));

    // An alert is obeyed meanwhile: without a reading, by the floor.
    let alert = r#"{"chassis_id":"lab","epoch":1,"seq":1,"level":"cap","echo_boot_id":null,
        "echo_agent_ms":null,"chassis_power_w":300,"chassis_limit_w":300,"cap_w":120,
        "fallback_w":120,"valid_for_ms":2000}"#;
    assert_eq!(lab.order("POST", "s01", "/v1/alert", alert).0, 200);
    lab.wait("its cores are at the floor", |lab| {
        lab.agent("s01").is_some_and(|agent| agent.report.min_khz.is_some())
    });

    // What the device answers at last was asked long ago: it is not a reading of now.
    thread::sleep(Duration::from_secs(4));
    fs::write(&file, "230000000\n").unwrap();
    lab.wait("its late answer is known", |lab| {
        let age = |agent: AgentStatus| agent.sensors[0].age_ms.is_some_and(|ms| ms >= 4000);
        lab.agent("s01").is_some_and(age)
    });

    let agent = lab.agent("s01").unwrap();
    assert_eq!((agent.report.state, agent.report.power_w), (AgentState::Blind, None));

    // It is well again: the agent sees.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }

                // Waits for the reader, which may be gone again before it is written to (EPIPE).
                let _ = fs::write(&file, format!("{}\n", 230_000_000 + n));
            }
        });

        lab.wait("it sees", |lab| lab.agent("s01").is_some_and(|agent| agent.report.power_w.is_some()));
        stop.store(true, Ordering::Relaxed);

        // Whoever still waits for a reader or a writer is let go.
        lab.end("s01");
        drop(fs::File::options().read(true).write(true).open(&file));
    });
}

fn a_slow_meter_with_rapl_beside_it_holds_the_budget() {
    let mut spec = steady(2, 420, (0.3, 0.95));
    spec.meter.lag = Duration::from_secs(1);
    spec.meter.refresh = Duration::from_secs(1);
    let mut lab = Lab::new(spec, "");
    let rig = format!("label = {METER_LABEL:?}\n");

    for name in ["s01", "s02"] {
        let fused = format!("{rig}lag_ms = 1000\nrefresh_ms = 1000\nfuse_rapl = true\n");
        reconfigure(&lab, name, |text| text.replace(&rig, &fused));
    }

    let before = lab.limits();
    lab.start_all();
    lab.wait("the budget holds", Lab::holds);
    lab.wait("the line is learnt and the meter's refresh is measured", |lab| {
        lab.agent("s01").is_some_and(|agent| {
            let [meter, fused] = &agent.sensors[..] else { panic!("{:?}", agent.sensors) };
            let measured = meter.refresh_ms.is_some_and(|ms| (900..=1100).contains(&ms));
            measured && fused.problem.is_none() && agent.report.state == AgentState::Recovering
        })
    });

    let (_, metrics) = lab.get("s01", "/metrics");
    assert!(metrics.contains("ballast_agent_sensor_refresh_seconds{sensor=\"hwmon "), "{metrics}");
    lab.wait("the budget holds", Lab::holds);
    lab.end_all();
    lab.replay("s01");
    lab.wait_restored(&before, "");
}

/// What a hwmon tree's devices of one driver draw, by the order of their folders.
fn draws(root: &Path, driver: &str) -> Vec<f64> {
    let class = fs::read_dir(root.join("sys/class/hwmon")).expect("a tree");
    let mut dirs: Vec<_> = class.flatten().map(|dir| dir.path()).collect();
    dirs.sort();
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    dirs.retain(|dir| text(&dir.join("name")).trim() == driver);
    let microwatts = |dir: &Path| text(&dir.join("power1_input")).trim().parse::<f64>().ok();
    dirs.iter().filter_map(|dir| microwatts(dir)).map(|uw| uw / 1e6).collect()
}

fn supplies_and_a_meter_that_only_bmcs_see_hold_the_budget_and_null_is_blind() {
    let mut lab = Lab::new(steady(2, 420, (0.3, 0.95)), "");
    let [shelf, server] = [Generation::Older, Generation::Newer].map(|g| MockBmc::start(Model::new(g)));
    let credentials = lab.tree().with_file_name("bmc.toml");
    let text = format!("username = {USERNAME:?}\npassword = {PASSWORD:?}\n");
    fs::write(&credentials, text).unwrap();
    fs::set_permissions(&credentials, Permissions::from_mode(0o600)).unwrap();
    let access = format!("[redfish]\ncredentials_file = {credentials:?}\n");
    let mut supplies = 0;
    reconfigure(&lab, "chassis", |mut text| {
        while text.contains(&supply_hwmon(supplies)) {
            let by_bmc = format!("redfish = {:?}\nredfish_supply = \"{supplies}\"", shelf.url());
            text = text.replace(&format!("hwmon = {:?}", supply_hwmon(supplies)), &by_bmc);
            supplies += 1;
        }

        format!("{text}{access}")
    });

    let rig = format!("source = \"hwmon\"\nname = {METER_NAME:?}\nlabel = {METER_LABEL:?}\n");
    reconfigure(&lab, "s01", |text| {
        assert!(text.contains(&rig));
        let by_bmc = format!("source = \"redfish\"\nredfish = {:?}\nsample_ms = 200\n", server.url());
        format!("{}{access}", text.replace(&rig, &by_bmc))
    });

    let (chassis, s01) =
        (chassis_root(&lab.tree()), server_root(&lab.tree(), &ServerId::new("s01").unwrap()));
    let driver = METER_NAME.split('@').next().unwrap();
    let (stop, nothing) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // The BMCs see what the rig's sensors do.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let told = |watts: f64| match nothing.load(Ordering::Relaxed) {
                    true => Value::Null,
                    false => json!(watts),
                };

                let inputs = draws(&chassis, "pmbus").into_iter().map(told);
                let supply = |watts| [json!("Enabled"), json!("OK"), watts];
                shelf.model().supplies = inputs.map(supply).collect();
                server.model().power = draws(&s01, driver).first().copied().map_or(json!(null), told);
                thread::sleep(Duration::from_millis(50));
            }
        });

        lab.start_all();
        lab.wait("the budget holds", Lab::holds);
        let status = lab.chassis().unwrap();
        assert_eq!(status.sensors.len(), supplies);
        assert_eq!(status.sensors[0].sensor, format!("{} 0", shelf.url()));
        let meter = lab.agent("s01").unwrap().sensors.remove(0);
        assert_eq!(meter.sensor, format!("redfish {}", server.url()));
        nothing.store(true, Ordering::Relaxed);
        lab.wait("both are blind", |lab| {
            let agent = lab.agent("s01").is_some_and(|a| a.report.state == AgentState::Blind);
            agent && lab.chassis().is_some_and(|c| c.state == ChassisState::Blind)
        });

        nothing.store(false, Ordering::Relaxed);
        lab.wait("both see again", |lab| {
            let agent = lab.agent("s01").is_some_and(|a| a.report.power_w.is_some());
            agent && lab.chassis().is_some_and(|c| c.power_w.is_some())
        });

        lab.end_all();
        stop.store(true, Ordering::Relaxed);
    });

    for bmc in [shelf, server] {
        assert!(bmc.model().sessions.is_empty(), "a session is left open");
    }
    lab.replay("chassis");
}
