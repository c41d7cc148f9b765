//! What is shipped beside the binaries: example configs and systemd units.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ballast_agent::config::{AgentConfig, ConfigFile as _};
use ballast_chassis::config::ChassisConfig;
use ballast_place::config::{Estimator, PlaceConfig};
use ballast_runtime::EXIT_LIVE;
use ballast_runtime::config::EXIT_CONFIG;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).expect("a shipped file")
}

/// The text with every commented-out key (`# key = value`) and table (`# [table]`) switched on.
fn with_defaults_switched_on(text: &str) -> String {
    let switched_on = |line: &str| {
        let inner = line.strip_prefix("# ")?;
        let key = inner.split(" = ").next()?;
        let is_key = inner.contains(" = ") && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let is_table = inner.starts_with('[') && inner.contains(']');
        (is_key || is_table).then(|| inner.to_owned())
    };
    let lines = text.lines().map(|line| switched_on(line).unwrap_or_else(|| line.to_owned()));
    lines.collect::<Vec<_>>().join("\n")
}

/// A debug print of a config without what the example sets differently on purpose.
fn comparable(config: impl std::fmt::Debug) -> String {
    format!("{config:#?}")
}

#[test]
fn the_agents_example_is_accepted_and_its_comments_tell_the_defaults() {
    let text = read("config/agent.toml");
    let shipped = AgentConfig::parse("agent.toml", &text).unwrap();
    // The example measures by hwmon; RAPL's keys are the other choice.
    let all = with_defaults_switched_on(&text)
        .lines()
        .filter(|line| !line.starts_with("source = \"rapl\"") && !line.starts_with("offset_w"))
        .collect::<Vec<_>>()
        .join("\n");
    // A Kubernetes node has no VMs but its pods.
    let (before, from) = all.split_once("[kubernetes]").expect("[kubernetes] is not switched on");
    let (kubernetes, after) = from.split_once("\n[[vm]]").expect("a VM");
    let least = "server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n[kubernetes]";
    let node = AgentConfig::parse("agent.toml", &format!("{least}{kubernetes}")).unwrap();
    let bare = AgentConfig::parse("agent.toml", least).unwrap();
    let mut node = node.kubernetes.unwrap();
    assert_eq!(node.node.take().as_deref(), Some("node-1"), "node is not switched on");
    assert_eq!(Some(node), bare.kubernetes, "the defaults of [kubernetes]");
    let all = format!("{before}\n[[vm]]{after}");
    let mut all = AgentConfig::parse("agent.toml", &all).unwrap();
    assert!(all.daemon.record_dir.take().is_some(), "record_dir is not switched on");
    assert!(all.daemon.tls.take().is_some(), "[tls] is not switched on");
    assert_eq!(all.groups.discover.drain(..).count(), 1, "[[discover]] is not switched on");
    assert!(all.throttle.floors.pop_first().is_some(), "[[class]] is not switched on");
    // `preset = "paper"` is switched on too, and no key of its own tells the steps.
    all.steps = shipped.steps;
    assert_eq!(comparable(all), comparable(shipped));
}

#[test]
fn the_chassiss_example_is_accepted_and_its_comments_tell_the_defaults() {
    let text = read("config/chassis.toml");
    let shipped = ChassisConfig::parse("chassis.toml", &text).unwrap();
    let mut all = ChassisConfig::parse("chassis.toml", &with_defaults_switched_on(&text)).unwrap();
    assert!(all.daemon.record_dir.take().is_some(), "record_dir is not switched on");
    assert!(all.daemon.tls.take().is_some(), "[tls] is not switched on");
    assert!(all.params.shared_floor.take().is_some(), "shared_w is not told");
    assert!(all.power_input.take().is_some(), "power_input is not switched on");
    assert!(all.params.supply_rated.pop().is_some(), "power_input is no supply");
    assert!(all.params.supply_names.pop().is_some(), "power_input has no name");
    assert_eq!(comparable(all), comparable(shipped));
}

