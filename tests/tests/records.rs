//! What VMs use, recorded by real daemons; and what weeks of it make of VMs without a class.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use ballast_agent::records::{Limits, Store, folder};
use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::{server_root, vm_cgroup};
use ballast_types::wire::VmStatus;
use ballast_types::{ServerId, UsageBin, UsageRecord, VmClass, VmId, VmStart};
use serde_json::{Value, json};

ballast_testbed::wall_time![
    what_vms_use_is_recorded_and_survives_restarts,
    weeks_of_use_make_a_class_and_a_told_one_wins,
    what_an_agent_measured_makes_room_under_a_promise,
    a_folder_that_cannot_be_written_is_an_alarm_and_the_agent_goes_on,
];

const SERVER: &str = "s01";

fn vm(lab: &Lab, id: &str) -> Option<VmStatus> {
    lab.agent(SERVER)?.vms.into_iter().find(|vm| vm.vm.as_str() == id)
}

/// One VM of each class: `(user-facing, batch)`.
fn two(lab: &Lab) -> (VmStatus, VmStatus) {
    let vms = lab.agent(SERVER).expect("a status").vms;
    let of = |class| vms.iter().find(|vm| vm.class == class).expect("one of each class").clone();
    (of(VmClass::UserFacing), of(VmClass::NonUserFacing))
}

fn records(lab: &Lab, args: &[&str]) -> String {
    let dir = folder(&lab.home(SERVER).join("state"));
    let args = [&["records", "--dir", dir.to_str().expect("UTF-8")], args].concat();
    let output = Lab::ballast(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn measured_s(lab: &Lab) -> u64 {
    lab.agent(SERVER).and_then(|agent| agent.records).map_or(0, |records| records.measured_s)
}

fn what_vms_use_is_recorded_and_survives_restarts() {
    let mut lab = Lab::new(steady(1, 210, (0.3, 0.95)), "");
    let root = server_root(&lab.tree(), &ServerId::new(SERVER).expect("an id"));
    lab.start_all();
    let (web, batch) = two(&lab);
    let group = root.join("sys/fs/cgroup").join(vm_cgroup(&web.vm));
    fs::write(group.join("memory.current"), "123457536\n").expect("a file");
    lab.wait("seconds are measured", |lab| measured_s(lab) >= 30);
    lab.wait("the batch VM is throttled for a while", |lab| {
        vm(lab, batch.vm.as_str())
            .is_some_and(|vm| vm.impact.throttled_core_ms > 10_000 * u64::from(vm.cores))
    });

    lab.end(SERVER);
    let seen = |lab: &Lab, id: &str| -> serde_json::Value {
        let text = records(lab, &["--format", "json", "--every-min", "5", "--vm", id]);
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&report["dropped"], &report["vms"][1]), (&0.into(), &().into()), "{report}");

        report["vms"][0].clone()
    };

    let first = seen(&lab, web.vm.as_str());
    assert!(first["measured_s"].as_u64() > Some(0), "{first}");

    // Queues whose servers are busy 30 % of the time.
    let mean = first["mean_percent"].as_f64().expect("a mean");
    assert!((10.0..60.0).contains(&mean), "{first}");
    assert!(first["p95_percent"].as_f64() >= Some(mean), "{first}");
    let throttled = seen(&lab, batch.vm.as_str());
    assert!(throttled["throttled_s"].as_u64() > Some(0), "{throttled}");

    // The next life goes on in the same file.
    lab.start(SERVER);
    lab.wait("seconds are measured again", |lab| measured_s(lab) >= 30);
    lab.wait("the records are in the metrics", |lab| {
        let (_, text) = lab.get(SERVER, "/metrics");
        text.contains("ballast_agent_usage_records_written_total") && text.contains("_records_bytes")
    });

    lab.end(SERVER);
    let second = seen(&lab, web.vm.as_str());
    assert!(second["measured_s"].as_u64() > first["measured_s"].as_u64(), "{first} {second}");
    assert_eq!(second["start"], first["start"]);
    assert_eq!(second["memory_used_bytes"].as_u64(), Some(123_457_536), "{second}");
    let table = records(&lab, &[]);
    assert!(table.contains("P95") && table.contains(web.vm.as_str()), "{table}");
}

/// CPU use as a share, by five minutes since 1970.
type Use = fn(u32) -> f64;

/// Two hours of work in every seven.
fn jobs(slot: u32) -> f64 {
    if slot % 84 < 24 { 0.85 } else { 0.04 }
}

