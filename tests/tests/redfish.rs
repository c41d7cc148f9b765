//! The Redfish client against a BMC with faults: one row is one fault, and what comes of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use ballast_bmc::BmcError;
use ballast_bmc::redfish::{Auth, Credentials, Redfish, RedfishCap, RedfishCapState, Settings};
use ballast_hw::{PowerMeter, SensorError, SupplyMeter};
use ballast_runtime::config::{BmcAddress, RedfishConfig};
use ballast_runtime::redfish::Bmcs;
use ballast_testbed::lab::bmc::{Generation, MockBmc, Model, PASSWORD, USERNAME};
use ballast_types::{Cap as _, Supply, SupplyState, Watts};
use serde_json::{Value, json};

ballast_testbed::wall_time![
    draw_supplies_and_power_state_are_read_in_every_generation,
    a_cap_is_set_verified_and_put_back_in_every_generation,
    a_cap_never_raises_a_lower_limit_of_before,
    a_missing_reading_is_missing_and_never_low,
    garbage_instead_of_a_resource_is_named,
    caps_that_cannot_or_must_not_be_set_are_refused_with_the_reason,
    what_passes_is_got_over,
    a_put_back_that_is_not_kept_is_an_error_until_it_is,
    a_bmc_that_changes_its_generation_keeps_its_limit_and_says_so,
    openbmcs_older_resource_is_left_alone_where_there_is_a_newer_one,
    accounts_that_are_not_let_in_are_told_and_no_password_is_shown,
    a_chassis_is_named_where_several_would_do,
    nobody_at_the_address_and_a_certificate_file_without_one_are_errors,
    a_supply_is_what_its_bmc_says_and_without_a_value_it_is_missing,
    a_supply_that_is_not_listed_is_missing_and_the_others_are_named,
    supplies_of_one_bmc_share_its_answer_and_its_one_session_which_is_ended,
    a_bmc_that_answers_too_late_is_missing_and_holds_up_no_longer_than_told,
    a_servers_draw_is_read_in_every_generation_and_null_zero_and_implausible_are_missing,
];

const CAP: Watts = Watts::from_whole(180);
const GENERATIONS: [Generation; 3] = [Generation::Older, Generation::Newer, Generation::Both];

fn settings(bmc: &MockBmc) -> Settings {
    Settings {
        url: bmc.url(),
        credentials: Credentials { username: USERNAME.into(), password: PASSWORD.into() },
        auth: Auth::Session,
        ca_file: None,
        pin: None,
        credentials_file: None,
        timeout: Duration::from_secs(2),
        chassis: None,
    }
}
fn client(bmc: &MockBmc) -> Redfish {
    Redfish::new(settings(bmc)).expect("a client")
}
/// A server's cap, and what it was at first.
fn cap(bmc: &MockBmc) -> (RedfishCap, RedfishCapState) {
    let mut cap = RedfishCap::new(client(bmc));
    let original = cap.read().expect("the BMC answers");
    (cap, original)
}
fn bmc(generation: Generation, change: impl FnOnce(&mut Model)) -> MockBmc {
    let mut model = Model::new(generation);
    change(&mut model);
    MockBmc::start(model)
}
/// A model with the limit on, whatever the generation.
fn on(model: &mut Model, watts: Value) {
    model.limit = watts;
    model.mode = json!("Automatic");
}

fn draw_supplies_and_power_state_are_read_in_every_generation() {
    for generation in GENERATIONS {
        let bmc = bmc(generation, |model| model.power = json!(230.25));
        let mut redfish = client(&bmc);
        assert_eq!(redfish.power().unwrap(), Watts::from_milli(230_250), "{generation:?}");
        let supplies = redfish.supplies().unwrap();
        let seen: Vec<_> = supplies.iter().map(|s| (s.state, s.input)).collect();
        let first = (SupplyState::Active, Some(Watts::from_milli(131_500)));
        assert_eq!(seen, [first, (SupplyState::Standby, Some(Watts::ZERO))], "{generation:?}");
        assert_eq!(redfish.powered().unwrap(), Some(true));

        for (state, expected) in
            [(json!("Off"), Some(false)), (json!("PoweringOn"), None), (Value::Null, None)]
        {
            bmc.model().powered = state;
            assert_eq!(redfish.powered().unwrap(), expected);
        }

        assert_eq!(bmc.model().sessions.len(), 1, "one login for all of it");
        drop(redfish);
        assert!(bmc.model().sessions.is_empty(), "the session is left open");
    }
}

