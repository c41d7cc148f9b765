//! The power supplies of a chassis, as PMBus drivers show them in hwmon.
//!
//! One supply is one hwmon device with the channels `pin` (what it draws), `pout1` (what it gives),
//! `vin` (its feed) and `vout1`. PMBus has no file for the state, so it is told from these, in this
//! order:
//!
//! | seen | state |
//! |---|---|
//! | no such device any more, but another one of the same driver | `Absent`: the driver lives, the supply was pulled |
//! | no such device at all, or any read fails | `Unknown`: the bus or the driver is gone, not the load |
//! | gives at least 1 W (without `pout`: draws more than 0 W) | `Active` |
//! | `vin` reads 0 or less, or an undervoltage or output alarm is set | `Failed` |
//! | feed present, gives nothing | `Standby` |
//! | none of these sensors | `Unknown` |
//!
//! Carrying load comes before alarms: PMBus latches alarms, so an old one says nothing of now.
//!
//! Source: Documentation/hwmon/pmbus.rst and pmbus-core.rst.

use ballast_types::{Instant, Watts};
use tracing::{info, warn};

use crate::Root;
use crate::error::HwError;
use crate::hwmon::{Channel, Device, devices};
use crate::meter::Freshness;

/// A supply that gives less than this carries nothing: 1 W, in microwatts.
const CARRIES_UW: i64 = 1_000_000;
/// No single supply draws more than this: 100 kW, in microwatts.
const ABSURD_UW: i64 = 100_000_000_000;
/// Identical readings in a row until an active supply's sensor counts as frozen.
const FROZEN_AFTER: u32 = 25;

/// How a power supply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupplyState {
    /// Carries load.
    Active,
    /// Ready, carries nothing.
    Standby,
    /// Broken, or its feed is lost.
    Failed,
    /// Not there.
    Absent,
    /// Cannot be told.
    Unknown,
}

/// One reading of one supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupplyRead {
    /// How it is.
    pub state: SupplyState,
    /// What it draws from its feed; `None` when there is no usable value.
    pub input: Option<Watts>,
}

impl SupplyRead {
    const UNKNOWN: Self = Self { state: SupplyState::Unknown, input: None };
}

/// Every configured supply of one chassis.
#[derive(Debug)]
pub struct Supplies {
    root: Root,
    supplies: Vec<Supply>,
    /// When the newest value was produced.
    taken_at: Instant,
}

#[derive(Debug)]
struct Supply {
    name: String,
    freshness: Freshness,
    last: Option<SupplyRead>,
    /// Whether its device was there since this started.
    seen: bool,
    /// What is wrong with it, as last logged.
    said: String,
}

impl Supplies {
    /// The supplies with these names, in this order: a driver's name, or `name@device` where several
    /// devices have the same driver (see [`crate::MatchSpec::name`]).
    #[must_use]
    pub fn new(root: &Root, names: &[String]) -> Self {
        let supply = |name: &String| Supply {
            name: name.clone(),
            freshness: Freshness::default(),
            last: None,
            seen: false,
            said: String::new(),
        };
        Self {
            root: root.clone(),
            supplies: names.iter().map(supply).collect(),
            taken_at: Instant::ZERO,
        }
    }

    /// Reads every supply, in configured order, and says when the newest of the values was produced.
    ///
    /// That instant moves only when a value or a state does. `now` must be taken just before.
    pub fn poll(&mut self, now: Instant) -> (Vec<SupplyRead>, Instant) {
        let devices = devices(&self.root).unwrap_or_else(|e| {
            warn!(%e, "no hwmon devices");
            Vec::new()
        });
        let mut reads = Vec::with_capacity(self.supplies.len());
        for supply in &mut self.supplies {
            let (read, moved) = supply.poll(&devices, now);
            if moved {
                self.taken_at = now;
            }
            reads.push(read);
        }
        (reads, self.taken_at)
    }
}

impl Supply {
    fn unknown(&mut self, why: String) -> (SupplyRead, Option<i64>) {
        self.say(why);
        (SupplyRead::UNKNOWN, None)
    }

    /// Logs what is wrong when that changes, not at every poll.
    fn say(&mut self, why: String) {
        if why != self.said {
            if why.is_empty() {
                info!(supply = self.name, "power supply is read again");
            } else {
                warn!(supply = self.name, why, "power supply is not read");
            }
            self.said = why;
        }
    }

