//! `[[supply]]` and `[power_input]`: who tells of the chassis's draw.

use std::time::Duration;

use ballast_types::{ServerId, Watts};

use ballast_runtime::config::BmcAddress;
use ballast_runtime::config::allowed::{Allowed, millis, text, watts};
use ballast_runtime::config::reader::Section;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupplyConfig {
    /// Who tells of it.
    pub source: SupplySource,
    /// What it can carry at its input.
    pub rated: Watts,
}

/// Who tells of a power supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupplySource {
    /// A hwmon device: the driver's name, or `name@device` where several have the same name.
    Hwmon(String),
    /// A BMC, by the id that it gives the supply.
    Redfish(BmcAddress, String),
}

impl SupplyConfig {
    /// Every `[[supply]]`.
    pub(super) fn read_all(root: &mut Section<'_, '_>) -> Vec<Self> {
        let mut supplies = vec![];
        for section in root.sections("supply", "A power supply of the chassis; one for each.") {
            supplies.extend(Self::read(section, &supplies));
        }
        supplies
    }

    fn read(mut section: Section<'_, '_>, others: &[Self]) -> Option<Self> {
        let help = "The supply's hwmon name; where several have the same one, with the device that sysfs \
                    links to: `pmbus@3-0058`.";
        let hwmon = section.key("hwmon", help).optional(text("the hwmon name of the power supply"));
        let bmc = BmcAddress::read(&mut section, false);
        let (by_hwmon, by_bmc) = (section.has("hwmon"), section.has("redfish"));
        let id = section
            .key("redfish_supply", "With `redfish`: which supply of the BMC.")
            .required_if(by_bmc, text("the id that the BMC gives the power supply"));
        let rated = section.key("rated_w", "What the supply can carry at its input.").required(watts());

        match (by_hwmon, by_bmc) {
            (true, true) => section.refuse_key("redfish", "a supply has hwmon or redfish, not both"),
            (false, false) => section.refuse("hwmon is missing: one of hwmon and redfish"),
            _ => {}
        }
        if !by_bmc && id.is_some() {
            section.refuse_key("redfish_supply", "only with redfish");
        }
        let by_bmc = bmc.zip(id).map(|(bmc, id)| SupplySource::Redfish(bmc, id));
        let source = hwmon.map(SupplySource::Hwmon).or(by_bmc);
        if source.is_some() && others.iter().any(|other| Some(&other.source) == source.as_ref()) {
            let key = if by_hwmon { "hwmon" } else { "redfish_supply" };
            section.refuse_key(key, "every supply once: two would count its draw twice");
        }
        section.finish();

        source.zip(rated).map(|(source, rated)| Self { source, rated })
    }

    /// What operators call it.
    pub fn name(&self) -> String {
        match &self.source {
            SupplySource::Hwmon(name) => name.clone(),
            SupplySource::Redfish(BmcAddress { url, chassis: None, .. }, id) => format!("{url} {id}"),
            SupplySource::Redfish(BmcAddress { url, chassis: Some(chassis), .. }, id) => {
                format!("{url} {chassis} {id}")
            }
        }
    }
}

/// The outside source of power readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerInputConfig {
    /// Its name; readings of no other are accepted.
    pub source: String,
    /// What the feed it measures can carry; more is implausible.
    pub max: Watts,
    pub good_for: Duration,
}

impl PowerInputConfig {
    /// What operators call it.
    pub fn name(&self) -> String {
        format!("power input {}", self.source)
    }

    /// Reads the table, of a manager that polls every `period`, behind a breaker that carries the highest draw for
    /// `carried`.
    pub(super) fn read(mut section: Section<'_, '_>, period: Duration, carried: Duration) -> Option<Self> {
        let source = section
            .key("source", "The one source that is accepted.")
            .required(Allowed::text(SOURCE, |text| ServerId::new(text).ok()));
        let max = section
            .key("max_w", "What the feed can carry: more is implausible, and counts as missing.")
            .required(watts());
        let longest = carried.clamp(period, Duration::from_secs(3600));
        let good_for = section
            .key("good_for_ms", "After this the reading is missing; 3 * `poll.period_ms` unless set.")
            .or((period * 3).min(longest), millis(1..=3_600_000));
        if !(period..=longest).contains(&good_for) {
            let (least, most) = (period.as_millis(), longest.as_millis());
            let why = "poll.period_ms to what the breaker carries of the highest draw";
            section.refuse_key("good_for_ms", format_args!("{why}, {least} to {most}"));
        }
        section.finish();

        Some(Self { source: source?.to_string(), max: max?, good_for })
    }
}

const SOURCE: &str = "the name of the source: 1 to 64 of A-Z a-z 0-9 . _ - : @";