fn diurnal(slot: u32) -> f64 {
    0.3 - 0.2 * (f64::from(slot % 288) / 288.0 * std::f64::consts::TAU).cos()
}

/// Writes three weeks up to now, as if the agent had seen them.
fn write_history(lab: &Lab, vms: &[(&VmStatus, Use)]) {
    let root = server_root(&lab.tree(), &ServerId::new(SERVER).expect("an id"));
    let boot_id = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).expect("a boot");
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let (today, next) = (UsageBin::of(now).day(), UsageBin::of(now));
    let limits = Limits { days: 22, bytes: 64_000_000 };
    let mut store = Store::open(&folder(&lab.home(SERVER).join("state")), limits).expect("a store");

    for day in today - 22..=today {
        let mut records = vec![];
        for slot in (day * 288..(day + 1) * 288).map(UsageBin).filter(|slot| *slot < next) {
            for (vm, use_of) in vms {
                let path = vm_cgroup(&vm.vm);
                let inode = root.join("sys/fs/cgroup").join(&path).metadata().expect("a group").ino();
                let start = VmStart::of(boot_id.trim(), &path, inode);
                let mut record = UsageRecord::empty(vm.vm.clone(), start, slot, vm.cores);
                let mc = (use_of(slot.0) * 1e3 * f64::from(vm.cores)) as u32;
                (0..300).for_each(|_| record.cpu.add(mc));
                records.push(record);
            }
        }

        store.append(&records).expect("a disk");
    }
}

/// Takes the classes of these VMs out of the agent's config.
fn forget_classes(lab: &Lab, vms: [&VmId; 2]) {
    let path = lab.config(SERVER);
    let mut text = fs::read_to_string(&path).expect("a config");
    for vm in vms {
        let id = format!("id = {:?}\n", vm.as_str());
        let (before, after) = text.split_once(&id).expect("the VM");
        let (class, rest) = after.split_once('\n').expect("its class");
        assert!(class.starts_with("class = "), "{class}");
        text = format!("{before}{id}{rest}");
    }
    fs::write(&path, text).expect("a config");
}