    fn poll(&mut self, devices: &[Device], now: Instant) -> (SupplyRead, bool) {
        let mut found = devices.iter().filter(|d| d.is(&self.name));
        let (read, raw) = match (found.next(), found.next()) {
            (Some(device), None) => {
                self.seen = true;
                match read(device) {
                    Ok(read) => {
                        self.say(String::new());
                        read
                    }
                    Err(e) => self.unknown(e.to_string()),
                }
            }
            (Some(_), Some(_)) => self.unknown("several devices of this name: name@device".into()),
            // One that was never there may be there under another name: that is not "draws nothing".
            (None, _) if self.seen && devices.iter().any(|d| d.has_driver_of(&self.name)) => {
                self.say("it is gone".into());
                (SupplyRead { state: SupplyState::Absent, input: Some(Watts::ZERO) }, None)
            }
            (None, _) => self.unknown("no such hwmon device".into()),
        };
        let mut moved = false;
        let mut read = read;
        if let Some(raw) = raw {
            let (taken_at, reads) = self.freshness.see(raw, now);
            moved = taken_at == now;
            if reads > FROZEN_AFTER && read.state == SupplyState::Active {
                read = SupplyRead::UNKNOWN;
            }
        }
        moved |= self.last.is_some_and(|last| last.state != read.state);
        self.last = Some(read);
        (read, moved)
    }
}

/// The reading, and the raw input power if there is one.
fn read(device: &Device) -> Result<(SupplyRead, Option<i64>), HwError> {
    let powers = device.channels("power")?;
    let volts = device.channels("in")?;
    let value = |channels: &[Channel], label| {
        channels.iter().find(|c| c.is(label)).map(Channel::read).transpose()
    };
    // A device without labels has one channel, and that is its input.
    let unlabelled = powers.iter().find(|c| c.label.is_none());
    let input = match value(&powers, "pin")? {
        Some(input) => Some(input),
        None => unlabelled.map(Channel::read).transpose()?,
    };
    let output = value(&powers, "pout")?;
    let feed = value(&volts, "vin")?;
    let carries = match (output, input) {
        (Some(output), _) => output >= CARRIES_UW,
        (None, Some(input)) => input > 0,
        (None, None) => false,
    };
    let state = if carries {
        SupplyState::Active
    } else if feed.is_some_and(|mv| mv <= 0) || alarmed(device, &volts)? {
        SupplyState::Failed
    } else if feed.is_some() {
        SupplyState::Standby
    } else {
        SupplyState::Unknown
    };
    let least = if state == SupplyState::Active { 1 } else { 0 };
    let plausible = input.filter(|uw| (least..=ABSURD_UW).contains(uw));
    let watts = plausible.map(|uw| Watts::from_milli(uw / 1000));
    Ok((SupplyRead { state, input: watts }, input))
}