#[test]
fn the_placement_daemons_example_is_accepted_and_its_comments_tell_the_defaults() {
    let text = read("config/place.toml");
    let shipped = PlaceConfig::parse("place.toml", &text).unwrap();
    let mut all = PlaceConfig::parse("place.toml", &with_defaults_switched_on(&text)).unwrap();
    assert!(all.tls.take().is_some(), "[tls] is not switched on");
    assert!(all.inventory.take().is_some(), "[inventory] is not switched on");
    let overcommit = all.overcommit.take().expect("[overcommit] is not switched on");
    assert_eq!((overcommit.estimator, all.policy.cpu_target_ppm.take()), (Estimator::Auto, Some(10_000)));
    assert!(all.drains.empty_below.take().is_some(), "[drains] is not switched on");
    for table in ["[predict]", "[placement]"] {
        assert!(with_defaults_switched_on(&text).lines().any(|line| line.starts_with(table)));
    }
    let bare = PlaceConfig::parse("place.toml", "name = \"a\"\n[admission]\n[kubernetes]\n").unwrap();
    assert_eq!(all.kubernetes.take(), bare.kubernetes, "the defaults of [kubernetes]");
    let priors = all.admission.as_mut().and_then(|admission| admission.priors.take());
    assert!(priors.is_some(), "priors are not switched on");
    assert_eq!(all.admission.take(), bare.admission, "the defaults of [admission]");
    assert_eq!(comparable(all), comparable(shipped));
}

/// A value as it stands in a file, without the comment after it; a number as every other way to write it.
fn value(text: &str) -> String {
    let text = text.split(" #").next().unwrap_or(text).trim();
    text.parse::<f64>().map_or_else(|_| text.to_owned(), |number| number.to_string())
}

/// Every key of the code is in its example, and where it is commented out it shows the code's default.
#[test]
fn every_key_is_in_its_example_with_its_default() {
    for (name, reference) in [
        ("agent", AgentConfig::reference()),
        ("chassis", ChassisConfig::reference()),
        ("place", PlaceConfig::reference()),
    ] {
        let text = read(&format!("config/{name}.toml"));
        let keys = reference.iter().flat_map(|table| &table.keys).map(|it| &it.key);
        for key in keys.clone().filter(|key| !key.help.starts_with("Decides nothing")) {
            assert!(text.contains(key.key), "config/{name}.toml says nothing of {} {}", key.heading, key.key);
        }

        let (mut heading, mut compared) = (String::new(), 0);
        for line in text.lines() {
            let inner = line.strip_prefix("# ").unwrap_or(line);
            if let Some(end) = inner.rfind(']').filter(|_| inner.starts_with('[')) {
                let table = inner.split('#').next().unwrap_or(&inner[..=end]);
                heading = table.trim().to_owned();
            }
            let Some((key, shown)) = inner.split_once(" = ").filter(|_| line.starts_with("# ")) else {
                continue;
            };
            let known = keys.clone().find(|it| it.key == key && it.heading == heading);
            let Some(default) = known.and_then(|it| it.default.as_deref()) else { continue };
            assert_eq!(value(shown), value(default), "config/{name}.toml: {heading} {key}");
            compared += 1;
        }
        assert!(compared > 10, "config/{name}.toml: only {compared} defaults were compared");
    }
}

