//! `auto_class` and `[records]`: what is kept of the VMs' use, and what is made of it.

use std::collections::BTreeSet;

use ballast_usage::week::Calendar;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::records::{Limits, day_number};
use ballast_runtime::config::allowed::{Allowed, choice, list, whole};
use ballast_runtime::config::reader::Section;

/// What is done with what VMs without a class seem to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoMode {
    /// Nobody looks.
    Off,
    /// It is shown.
    #[default]
    Advise,
    /// They get the class.
    Act,
}

/// Usage records, and the labels made from them.
#[derive(Clone, Debug)]
pub struct RecordsConfig {
    /// What is done with labels.
    pub auto_class: AutoMode,
    pub limits: Limits,
    /// Where the days are that people work on.
    pub timezone: TimeZone,
    /// Which days those are.
    pub calendar: Calendar,
}

impl RecordsConfig {
    /// Reads `auto_class` and `[records]` of the file.
    pub(super) fn read(root: &mut Section<'_, '_>) -> Self {
        let help = "VMs without a class are labelled by their own use: the label is shown, or becomes the \
                    class.";
        let auto_class = root.key("auto_class", help).or(
            AutoMode::Advise,
            choice([("off", AutoMode::Off), ("advise", AutoMode::Advise), ("act", AutoMode::Act)]),
        );
        let help = "What every VM uses, each five minutes, in `state_dir`/usage.";
        let mut section = root.section("records", help);
        let days: u16 = section
            .key("keep_days", "Days of UTC beside the newest: 22 are three whole weeks in every time zone.")
            .or(22, whole("a whole number of days", 1..=366));
        let megabytes: u64 = section
            .key("max_mb", "Above this the oldest days are deleted first.")
            .or(64, whole("a whole number of MB", 1..=10_000));
        let allowed = "a name of the IANA time zone database that is installed, as \"Europe/Berlin\"";
        let timezone = section.key("timezone", "Where the working days and their half hours are.").or(
            TimeZone::UTC,
            Allowed::new(
                allowed,
                |value| timezone(value.as_str()?),
                |it| format!("{:?}", it.iana_name().unwrap_or("UTC")),
            ),
        );
        let holidays = section.key("holidays", "Working days that are none.").or(
            vec![],
            list("dates in [ ], as \"2026-12-25\"", |text| text.parse::<Date>().ok().map(day_number)),
        );
        section.finish();

        Self {
            auto_class,
            limits: Limits { days: usize::from(days), bytes: megabytes * 1_000_000 },
            timezone,
            calendar: Calendar { holidays: BTreeSet::from_iter(holidays), ..Calendar::default() },
        }
    }
}

fn timezone(name: &str) -> Option<TimeZone> {
    match name {
        // Needs no database.
        "UTC" => Some(TimeZone::UTC),
        name => TimeZone::get(name).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};

    fn read(more: &str) -> Result<RecordsConfig, String> {
        let text = format!("server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n{more}");
        let config = AgentConfig::parse("agent.toml", &text);
        config.map(|config| config.records).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_read_and_have_defaults() {
        let default = read("").unwrap();
        assert_eq!(default.auto_class, AutoMode::Advise);
        assert_eq!(default.limits, Limits { days: 22, bytes: 64_000_000 });
        assert_eq!(default.timezone, TimeZone::UTC);
        let own = read(
            "auto_class = \"act\"\n[records]\nkeep_days = 30\nmax_mb = 1\ntimezone = \"UTC\"\n\
             holidays = [\"1970-01-02\", \"2026-12-25\"]\n",
        );
        let own = own.unwrap();
        assert_eq!(own.auto_class, AutoMode::Act);
        assert_eq!(own.limits, Limits { days: 30, bytes: 1_000_000 });
        assert_eq!(own.calendar.holidays, BTreeSet::from([1, 20_812]));
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (more, says) in [
            ("auto_class = true\n", "auto_class = true: \"off\", \"advise\" or \"act\""),
            ("[records]\nkeep_days = 0\n", "records.keep_days = 0: a whole number of days, 1 to 366"),
            ("[records]\nmax_mb = \"x\"\n", "records.max_mb"),
            ("[records]\ntimezone = \"Mars/Olympus\"\n", "records.timezone = \"Mars/Olympus\": a name"),
            ("[records]\nholidays = [\"2026-02-30\"]\n", "records.holidays"),
            ("[records]\nholidays = \"2026-02-03\"\n", "dates in [ ]"),
            ("[records]\nkeep = 1\n", "records.keep: no such key"),
        ] {
            let said = read(more).unwrap_err();
            assert!(said.contains(says), "{more}: {said}");
        }
    }
}
