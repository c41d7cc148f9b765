//! A chassis whose out-of-band path is each server's BMC, by Redfish: real daemons, a rig, and in front of
//! every slot a BMC that obeys through it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_testbed::lab::bmc::{Generation, MockBmc, Model, PASSWORD, USERNAME};
use ballast_testbed::lab::{Lab, steady};
use ballast_types::wire::Slot;
use serde_json::json;

ballast_testbed::wall_time![
    dead_agents_are_capped_by_redfish_and_lifted_when_they_live_again,
    one_bmc_that_never_answers_holds_up_nobody_elses_cap,
    caps_survive_the_manager_and_a_lost_ledger_and_are_lifted_by_the_next_one,
    a_cap_that_a_bmc_forgets_is_set_again_and_a_server_that_is_off_is_known,
    a_cap_that_the_manager_did_not_order_is_adopted_told_and_lifted,
    a_manager_whose_credentials_anybody_may_read_does_not_start,
];

/// The `power1_cap` of a slot.
fn slot_file(lab: &Lab, label: &str) -> PathBuf {
    let class = lab.tree().join("chassis/sys/class/hwmon");
    let entries = fs::read_dir(class).expect("a class").flatten().map(|entry| entry.path());
    let read = |path: &Path| fs::read_to_string(path.join("power1_label")).unwrap_or_default();
    let mut slots = entries.filter(|path| read(path).trim() == label);
    slots.next().expect("a slot").join("power1_cap")
}

/// A BMC in front of a server's slot.
fn bmc(lab: &Lab, name: &str, model: Model) -> MockBmc {
    let file = slot_file(lab, name);
    let most = fs::read_to_string(&file).expect("a cap");
    MockBmc::wired(model, move |limit| {
        let uw = limit.map_or(most.clone(), |watts| format!("{}\n", (watts * 1e6) as u64));
        fs::write(&file, uw).expect("the slot obeys");
    })
}

/// Two servers that would draw some 500 W on a budget of 420 W, each capped through its BMC: one of the older
/// generation without a limit, one of the newer with a limit that is off.
fn lab() -> (Lab, [MockBmc; 2]) {
    lab_with(420)
}

/// The same two servers and BMCs under another budget.
fn lab_with(budget_w: i64) -> (Lab, [MockBmc; 2]) {
    let more = "[hardware_caps]\nhold_ms = 2000\n[redfish]\ntimeout_ms = 3000\n\
                credentials_file = \"CREDENTIALS\"\n";
    let lab = Lab::new(steady(2, budget_w, (0.3, 0.95)), more);
    let mut newer = Model::new(Generation::Newer);
    newer.limit = json!(450);
    let bmcs = [bmc(&lab, "s01", Model::new(Generation::Older)), bmc(&lab, "s02", newer)];
    let credentials = lab.tree().with_file_name("bmc.toml");
    fs::write(&credentials, format!("username = {USERNAME:?}\npassword = {PASSWORD:?}\n")).expect("a file");
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).expect("a file");
    let mut config = fs::read_to_string(lab.config("chassis")).expect("a file");
    config = config.replace("CREDENTIALS", credentials.to_str().expect("a path in UTF-8"));

    for (name, bmc) in ["s01", "s02"].into_iter().zip(&bmcs) {
        let slot = format!("slot = {name:?}\n");
        assert!(config.contains(&slot), "{config}");
        config = config.replace(&slot, &format!("redfish = {:?}\n", bmc.url()));
    }

    fs::write(lab.config("chassis"), config).expect("a file");

    (lab, bmcs)
}

fn caps(bmcs: &[MockBmc; 2]) -> [bool; 2] {
    bmcs.each_ref().map(|bmc| bmc.model().in_force().is_some())
}

fn kept(lab: &Lab) -> usize {
    fs::read_dir(lab.home("chassis").join("state/caps")).map_or(0, Iterator::count)
}