/// The block under `key: |` of a YAML text, without its indentation.
fn block(text: &str, key: &str) -> String {
    let lines = text.lines().skip_while(|line| line.trim() != format!("{key}: |")).skip(1);
    let inner = |line: &str| line.strip_prefix("    ").map(str::to_owned);
    lines.map_while(inner).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_schedulers_examples_fit_the_placement_daemon() {
    let without_comments = |text: &str| {
        let kept = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        kept.collect::<Vec<_>>().join("\n")
    };

    let scheduler = without_comments(&read("config/kubernetes/scheduler.yaml"));
    let deployment = read("config/kubernetes/deployment.yaml");
    assert_eq!(block(&deployment, "scheduler.yaml"), scheduler, "the same, twice");

    for line in [
        "apiVersion: kubescheduler.config.k8s.io/v1",
        "    filterVerb: filter",
        "    prioritizeVerb: prioritize",
        "    nodeCacheCapable: true",
        "    ignorable: true",
    ] {
        assert!(scheduler.lines().any(|l| l == line), "{line}\n{scheduler}");
    }

    assert!(!scheduler.contains("managedResources") && !scheduler.contains("bindVerb"));
    let place = PlaceConfig::parse("place.toml", &block(&deployment, "place.toml")).unwrap();
    assert!(place.kubernetes.is_some_and(|kubernetes| kubernetes.shadow));
    let prefix = format!("  - urlPrefix: {}", place.listen[0]);
    assert!(scheduler.lines().any(|line| line == prefix), "{prefix}\n{scheduler}");
    assert!(
        !deployment.contains('\t')
            && deployment.contains("    resources: [\"nodes\", \"pods\"]\n    verbs: [\"list\", \"watch\"]")
    );
}

/// The image that the deployment runs is one that the recipe makes, of files that the packages install.
#[test]
fn the_container_recipe_fits_the_packages_and_the_deployment() {
    let recipe = read("packaging/container/Containerfile");
    let copies: Vec<_> =
        recipe.lines().filter_map(|line| line.strip_prefix("COPY ")?.split_once(' ')).collect();
    for (from, to) in &copies {
        let (package, path) = from.split_once('/').expect("a package's file");
        assert_eq!(format!("/{path}"), *to);
        let manifest = read(match package {
            "ballast" => "cli/Cargo.toml",
            "ballast-agent" => "daemons/agent/Cargo.toml",
            _ => "daemons/place/Cargo.toml",
        });
        let (folder, name) = path.rsplit_once('/').expect("a file in a folder");
        let asset = format!("/{name}\", \"{folder}/\"");
        assert!(manifest.contains(&asset), "the package {package} installs no {path}");
    }
    assert_eq!(copies.len(), 4, "{copies:?}");

    let deployment = read("config/kubernetes/deployment.yaml");
    let image = concat!("image: ballast-place:", env!("CARGO_PKG_VERSION"), "\n");
    assert!(deployment.contains(image) && recipe.contains(" AS ballast-place\n"), "{image}");
    let entry = "ENTRYPOINT [\"/usr/bin/ballast-place\"]\nCMD [\"--config\", \"/etc/ballast/place.toml\"]\n";
    let args = "args: [\"--config\", \"/etc/ballast/place.toml\"]\n";
    assert!(recipe.contains(entry) && deployment.contains(args));
}

#[test]
fn the_units_start_the_shipped_binaries_and_never_loop_on_a_refused_config() {
    for name in ["agent", "chassis", "place"] {
        let unit = read(&format!("systemd/ballast-{name}.service"));
        let has = |line: &str| assert!(unit.lines().any(|l| l == line), "{name}: no {line}");
        has(&format!("ExecStart=/usr/bin/ballast-{name} --config /etc/ballast/{name}.toml"));
        has(&format!("RestartPreventExitStatus={EXIT_CONFIG}"));
        has(&format!("StateDirectory=ballast-{name}"));
        has("Type=notify");
        has("Restart=always");
        has("WatchdogSec=5s");
        has("ProtectKernelTunables=yes");

        if name != "place" {
            // Both write below /sys, and only there.
            has("ReadWritePaths=/sys/devices");
        }

        let default = format!("# state_dir = \"/var/lib/ballast-{name}\"");
        let config = read(&format!("config/{name}.toml"));
        assert!(
            config.lines().any(|l| l.starts_with(&default)),
            "{name}.toml: state_dir is not StateDirectory"
        );
    }
}

#[test]
fn the_timer_trains_the_model_that_the_daemon_reads() {
    let shipped = PlaceConfig::parse("place.toml", &read("config/place.toml")).unwrap();
    let model = shipped.predict.model.display().to_string();
    assert!(model.starts_with("/var/lib/ballast-place/"), "{model} is not in StateDirectory");
    // What the daemon keeps is what lifetimes are learnt from.
    let table = shipped.state_dir.join("lifetimes.csv").display().to_string();
    assert!(shipped.predict.history_bytes_max.is_some());

    for (name, does, input, delay, at) in [
        ("ballast-train", "train", "BALLAST_HISTORY=", "2h", "03:00:00"),
        (
            "ballast-train-lifetimes",
            "train --target lifetime",
            &*format!("BALLAST_LIFETIMES={table}"),
            "1h",
            "05:30:00",
        ),
    ] {
        let unit = read(&format!("systemd/{name}.service"));
        let starts = |line: &str| unit.lines().find(|l| l.starts_with(line)).map(str::to_owned);
        let order = starts(&format!("ExecStart=/usr/bin/ballast {does} --input ")).expect("it trains");
        let output = format!("--output {model} --replace-if-not-worse");
        assert!(order.contains(&output), "{order}: not {output}");
        let input = format!("Environment={input}");
        for line in ["StateDirectory=ballast-place", "User=ballast-place", "PrivateNetwork=yes", &input] {
            assert!(starts(line).is_some(), "{name}: no {line}");
        }
        let timer = read(&format!("systemd/{name}.timer"));
        let (delay, at) = (format!("RandomizedDelaySec={delay}"), format!("OnCalendar=*-*-* {at}"));
        for line in ["Persistent=yes", &delay, &at] {
            assert!(timer.lines().any(|l| l == line), "{name}: no {line}");
        }
    }
}

#[test]
fn an_agent_that_does_not_come_back_is_released_by_the_orphan_unit() {
    let agent = read("systemd/ballast-agent.service");
    let orphan = read("systemd/ballast-agent-orphan.service");
    let arm = read("systemd/ballast-agent-arm.service");
    let config = "--config /etc/ballast/agent.toml";

    for (unit, line) in [
        (&agent, format!("ExecStopPost=/usr/bin/ballast-agent stop-post {config}")),
        (
            &agent,
            "ExecStartPost=-sh -c 'systemctl --no-block stop ballast-agent-orphan.timer 2>/dev/null'".into(),
        ),
        // Where that was killed before it had armed anything.
        (&agent, "OnFailure=ballast-agent-arm.service".into()),
        (&arm, "Environment=SERVICE_RESULT=failed".into()),
        (&arm, format!("ExecStart=/usr/bin/ballast-agent stop-post {config}")),
        (&arm, "Restart=on-failure".into()),
        (&orphan, format!("ExecStart=/usr/bin/ballast-agent release {config}")),
        (&orphan, format!("SuccessExitStatus={EXIT_LIVE}")),
        (&orphan, "Restart=on-failure".into()),
    ] {
        assert!(unit.lines().any(|l| l == line), "no {line}");
    }
}

#[test]
fn no_unit_takes_the_host_s_memory_or_tasks() {
    for entry in fs::read_dir(format!("{ROOT}/systemd")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "service") {
            let unit = fs::read_to_string(&path).unwrap();
            for key in ["MemoryMax=", "TasksMax="] {
                let limit = unit.lines().find_map(|line| line.strip_prefix(key));
                assert!(limit.is_some_and(|it| it != "infinity"), "{}: {key}{limit:?}", path.display());
            }
        }
    }
}