fn a_cap_is_set_verified_and_put_back_in_every_generation() {
    for (generation, limit, mode, exception) in [
        (Generation::Older, Value::Null, json!("Automatic"), json!("NoAction")),
        (Generation::Older, json!(300), json!("Automatic"), json!("LogEventOnly")),
        (Generation::Older, json!(300), json!("Automatic"), Value::Null),
        (Generation::Newer, json!(300), json!("Disabled"), Value::Null),
        (Generation::Newer, json!(300.5), json!("Automatic"), Value::Null),
        (Generation::Newer, json!(300), json!("Manual"), Value::Null),
        (Generation::Newer, Value::Null, json!("Disabled"), Value::Null),
        (Generation::Newer, Value::Null, Value::Null, Value::Null),
        (Generation::Both, json!(300), json!("Disabled"), json!("NoAction")),
    ] {
        let bmc = bmc(generation, |model| {
            (model.limit, model.mode, model.exception) = (limit.clone(), mode.clone(), exception);
            model.faults.refused_while_disabled = generation == Generation::Both;
        });

        let before = bmc.model().in_force();
        let (mut cap, original) = cap(&bmc);
        cap.set(CAP, &original).unwrap();
        assert_eq!(bmc.model().in_force(), Some(180.0), "{generation:?} {limit} {mode}");
        let now = cap.read().unwrap();
        assert!(RedfishCap::is_on(&now, &original) && !RedfishCap::is_on(&original, &original));

        // What is saved is enough for another life.
        let text = serde_json::to_string(&original).unwrap();
        let original: RedfishCapState = serde_json::from_str(&text).unwrap();

        for _ in 0..2 {
            cap.put_back(&original).unwrap();
            assert_eq!(bmc.model().in_force(), before, "{generation:?} {limit} {mode}");
        }

        if limit.as_f64().is_some() {
            assert_eq!(bmc.model().limit.as_f64(), limit.as_f64(), "the set point is another one");
        }
        assert!(bmc.model().requests.iter().all(|(_, _, body)| !body.contains("PowerOff")));
    }
}

fn a_cap_never_raises_a_lower_limit_of_before() {
    let bmc = bmc(Generation::Older, |model| model.limit = json!(150));
    let (mut cap, original) = cap(&bmc);
    cap.set(CAP, &original).unwrap();
    assert_eq!(bmc.model().in_force(), Some(150.0));
}