fn weeks_of_use_make_a_class_and_a_told_one_wins() {
    let mut lab = Lab::new(steady(1, 1000, (0.2, 0.4)), "");
    lab.start(SERVER);
    lab.wait("ready", |lab| lab.get(SERVER, "/readyz").0 == 200);
    let (web, batch) = two(&lab);
    lab.end(SERVER);
    forget_classes(&lab, [&web.vm, &batch.vm]);
    write_history(&lab, &[(&web, diurnal), (&batch, jobs)]);
    let (web, batch) = (web.vm.as_str(), batch.vm.as_str());

    // By default it is shown, and nothing moves.
    lab.start(SERVER);
    let advised = |lab: &Lab, id: &str, class| vm(lab, id).is_some_and(|vm| vm.advised_class == Some(class));
    lab.wait("batch is advised", |lab| advised(lab, batch, VmClass::NonUserFacing));
    lab.wait("user-facing is advised", |lab| advised(lab, web, VmClass::UserFacing));
    let shown = vm(&lab, batch).expect("the VM");
    assert_eq!((shown.class, shown.origin.as_deref()), (VmClass::UserFacing, Some("config")));
    let (_, metrics) = lab.get(SERVER, "/metrics");
    let line = format!("vm_advised_class{{class=\"non-user-facing\",vm=\"{batch}\"}} 1");
    assert!(metrics.contains(&line), "{metrics}");
    let told = lab.agent(SERVER).expect("a status").vms;
    let told = told.iter().filter(|vm| ![web, batch].contains(&vm.vm.as_str()));
    assert!(told.clone().count() > 0 && told.clone().all(|vm| vm.advised_class.is_none()));
    lab.end(SERVER);

    // Where it may act, the VM has the class, and it is on disk.
    lab.configure(SERVER, "auto_class = \"act\"\n");
    lab.start(SERVER);
    lab.wait("it acts", |lab| {
        vm(lab, batch)
            .is_some_and(|vm| vm.class == VmClass::NonUserFacing && vm.origin.as_deref() == Some("auto"))
    });

    assert_eq!(vm(&lab, web).expect("the VM").class, VmClass::UserFacing);
    let kept = lab.home(SERVER).join("state/auto-class.json");
    let kept = || fs::read_to_string(&kept).unwrap_or_default();
    assert!(kept().contains(batch) && !kept().contains(web), "{}", kept());
    lab.kill(SERVER);
    lab.start(SERVER);
    lab.wait("ready", |lab| lab.get(SERVER, "/readyz").0 == 200);
    lab.wait("it still is", |lab| vm(lab, batch).is_some_and(|vm| vm.class == VmClass::NonUserFacing));

    // Somebody tells: that wins.
    let cores = vm(&lab, batch).expect("the VM").cores;
    let cgroup = vm_cgroup(&VmId::new(batch).expect("an id"));
    let body = format!(r#"{{"class":"user-facing","cores":{cores},"cgroup":{cgroup:?}}}"#);
    let (status, text) = lab.order("PUT", SERVER, &format!("/v1/vms/{batch}"), &body);
    assert_eq!(status, 204, "{text}");
    lab.wait("what was told counts", |lab| {
        vm(lab, batch)
            .is_some_and(|vm| vm.class == VmClass::UserFacing && vm.origin.as_deref() == Some("api"))
    });

    lab.end(SERVER);
}

fn what_an_agent_measured_makes_room_under_a_promise() {
    let mut lab = Lab::new(steady(1, 1000, (0.2, 0.4)), "");
    lab.start(SERVER);
    lab.wait("ready", |lab| lab.get(SERVER, "/readyz").0 == 200);
    let (web, batch) = two(&lab);
    lab.end(SERVER);
    write_history(&lab, &[(&web, diurnal), (&batch, jobs)]);

    // One core less than the two VMs have: before anything is measured nobody else has room there.
    let mut place = PlaceLab::start("");
    let cores = web.cores + batch.cores - 1;
    let host = format!(
        "[[hosts]]\nname = {SERVER:?}\nchassis = \"lab\"\ncores = {cores}\nmemory_gb = 160\n\
         overcommit = {{ cores = 4.0 }}\nagent = \"unix:{}\"\n",
        lab.socket(SERVER).display()
    );
    assert!(place.end().success());
    fs::write(place.path("hosts.toml"), host).expect("a file");
    let config = fs::read_to_string(place.path("place.toml")).expect("a config");
    let inventory = format!("{config}[inventory]\nfile = {:?}\n", place.path("hosts.toml"));
    fs::write(place.path("place.toml"), &inventory).expect("a config");
    place.restart();
    let order = |place: &PlaceLab, path: &str, name: &str, cores: u16| {
        let vm = json!({"vm_id": name, "cores": cores, "memory_gb": 1});
        place.call("POST", path, &vm)
    };
    for vm in [&web, &batch] {
        assert_eq!(order(&place, "/v1/place", vm.vm.as_str(), vm.cores).0, 200);
    }
    assert!(place.end().success());
    fs::write(place.path("place.toml"), inventory + "[overcommit]\ntarget = 0.01\n").expect("a config");
    place.restart();
    let fits = |place: &PlaceLab| order(place, "/v1/score", "new", 1).1["fitting"] == 1;
    assert!(!fits(&place), "nobody was measured");

    // The two together never used all: by what the agent has on record there is room for a third.
    lab.start(SERVER);
    place.wait("both are measured", |place| {
        place.status().overcommit.is_some_and(|it| (it.measured_hosts, it.measured_vms) == (1, 2))
    });
    assert!(fits(&place));
    let (_, host) = place.call("GET", &format!("/v1/hosts/{SERVER}"), &Value::Null);
    assert!(host["cpu_risk"].as_f64().is_some_and(|risk| risk < 0.001), "{host}");
    lab.end(SERVER);
}

fn a_folder_that_cannot_be_written_is_an_alarm_and_the_agent_goes_on() {
    let mut lab = Lab::new(steady(1, 1000, (0.2, 0.4)), "");
    let usage = folder(&lab.home(SERVER).join("state"));
    fs::create_dir_all(usage.parent().expect("a folder")).expect("a folder");
    fs::write(&usage, "in the way").expect("a file");
    lab.start(SERVER);
    lab.wait("ready", |lab| lab.get(SERVER, "/readyz").0 == 200);
    lab.wait("it is an alarm", |lab| {
        lab.agent(SERVER).is_some_and(|agent| {
            agent.alarms.iter().any(|it| it.message.contains("usage records are not written"))
        })
    });
    lab.wait("seconds are measured", |lab| measured_s(lab) >= 10);
    lab.end(SERVER);
    assert!(lab.log(SERVER).contains("usage records could not be written"), "{}", lab.log(SERVER));
}