/// Without it the socket stays its owner's, and no member of the group may order.
#[test]
fn a_daemon_may_give_its_socket_to_the_group() {
    for daemon in ["agent", "chassis", "chassis@", "place"] {
        let unit = read(&format!("systemd/ballast-{daemon}.service"));
        assert!(unit.contains("\nSupplementaryGroups=ballast\n"), "{daemon}");
        let filters: Vec<_> =
            unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).collect();
        let at = |what: &str| filters.iter().position(|filter| filter.split(' ').any(|set| set == what));
        assert!(at("@chown") > at("~@privileged"), "{daemon}: {filters:?}");
    }
}

/// Without them a daemon only warns that it goes unbounded.
#[test]
fn a_daemon_may_bound_itself_by_landlock_and_seccomp() {
    for daemon in ["agent", "chassis", "chassis@", "place"] {
        let unit = read(&format!("systemd/ballast-{daemon}.service"));
        let calls = "landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp";
        assert!(unit.contains(&format!("\nSystemCallFilter={calls}\n")), "{daemon}");
    }
}

/// Every sentence of "what somebody can do who should not" names what holds it.
#[test]
fn the_tests_that_the_threat_model_names_are_there() {
    let text = read("docs/operate/access.md");
    let (_, rows) = text.split_once("| who has | tests |").expect("the table of tests");
    let (rows, _) = rows.split_once("\n\n").expect("an end of the table");
    let named: Vec<_> = rows.split('`').skip(1).step_by(2).collect();
    assert!(named.len() >= 15, "{named:?}");

    let sources = ["agent/tests", "chassis", "daemons", "sim", "tests/tests"];
    let sources = sources.map(|folder| sources_of(Path::new(ROOT).join(folder))).concat();
    for name in named {
        assert!(sources.contains(&format!("fn {name}(")), "no test is called {name}");
    }
}