/// Whether the feed is too low, or the output is not what it should be.
fn alarmed(device: &Device, volts: &[Channel]) -> Result<bool, HwError> {
    for channel in volts {
        let alarms: &[&str] = match channel {
            c if c.is("vin") => &["lcrit_alarm"],
            c if c.is("vout") => &["lcrit_alarm", "crit_alarm"],
            _ => &[],
        };
        for alarm in alarms {
            if device.number(&format!("{}_{alarm}", channel.stem))? == Some(1) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/class/hwmon/hwmon2";

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn tree(values: &[(&str, &str)]) -> Tree {
        let tree = Tree::new();
        tree.folder(
            DIR,
            &[
                ("name", "psu"),
                ("power1_label", "pin"),
                ("power2_label", "pout1"),
                ("in1_label", "vin"),
                ("in2_label", "vout1"),
            ],
        );
        tree.folder(DIR, values);
        tree
    }
    fn poll(tree: &Tree) -> SupplyRead {
        Supplies::new(tree.root(), &["psu".to_owned()]).poll(at(1)).0[0]
    }

    #[test]
    fn the_state_follows_from_what_pmbus_shows() {
        use SupplyState::{Active, Failed, Standby, Unknown};
        let w = |n| Some(Watts::from_whole(n));
        type Case<'a> = (&'a [(&'a str, &'a str)], SupplyState, Option<Watts>);
        let (pin, pout, vin) = ("power1_input", "power2_input", "in1_input");
        let cases: &[Case<'_>] = &[
            (&[(pin, "1500000000"), (pout, "1400000000"), (vin, "230000")], Active, w(1500)),
            // A latched alarm on a supply that carries load.
            (
                &[
                    (pin, "1500000000"),
                    (pout, "1400000000"),
                    (vin, "230000"),
                    ("in1_lcrit_alarm", "1"),
                ],
                Active,
                w(1500),
            ),
            // Carries load but shows no input: missing, not low.
            (&[(pin, "0"), (pout, "1400000000"), (vin, "230000")], Active, None),
            (&[(pin, "-5"), (pout, "1400000000"), (vin, "230000")], Active, None),
            (&[(pin, "900000000000"), (pout, "1400000000"), (vin, "230000")], Active, None),
            (&[(pin, "8000000"), (pout, "0"), (vin, "230000")], Standby, w(8)),
            (&[(pin, "0"), (pout, "0"), (vin, "230000")], Standby, w(0)),
            (&[(pin, "0"), (pout, "0"), (vin, "0")], Failed, w(0)),
            (
                &[
                    (pin, "0"),
                    (pout, "0"),
                    (vin, "230000"),
                    ("in2_input", "0"),
                    ("in2_lcrit_alarm", "1"),
                ],
                Failed,
                w(0),
            ),
            (&[(pin, "0"), (pout, "0"), (vin, "90000"), ("in1_lcrit_alarm", "1")], Failed, w(0)),
            // Few sensors.
            (&[(pin, "1500000000")], Active, w(1500)),
            (&[(pin, "0")], Unknown, w(0)),
            (&[], Unknown, None),
            // Garbage.
            (&[(pin, "x"), (pout, "1400000000"), (vin, "230000")], Unknown, None),
            (&[(pin, "1"), (pout, ""), (vin, "230000")], Unknown, None),
            (&[(pin, "1"), (pout, "1"), (vin, "<unknown>")], Unknown, None),
        ];
        for (values, state, input) in cases {
            assert_eq!(
                poll(&tree(values)),
                SupplyRead { state: *state, input: *input },
                "{values:?}"
            );
        }
    }

    #[test]
    fn a_pulled_supply_is_absent_and_a_lost_driver_is_unknown() {
        let tree = tree(&[("power1_input", "5000000")]);
        // A second one, with an address on its bus.
        let other = "sys/class/hwmon/hwmon3";
        tree.folder("sys/devices/3-0059", &[("name", "psu"), ("power1_input", "6000000")]);
        tree.folder(other, &[("uevent", "")]);
        let target = tree.root().path("sys/devices/3-0059");
        let link = tree.root().path(&format!("{other}/device"));
        std::os::unix::fs::symlink(target, link).unwrap();
        let names = ["psu@3-0059", "psu@3-0077", "ibm-cffps"].map(str::to_owned);
        let mut supplies = Supplies::new(tree.root(), &names);
        let mut states =
            |ms| -> Vec<_> { supplies.poll(at(ms)).0.iter().map(|read| read.state).collect() };
        // A name that was never there may be a slip: what it draws is not known.
        let unknown = SupplyState::Unknown;
        assert_eq!(states(1), [SupplyState::Active, unknown, unknown]);
        tree.remove(other);
        assert_eq!(states(2), [SupplyState::Absent, unknown, unknown]);
        tree.remove(DIR);
        assert_eq!(poll(&tree), SupplyRead::UNKNOWN);
    }

    #[test]
    fn two_devices_that_cannot_be_told_apart_are_unknown() {
        let tree = tree(&[("power1_input", "5000000")]);
        tree.folder("sys/class/hwmon/hwmon3", &[("name", "psu"), ("power1_input", "6000000")]);
        assert_eq!(poll(&tree), SupplyRead::UNKNOWN);
    }

    #[test]
    fn the_stamp_moves_with_a_value_or_a_state_only() {
        let tree = tree(&[
            ("power1_input", "5000000"),
            ("power2_input", "4000000"),
            ("in1_input", "230000"),
        ]);
        let mut supplies = Supplies::new(tree.root(), &["psu".to_owned()]);
        assert_eq!(supplies.poll(at(1)).1, at(1));
        assert_eq!(supplies.poll(at(2)).1, at(1));
        tree.write(&format!("{DIR}/power1_input"), "5000001");
        assert_eq!(supplies.poll(at(3)).1, at(3));
        tree.write(&format!("{DIR}/power2_input"), "0");
        assert_eq!(supplies.poll(at(4)).1, at(4));
        assert_eq!(supplies.poll(at(5)).1, at(4));
    }

    #[test]
    fn an_active_supply_that_never_moves_is_unknown() {
        let tree = tree(&[
            ("power1_input", "5000000"),
            ("power2_input", "4000000"),
            ("in1_input", "230000"),
        ]);
        let mut supplies = Supplies::new(tree.root(), &["psu".to_owned()]);
        let states: Vec<_> = (0..30).map(|n| supplies.poll(at(n)).0[0].state).collect();
        assert_eq!(states[24], SupplyState::Active);
        assert_eq!(states[25], SupplyState::Unknown);
        // Standby at a constant zero is no fault.
        tree.write(&format!("{DIR}/power2_input"), "0");
        tree.write(&format!("{DIR}/power1_input"), "0");
        assert!((30..90).all(|n| supplies.poll(at(n)).0[0].state == SupplyState::Standby));
    }
}