fn dead_agents_are_capped_by_redfish_and_lifted_when_they_live_again() {
    let (mut lab, bmcs) = lab();
    let before = lab.limits();
    lab.start("chassis");
    lab.wait("both are capped by their BMCs", |_| caps(&bmcs) == [true; 2]);
    lab.wait("the draw fits without any agent", |lab| {
        lab.chassis().is_some_and(|c| c.power_w.is_some_and(|power| power <= c.budget_w))
    });
    assert_eq!(kept(&lab), 2);

    for name in lab.servers() {
        lab.start(&name);
    }
    lab.wait("both are managed and lifted", |lab| {
        let managed = lab.chassis().is_some_and(|chassis| {
            let free =
                |s: &ballast_types::wire::ServerStatus| s.slot == Slot::Managed && s.hardware_cap_w.is_none();
            chassis.servers.iter().all(free)
        });

        managed && caps(&bmcs) == [false; 2]
    });

    lab.wait("the budget holds", Lab::holds);
    lab.end_all();
    lab.wait_restored(&before, "");
    assert_eq!(kept(&lab), 0);
    assert_eq!(bmcs[0].model().limit, json!(null));
    let newer = bmcs[1].model();
    assert_eq!((&newer.limit, &newer.mode), (&json!(450), &json!("Disabled")));
    drop(newer);

    for bmc in &bmcs {
        let open = bmc.model().sessions.len();
        assert_eq!(open, 0, "sessions are left open");
    }
}

fn one_bmc_that_never_answers_holds_up_nobody_elses_cap() {
    let (mut lab, bmcs) = lab();
    bmcs[0].model().faults.delay = Duration::from_secs(30);
    lab.start("chassis");
    lab.wait("the other one is capped", |_| caps(&bmcs)[1]);
    assert!(!caps(&bmcs)[0]);
    lab.wait("its failure is told", |lab| {
        let failed = |c: ballast_types::wire::ChassisStatus| {
            c.alarms
                .iter()
                .any(|alarm| alarm.message.contains("s01") && alarm.message.contains("within 3000 ms"))
        };
        lab.chassis().is_some_and(failed)
    });
    bmcs[0].model().faults.delay = Duration::ZERO;
    lab.wait("it is tried again", |_| caps(&bmcs)[0]);
}

fn caps_survive_the_manager_and_a_lost_ledger_and_are_lifted_by_the_next_one() {
    let (mut lab, bmcs) = lab();
    lab.start("chassis");
    lab.wait("both are capped by their BMCs", |_| caps(&bmcs) == [true; 2]);
    lab.kill("chassis");
    fs::remove_file(lab.home("chassis").join("state/ledger.json")).unwrap();
    assert_eq!((caps(&bmcs), kept(&lab)), ([true; 2], 2));
    lab.start_all();
    lab.wait("both are lifted", |lab| caps(&bmcs) == [false; 2] && kept(lab) == 0);
    assert_eq!(bmcs[1].model().limit, json!(450));
}

fn a_cap_that_a_bmc_forgets_is_set_again_and_a_server_that_is_off_is_known() {
    let (mut lab, bmcs) = lab();
    lab.start("chassis");
    lab.wait("both are capped by their BMCs", |_| caps(&bmcs) == [true; 2]);
    // The daemon still looks whether its cap, or somebody's lower one, is what the BMC keeps.
    std::thread::sleep(Duration::from_secs(1));
    bmcs[0].model().limit = json!(null);
    lab.wait("it is set again", |_| caps(&bmcs)[0]);
    bmcs[1].model().powered = json!("Off");
    lab.wait("it is off", |lab| lab.chassis().is_some_and(|chassis| chassis.servers[1].slot == Slot::Off));
}

fn a_cap_that_the_manager_did_not_order_is_adopted_told_and_lifted() {
    let (mut lab, bmcs) = lab_with(600);
    lab.start_all();
    lab.wait("both BMCs were looked at", |_| bmcs.iter().all(|bmc| !bmc.model().requests.is_empty()));
    std::thread::sleep(Duration::from_secs(2));
    // Another manager, or somebody by hand.
    bmcs[0].model().limit = json!(200);
    lab.wait("it is told", |lab| {
        let (log, told) =
            (lab.log("chassis"), "a hardware cap of 200.0 W is on that this manager did not order");
        log.lines().any(|line| line.contains("s01: ") && line.contains(told))
    });
    lab.wait("it is lifted", |lab| caps(&bmcs) == [false; 2] && kept(lab) == 0);
    assert_eq!(bmcs[0].model().limit, json!(null));
    assert_eq!(bmcs[1].model().count("PATCH", ""), 0, "the other BMC's own limit stays as it is");
}

fn a_manager_whose_credentials_anybody_may_read_does_not_start() {
    let (lab, _bmcs) = lab();
    let credentials = lab.tree().with_file_name("bmc.toml");
    fs::set_permissions(credentials, fs::Permissions::from_mode(0o644)).unwrap();
    let output = Lab::ballast(&["chassis", "--config", lab.config("chassis").to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("chmod 600"), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}