/// Every line of Rust below a folder.
fn sources_of(folder: PathBuf) -> String {
    let entries =
        fs::read_dir(folder).expect("a folder of the project").map(|it| it.expect("an entry").path());
    let text = |path: PathBuf| match path.is_dir() {
        true => sources_of(path),
        false if path.extension().is_some_and(|it| it == "rs") => fs::read_to_string(path).expect("a source"),
        false => String::new(),
    };
    entries.map(text).collect()
}

#[test]
fn an_instance_of_the_manager_differs_in_config_and_state_alone() {
    let single = read("systemd/ballast-chassis.service")
        .replace("manager: keeps", "manager of %i: keeps")
        .replace("/etc/ballast/chassis.toml", "/etc/ballast/chassis-%i.toml")
        .replace("StateDirectory=ballast-chassis\n", "StateDirectory=ballast-chassis/%i\n")
        .replace("RuntimeDirectory=ballast-chassis\n", "RuntimeDirectory=ballast-chassis-%i\n");
    let many = read("systemd/ballast-chassis@.service");
    let unit: Vec<_> = many.lines().skip_while(|line| line.starts_with('#')).collect();
    assert_eq!(unit, single.lines().collect::<Vec<_>>());
    let deb = read("daemons/chassis/Cargo.toml");
    assert!(deb.contains("[\"../../systemd/ballast-chassis@.service\", \"usr/lib/systemd/system/\""));
}

/// Upgrades a package on a system where `running` units run: gives what its script asked of systemd, and what it
/// said. The new version refuses every config whose name holds `refused`.
fn upgrade(daemon: &str, running: &str, refused: &str) -> (String, String) {
    let scratch = tempfile::tempdir().expect("a folder");
    let (bin, log) = (scratch.path().join("bin"), scratch.path().join("log"));
    fs::create_dir_all(scratch.path().join("run/systemd/system")).expect("a folder");
    fs::create_dir(&bin).expect("a folder");
    let systemctl = format!(
        "[ \"$1\" = list-units ] && printf '%s loaded active running x\\n' {running}\n\
         [ \"$1\" = kill ] || [ \"$1\" = restart ] || exit 0\necho \"$@\" >>{}",
        log.display()
    );
    let judge = format!(
        "case \"$*\" in --check-config*{refused}*)\necho 'x.toml:1: budget_w is missing'\n\
         exit {EXIT_CONFIG};;\nesac"
    );
    for (name, script) in [
        ("systemctl", &*systemctl),
        (&*format!("ballast-{daemon}"), &judge),
        ("systemd-sysusers", ""),
        ("systemd-tmpfiles", ""),
        ("udevadm", ""),
    ] {
        let file = bin.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("a script");
    }

    let output = Command::new("sh")
        .args([&format!("{ROOT}/packaging/ballast-{daemon}/postinst"), "configure", "0.1.0-1"])
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("DPKG_ROOT", scratch.path())
        .output()
        .expect("a shell");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{said}");
    (fs::read_to_string(log).unwrap_or_default(), said)
}