fn a_missing_reading_is_missing_and_never_low() {
    type Row = (Generation, fn(&mut Model), &'static str);
    let rows: [Row; 15] = [
        (Generation::Older, |m| m.power = Value::Null, "PowerConsumedWatts is null"),
        (Generation::Newer, |m| m.power = Value::Null, "PowerWatts.Reading is null"),
        (Generation::Older, |m| m.power = json!(0), "above 0"),
        (Generation::Newer, |m| m.power = json!(0.0), "above 0"),
        (Generation::Newer, |m| m.power = json!(-230), "above 0"),
        (Generation::Older, |m| m.power = json!(1e12), "above 0"),
        (Generation::Older, |m| m.power = json!("230"), "invalid type"),
        (Generation::Newer, |m| m.power = json!({"x": 1}), "invalid type"),
        (Generation::Older, |m| m.faults.garbage = true, "X-Auth-Token|status 200"),
        (Generation::Older, |m| m.faults.huge = true, "at most 524288 bytes"),
        (Generation::Older, |m| m.faults.redirect = true, "redirects are not followed"),
        (Generation::Older, |m| m.faults.status = (9, 500), "500"),
        (Generation::Newer, |m| m.faults.status = (9, 503), "told to fail"),
        (Generation::Newer, |m| m.faults.status = (9, 403), "may not do this"),
        (Generation::Newer, |m| m.faults.delay = Duration::from_secs(20), "within 2000 ms"),
    ];

    for (n, (generation, fault, says)) in rows.into_iter().enumerate() {
        let bmc = bmc(generation, fault);
        let began = Instant::now();
        let error = client(&bmc).power().unwrap_err().to_string();
        assert!(says.split('|').any(|says| error.contains(says)), "row {n}: {error}");
        assert!(began.elapsed() < Duration::from_secs(10), "row {n}");
        assert!(!error.contains(PASSWORD), "{error}");
    }
}

/// Garbage after the login: the session is there, the resources are not.
fn garbage_instead_of_a_resource_is_named() {
    let bmc = bmc(Generation::Older, |_| {});
    let mut redfish = client(&bmc);
    redfish.power().unwrap();
    bmc.model().faults.garbage = true;
    let error = redfish.power().unwrap_err().to_string();
    assert!(error.contains("/Power") && error.contains("<html>"), "{error}");
    bmc.model().faults.garbage = false;
    assert!(redfish.power().is_ok(), "it recovers by itself");
}

/// Caps that are refused before, or by, the BMC; none leaves a limit on.
fn caps_that_cannot_or_must_not_be_set_are_refused_with_the_reason() {
    type Row = (Generation, fn(&mut Model), i64, &'static str, bool);
    let rows: [Row; 17] = [
        (Generation::Older, |m| m.exception = json!("HardPowerOff"), 180, "switch the server off", false),
        (Generation::Older, |m| m.exception = json!("Oem"), 180, "LimitException = \"Oem\"", false),
        (Generation::Newer, |m| m.units = json!("%"), 180, "SetPointUnits = \"%\"", false),
        (Generation::Newer, |m| m.units = json!("Percent"), 180, "only watts", false),
        (Generation::Newer, |m| m.mode = json!("Override"), 180, "ControlMode = \"Override\"", false),
        (Generation::Newer, |_| {}, 99, "100 to 600 W", false),
        (Generation::Newer, |_| {}, 601, "100 to 600 W", false),
        (Generation::Older, |_| {}, 0, "expected", false),
        (Generation::Older, |_| {}, -180, "expected", false),
        (Generation::Older, |m| m.faults.forgetful = true, 180, "reads no limit after 180 W", true),
        (Generation::Newer, |m| m.faults.forgetful = true, 180, "reads no limit after 180 W", true),
        (Generation::Newer, |m| m.faults.stale = 9, 180, "412", true),
        (Generation::Older, |m| m.faults.stale = 9, 180, "412", true),
        (Generation::Newer, |m| m.faults.status = (9, 500), 180, "500", true),
        (Generation::Newer, |m| m.faults.status = (9, 429), 180, "429", true),
        (Generation::Newer, |m| m.faults.status = (9, 401), 180, "username", false),
        (Generation::Newer, |m| m.faults.delay = Duration::from_secs(20), 180, "within 2000 ms", true),
    ];

    for (n, (generation, fault, watts, says, transient)) in rows.into_iter().enumerate() {
        let bmc = bmc(generation, |_| {});
        let (mut cap, original) = cap(&bmc);
        fault(&mut bmc.model());
        let error = cap.set(Watts::from_whole(watts), &original).unwrap_err();
        assert!(error.reason.contains(says), "row {n}: {error}");
        assert_eq!(error.transient, transient, "row {n}: {error}");
        assert_eq!(bmc.model().in_force(), None, "row {n}");
    }
}

/// Faults that pass: the cap is set all the same.
fn what_passes_is_got_over() {
    type Row = (Generation, fn(&mut Model));
    let rows: [Row; 6] = [
        (Generation::Older, |m| m.faults.expire = 1),
        (Generation::Newer, |m| m.faults.expire = 1),
        (Generation::Older, |m| m.faults.stale = 1),
        (Generation::Newer, |m| m.faults.stale = 1),
        (Generation::Newer, |m| m.faults.must_match = true),
        (Generation::Newer, |m| m.faults.delay = Duration::from_millis(100)),
    ];
    for (n, (generation, fault)) in rows.into_iter().enumerate() {
        let bmc = bmc(generation, |_| {});
        let (mut cap, original) = cap(&bmc);
        fault(&mut bmc.model());
        cap.set(CAP, &original).unwrap_or_else(|error| panic!("row {n}: {error}"));
        assert_eq!(bmc.model().in_force(), Some(180.0), "row {n}");
    }
}

fn a_put_back_that_is_not_kept_is_an_error_until_it_is() {
    for generation in [Generation::Older, Generation::Newer] {
        let bmc = bmc(generation, |_| {});
        let (mut cap, original) = cap(&bmc);
        cap.set(CAP, &original).unwrap();
        bmc.model().faults.forgetful = true;
        let error = cap.put_back(&original).unwrap_err();
        assert!(error.transient && error.reason.contains("reads 180 W"), "{error}");
        bmc.model().faults.forgetful = false;
        cap.put_back(&original).unwrap();
        assert_eq!(bmc.model().in_force(), None);
    }
}

fn a_bmc_that_changes_its_generation_keeps_its_limit_and_says_so() {
    let bmc = bmc(Generation::Older, |_| {});
    let (mut cap, original) = cap(&bmc);
    cap.set(CAP, &original).unwrap();
    // Updated: the older resource is gone.
    {
        let mut model = bmc.model();
        model.generation = Generation::Newer;
        on(&mut model, json!(180));
    }
    cap.put_back(&original).unwrap_err();
    let error = cap.put_back(&original).unwrap_err();
    assert!(error.reason.contains("another generation"), "{error}");
}

fn openbmcs_older_resource_is_left_alone_where_there_is_a_newer_one() {
    let bmc = bmc(Generation::Both, |model| model.limit = json!(300));
    let (mut cap, original) = cap(&bmc);
    cap.set(CAP, &original).unwrap();
    let model = bmc.model();
    assert_eq!((model.count("PATCH", "/EnvironmentMetrics"), model.count("PATCH", "/Power")), (1, 0));
}

fn accounts_that_are_not_let_in_are_told_and_no_password_is_shown() {
    let bmc = bmc(Generation::Older, |_| {});
    for auth in [Auth::Session, Auth::Basic] {
        let mut redfish = Redfish::new(Settings { auth, ..settings(&bmc) }).unwrap();
        assert!(redfish.power().is_ok(), "{auth:?}");
        let credentials = Credentials { username: USERNAME.into(), password: "wrong-word".into() };
        let mut redfish = Redfish::new(Settings { auth, credentials, ..settings(&bmc) }).unwrap();
        let error = redfish.power().unwrap_err();
        assert!(error.to_string().contains("wrong username or password"), "{auth:?}: {error}");
        assert!(!format!("{error:?}").contains("wrong-word"));
    }
    let model = bmc.model();
    assert!(model.count("POST", "Sessions") <= 2, "a refused login is not tried in a loop");
}

fn a_chassis_is_named_where_several_would_do() {
    let bmc = bmc(Generation::Older, |_| {});
    let named = |name: &str| {
        let chassis = Some(name.to_owned());
        Redfish::new(Settings { chassis, ..settings(&bmc) }).unwrap().power()
    };
    assert!(named("1").is_ok());
    for name in ["2", "Bay"] {
        let error = named(name).unwrap_err();
        assert!(matches!(error, BmcError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("name one of 1, Bay"), "{error}");
    }
}

fn nobody_at_the_address_and_a_certificate_file_without_one_are_errors() {
    let url = MockBmc::start(Model::new(Generation::Older)).url();
    let bmc = bmc(Generation::Older, |_| {});
    let mut redfish = Redfish::new(Settings { url: url.clone(), ..settings(&bmc) }).unwrap();
    let error = redfish.power().unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&url), "{error}");
    for file in ["/nonexistent/ca.pem", "/dev/null"] {
        let ca_file = Some(file.into());
        let error = Redfish::new(Settings { ca_file, ..settings(&bmc) }).err().unwrap();
        assert!(error.to_string().contains(file), "{error}");
    }
}

/// What the daemons read BMCs by, and the folder of its credentials.
fn bmcs() -> (Bmcs, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bmc.toml");
    fs::write(&file, format!("username = {USERNAME:?}\npassword = {PASSWORD:?}\n")).expect("a file");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("a mode");
    let config = RedfishConfig {
        credentials_file: Some(file),
        ca_file: None,
        timeout: Duration::from_millis(400),
        auth: Auth::Session,
    };
    (Bmcs::new(&config), folder)
}
fn address(bmc: &MockBmc) -> BmcAddress {
    BmcAddress { url: bmc.url(), chassis: None, pin: None }
}
fn at(ms: u64) -> ballast_types::Instant {
    ballast_types::Instant::from_millis(ms)
}

/// One row: what a BMC says of a supply, and what the manager is told of it.
fn a_supply_is_what_its_bmc_says_and_without_a_value_it_is_missing() {
    let read = |state, watts: Option<i64>| Supply { state, input: watts.map(Watts::from_whole) };
    type Row = (Value, Value, Value, Supply);
    let rows: [Row; 15] = [
        (json!("Enabled"), json!("OK"), json!(412), read(SupplyState::Active, Some(412))),
        (json!("Enabled"), json!("Warning"), json!(412.0), read(SupplyState::Active, Some(412))),
        // The manager takes one that is active and has no value for missing.
        (json!("Enabled"), json!("OK"), Value::Null, read(SupplyState::Active, None)),
        (json!("Enabled"), json!("OK"), json!(-1), read(SupplyState::Active, None)),
        (json!("Enabled"), json!("OK"), json!(1e9), read(SupplyState::Active, None)),
        (json!("StandbySpare"), json!("OK"), json!(0), read(SupplyState::Standby, Some(0))),
        (json!("Enabled"), json!("Critical"), json!(0), read(SupplyState::Failed, Some(0))),
        (json!("Enabled"), json!("Critical"), json!(90), read(SupplyState::Failed, Some(90))),
        (json!("Enabled"), json!("Critical"), Value::Null, Supply::UNKNOWN),
        (json!("UnavailableOffline"), json!("Critical"), json!(0), read(SupplyState::Failed, Some(0))),
        (json!("UnavailableOffline"), Value::Null, Value::Null, Supply::UNKNOWN),
        (json!("Absent"), Value::Null, Value::Null, read(SupplyState::Absent, Some(0))),
        (json!("Starting"), json!("OK"), json!(412), Supply::UNKNOWN),
        (Value::Null, Value::Null, Value::Null, Supply::UNKNOWN),
        // A type that is none fails the whole answer.
        (json!(7), json!("OK"), json!(412), Supply::UNKNOWN),
    ];

    for generation in GENERATIONS {
        let bmc = bmc(generation, |_| {});
        let (mut bmcs, _folder) = bmcs();
        let mut meter = SupplyMeter::new("s", bmcs.supply(&address(&bmc), "1").unwrap());

        for (n, (state, health, input, expected)) in rows.iter().enumerate() {
            bmc.model().supplies[1] = [state.clone(), health.clone(), input.clone()];
            let (found, _) = meter.poll(at(n as u64));
            assert_eq!(found, *expected, "{generation:?} row {n}");
        }

        assert!(meter.problem().is_some_and(|why| why.contains("invalid type")));
    }
}

fn a_supply_that_is_not_listed_is_missing_and_the_others_are_named() {
    let bmc = bmc(Generation::Newer, |_| {});
    let (mut bmcs, _folder) = bmcs();
    let mut meter = SupplyMeter::new("s", bmcs.supply(&address(&bmc), "PSU2").unwrap());
    assert_eq!(meter.poll(at(1)).0.state, SupplyState::Unknown);
    assert_eq!(meter.problem(), Some("the BMC has no supply \"PSU2\", but 0, 1"));
    // One that was there and is no longer listed is not "draws nothing" either.
    let mut meter = SupplyMeter::new("s", bmcs.supply(&address(&bmc), "1").unwrap());
    assert_eq!(meter.poll(at(2)).0.state, SupplyState::Standby);
    bmc.model().supplies.pop();
    assert_eq!(meter.poll(at(3)).0, Supply::UNKNOWN);
}

fn supplies_of_one_bmc_share_its_answer_and_its_one_session_which_is_ended() {
    let bmc = bmc(Generation::Older, |_| {});
    let (mut bmcs, _folder) = bmcs();
    let meters = ["0", "1"].map(|id| bmcs.supply(&address(&bmc), id).unwrap());
    let mut meters = meters.map(|supply| SupplyMeter::new("s", supply));

    for (asked_at, asked) in [(1, 1), (2, 2)] {
        let states = meters.each_mut().map(|meter| meter.poll(at(asked_at)).0.state);
        assert_eq!(states, [SupplyState::Active, SupplyState::Standby]);
        assert_eq!(bmc.model().count("GET", "/Power"), asked, "one question for both");
    }

    // What one of them cannot have, the other one need not wait for.
    bmc.model().faults.status = (1, 503);
    let states = meters.each_mut().map(|meter| meter.poll(at(3)).0.state);
    assert_eq!(states, [SupplyState::Unknown; 2]);
    assert_eq!(meters[0].poll(at(4)).0.state, SupplyState::Active, "it recovers by itself");
    assert_eq!(bmc.model().sessions.len(), 1);
    drop(bmcs);
    assert!(bmc.model().sessions.is_empty(), "the session is left open");
    assert_eq!(meters[0].poll(at(5)).0.state, SupplyState::Unknown);
}

fn a_bmc_that_answers_too_late_is_missing_and_holds_up_no_longer_than_told() {
    let bmc = bmc(Generation::Older, |_| {});
    let (mut bmcs, _folder) = bmcs();
    let mut supply = SupplyMeter::new("s", bmcs.supply(&address(&bmc), "0").unwrap());
    let most = Watts::from_whole(500);
    let mut meter = PowerMeter::new(bmcs.meter(&address(&bmc)).unwrap(), most);
    assert_eq!(supply.poll(at(1)).0.state, SupplyState::Active);
    assert_eq!(meter.sample(at(1)).unwrap().0, Watts::from_whole(230));
    bmc.model().faults.delay = Duration::from_secs(5);
    let began = Instant::now();
    assert_eq!(supply.poll(at(2)).0, Supply::UNKNOWN);
    let late = meter.sample(at(2)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(matches!(&late, SensorError::Device(why) if why.contains("within 400 ms")), "{late}");
    assert!(supply.problem().is_some_and(|why| why.contains("within 400 ms")));
    // An end does not wait for it either.
    drop(bmcs);
    assert!(began.elapsed() < Duration::from_secs(5));
}

fn a_servers_draw_is_read_in_every_generation_and_null_zero_and_implausible_are_missing() {
    for generation in GENERATIONS {
        let bmc = bmc(generation, |_| {});
        let (mut bmcs, _folder) = bmcs();
        let most = Watts::from_whole(500);
        let mut meter = PowerMeter::new(bmcs.meter(&address(&bmc)).unwrap(), most);
        let taken = |s: u64| (Watts::from_whole(230), at(s));
        assert_eq!(meter.sample(at(1)).unwrap(), taken(1));
        assert_eq!(meter.sample(at(2)).unwrap(), taken(1), "the same value");

        for (power, says) in [
            (Value::Null, "is null"),
            (json!(0), "above 0"),
            (json!(-3), "above 0"),
            (json!("230"), "invalid type"),
            (json!(501), "at most 500.0 W"),
        ] {
            bmc.model().power = power;
            let error = meter.sample(at(3)).unwrap_err().to_string();
            assert!(error.contains(says), "{generation:?}: {error}");
        }

        bmc.model().power = json!(231);
        assert!(meter.sample(at(4)).is_ok());
    }
}