#[test]
fn an_upgrade_replaces_a_daemon_only_if_the_new_version_takes_its_config() {
    const KILL: &str = "kill --signal=KILL --kill-who=main";
    for (daemon, replaced) in [
        ("agent", format!("{KILL} ballast-agent.service\n")),
        ("chassis", format!("{KILL} ballast-chassis.service\n")),
        ("place", "restart ballast-place.service\n".to_owned()),
    ] {
        let unit = format!("ballast-{daemon}.service");
        assert_eq!(upgrade(daemon, &unit, "nothing"), (replaced, String::new()));
        let (asked, said) = upgrade(daemon, &unit, &format!("/etc/ballast/{daemon}.toml"));
        assert_eq!(asked, "", "{daemon} is replaced by one that refuses its config");
        assert!(said.contains("x.toml:1: budget_w is missing") && said.contains("Mend"), "{said}");
    }

    let (asked, said) = upgrade(
        "chassis",
        "ballast-chassis@a.service ballast-chassis@b.service",
        "/etc/ballast/chassis-a.toml",
    );
    assert_eq!(asked, format!("{KILL} ballast-chassis@b.service\n"));
    assert!(said.contains("Mend /etc/ballast/chassis-a.toml"), "{said}");
}

/// `DeviceAllow=` is looked up as a service starts: before that its driver must be there.
#[test]
fn the_bmc_s_device_is_allowed_once_its_driver_is_there() {
    for name in ["agent", "agent-orphan"] {
        let unit = read(&format!("systemd/ballast-{name}.service"));
        let has = |key: &str, value: &str| {
            let values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            assert!(values.flat_map(str::split_whitespace).any(|v| v == value), "{name}: {key}");
        };
        has("DeviceAllow", "char-ipmidev");
        has("After", "modprobe@ipmi_devintf.service");
        has("Wants", "modprobe@ipmi_devintf.service");
    }
}

/// Runs `systemd-analyze`; `None`, with a word to the reader, where there is none.
#[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
fn analyze(args: &[&str]) -> Option<String> {
    match Command::new("systemd-analyze").args(args).current_dir(ROOT).output() {
        Ok(output) => Some(
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        ),
        Err(error) => {
            eprintln!("SKIPPED: systemd-analyze: {error}");
            None
        }
    }
}

#[test]
fn the_units_are_sound_and_as_locked_up_as_their_writes_allow() {
    // Exposure as systemd-analyze reckons it, 0 to 10; 0.2 of it is that sockets belong to a group.
    let most = [
        ("agent", 2.5),
        ("agent-arm", 1.1),
        ("agent-orphan", 2.1),
        ("chassis", 1.6),
        ("chassis@", 1.6),
        ("place", 1.2),
        ("train", 0.3),
    ];

    for (name, most) in most {
        let unit = format!("systemd/ballast-{name}.service");
        let security = ["security", "--offline=true", "--no-pager", &unit];
        let Some(text) = analyze(&security) else { return };
        let level = text.lines().last().and_then(|line| line.split(": ").nth(1)).unwrap_or(&text);
        let level: f64 = level.split(' ').next().and_then(|n| n.parse().ok()).expect(&text);
        assert!(level <= most, "{unit}: {level}, not {most}\n{text}");

        // What is not installed here is no fault of the unit.
        let Some(text) = analyze(&["verify", "--man=no", "--recursive-errors=no", &unit]) else {
            return;
        };
        let faults: Vec<_> = text.lines().filter(|line| !line.contains("/usr/bin/ballast")).collect();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
