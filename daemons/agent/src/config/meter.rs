//! `[meter]` of `agent.toml`: the server's own draw.

use std::time::Duration;

use ballast_types::Watts;

use ballast_runtime::config::BmcAddress;
use ballast_runtime::config::allowed::{choice, flag, millis, text, watts, watts_in};
use ballast_runtime::config::reader::Section;

/// Nobody but the operator knows it, and a meter that says too little lets a server exceed its cap.
const NO_OFFSET: &str = "offset_w is missing: with source = \"rapl\" (the default), what the server draws \
                         beside \
    packages and memory (fans, disks, losses), in watts, 0 to 10000. To measure: idle, then loaded, the draw \
    at the plug or by the BMC less RAPL's (the agent's status with offset_w = 0); the larger of the two";
/// RAPL windows that fusion can keep for one comparison.
const WINDOWS: u32 = 500;

/// The server's power meter.
#[derive(Clone, Debug)]
pub struct MeterConfig {
    pub source: MeterSource,
    pub sample: Duration,
    /// How far its readings lag behind the draw.
    pub lag: Duration,
    /// Without a fresh value of the meter for this long the agent is blind.
    pub stale: Duration,
    /// A read that takes longer counts as missing until it ends.
    pub deadline: Duration,
    /// More than this is implausible.
    pub max: Watts,
    /// The meter is slow: RAPL carries it from reading to reading.
    pub fuse_rapl: Option<FuseConfig>,
}

/// A slow meter with RAPL beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseConfig {
    /// What a value of the meter is a mean over.
    pub refresh: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeterSource {
    /// A hwmon device, by driver name and label.
    Hwmon {
        name: String,
        /// The channel's `powerN_label`, where it has labels.
        label: Option<String>,
    },
    /// RAPL packages and memory, plus a fixed offset for the rest of the server.
    Rapl {
        /// What RAPL does not see.
        offset: Watts,
    },
    /// The server's own BMC: DCMI through `/dev/ipmi0`.
    Dcmi,
    /// The server's own BMC over the network.
    Redfish(BmcAddress),
}

/// The word of a [`MeterSource`].
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Hwmon,
    Rapl,
    Dcmi,
    Redfish,
}

impl MeterSource {
    fn read(section: &mut Section<'_, '_>) -> (Kind, Self) {
        let help = "A hwmon device; RAPL's packages and memory; the server's own BMC by `/dev/ipmi0`; or \
                    that BMC over the network. BMCs are slow: with `fuse_rapl`.";
        let kinds = [Kind::Hwmon, Kind::Rapl, Kind::Dcmi, Kind::Redfish];
        let words = ["hwmon", "rapl", "dcmi", "redfish"].into_iter().zip(kinds);
        let kind = section.key("source", help).or(Kind::Rapl, choice(words));
        let source = match kind {
            Kind::Hwmon => Self::Hwmon {
                name: section
                    .key("name", "The device's driver.")
                    .required(text("the device's hwmon name"))
                    .unwrap_or_default(),
                label: section
                    .key("label", "Its channel, where it has labels.")
                    .optional(text("the channel's label")),
            },
            Kind::Rapl => {
                let help = "What the server draws beside packages and memory: fans, disks, losses. Needed; \
                            how to measure it: [sensors](../operate/sensors.md).";
                let offset = section.key("offset_w", help).optional(watts_in(0.0..=10_000.0));
                // A source that is no word was refused already.
                if !section.has("offset_w") && !section.has_refused("source") {
                    section.refuse(NO_OFFSET);
                }
                Self::Rapl { offset: offset.unwrap_or(Watts::ZERO) }
            }
            Kind::Dcmi => Self::Dcmi,
            Kind::Redfish => {
                let none = BmcAddress { url: String::new(), chassis: None, pin: None };
                Self::Redfish(BmcAddress::read(section, true).unwrap_or(none))
            }
        };
        (kind, source)
    }
}

impl MeterConfig {
    pub(super) fn read(root: &mut Section<'_, '_>) -> Self {
        let mut section = root.section("meter", "The server's own draw.");
        let (kind, source) = MeterSource::read(&mut section);
        let help = "For a slow meter (BMC, ACPI): RAPL every `sample_ms`, kept right by the meter.";
        let fused = section.key("fuse_rapl", help).or(false, flag());

        // A BMC averages over seconds, takes some more to say so, and is kept from its work by questions.
        let slow = kind == Kind::Redfish;
        let of = |usual, of_slow| Duration::from_millis(if slow { of_slow } else { usual });
        let sample = section
            .key("sample_ms", "How often the meter is read.")
            .or(of(200, if fused { 200 } else { 2000 }), millis(20..=10_000));
        let lag = section
            .key("lag_ms", "How far readings lag behind the draw.")
            .or(of(200, 1000), millis(0..=10_000));
        let deadline = section
            .key("deadline_ms", "A read that takes longer counts as missing until it ends.")
            .or(of(1500, 5000), millis(20..=60_000));
        let refresh = section
            .key("refresh_ms", "With `fuse_rapl`: what a value of the slow meter is a mean over.")
            .or(of(1000, 2000), millis(20..=10_000));
        let help = "Without a new value for this long the agent is blind; longer for meters of whole watts, \
                    which repeat themselves. 3 * `sample_ms` unless set (5 * `refresh_ms` with \
                    `fuse_rapl`).";
        let stale = section
            .key("stale_ms", help)
            .or(if fused { refresh * 5 } else { sample * 3 }, millis(60..=60_000));
        let max = section
            .key("max_w", "More is implausible: the reading counts as missing.")
            .or(Watts::from_whole(1000), watts());

        let fuse_rapl = fused.then_some(FuseConfig { refresh });
        let config = Self { source, sample, lag, stale, deadline, max, fuse_rapl };
        config.check(&section, refresh);
        section.finish();

        config
    }

    /// Refuses times that do not go together.
    fn check(&self, section: &Section<'_, '_>, refresh: Duration) {
        let fused = self.fuse_rapl.is_some();
        let (of, least) =
            if fused { ("2 * refresh_ms", refresh * 2) } else { ("3 * sample_ms", self.sample * 3) };
        if self.stale < least {
            section.refuse_key("stale_ms", format_args!("at least {of} = {}", least.as_millis()));
        }

        if fused && matches!(self.source, MeterSource::Rapl { .. }) {
            section.refuse_key("fuse_rapl", "only with another source: this one is RAPL itself");
        }
        if fused && self.sample > refresh {
            section.refuse_key("sample_ms", "with fuse_rapl at most refresh_ms");
        }
        let whole = self.lag + refresh.saturating_mul(3);
        if fused && whole > self.sample.saturating_mul(WINDOWS) {
            let least = whole.as_millis().div_ceil(WINDOWS.into());
            let of = "with fuse_rapl at least (lag_ms + 3 * refresh_ms) / 500";
            section.refuse_key("sample_ms", format_args!("{of} = {least}"));
        }
    }

    /// How long after a change the readings show all of it, at the soonest. Fused readings lag by no more
    /// than their window.
    pub(super) fn least_settle(&self) -> Duration {
        self.sample + self.reading_lag()
    }

    /// The keys of [`Self::least_settle`].
    pub(super) fn settle_of(&self) -> &'static str {
        if self.fuse_rapl.is_some() { "meter.sample_ms" } else { "meter.lag_ms + meter.sample_ms" }
    }

    /// How far the readings that the controller gets lag behind the draw.
    pub fn reading_lag(&self) -> Duration {
        if self.fuse_rapl.is_some() { Duration::ZERO } else { self.lag }
    }

    /// How often the meter itself is read: fused, a quarter of its refresh tells well enough when a
    /// value is new. A BMC works for every question: half.
    pub fn read_period(&self) -> Duration {
        let bmc = matches!(self.source, MeterSource::Dcmi | MeterSource::Redfish(_));
        let parts = if bmc { 2 } else { 4 };
        self.fuse_rapl.map_or(self.sample, |fuse| (fuse.refresh / parts).max(self.sample))
    }

    /// Without a fresh reading for this long the controller is blind; `None` after three samples.
    pub fn reading_stale(&self) -> Option<Duration> {
        self.fuse_rapl.is_none().then_some(self.stale)
    }

    /// What operators call the meter.
    pub fn name(&self) -> String {
        match &self.source {
            MeterSource::Hwmon { name, label: Some(label) } => format!("hwmon {name} {label}"),
            MeterSource::Hwmon { name, label: None } => format!("hwmon {name}"),
            MeterSource::Rapl { .. } => "rapl".to_owned(),
            MeterSource::Dcmi => "dcmi".to_owned(),
            MeterSource::Redfish(bmc) => format!("redfish {}", bmc.url),
        }
    }

    /// What is wrong with the configured times, given that the meter really makes a value every
    /// `refresh`. A tenth is not worth a word: reading it has a period of its own.
    pub fn too_fast_for(&self, refresh: Duration, settle: Duration) -> Option<String> {
        let ms = |span: Duration| span.as_millis();
        let more = |asked: Duration, told: Duration| asked > told + told / 10;
        let found = format!("the meter refreshes every {} ms", ms(refresh));

        if let Some(fuse) = self.fuse_rapl {
            return more(refresh, fuse.refresh)
                .then(|| format!("meter.refresh_ms = {}, but {found}: say so", ms(fuse.refresh)));
        }

        if more(refresh.saturating_mul(2), self.stale) {
            let told = ms(self.stale);
            let least = ms(refresh) * 3;
            return Some(format!(
                "meter.stale_ms = {told}, but {found}: the agent is blind between two values; at \
                 least {least}, or fuse_rapl = true"
            ));
        }

        let needed = self.lag + refresh;

        more(needed, settle).then(|| {
            let (told, needed) = (ms(settle), ms(needed));
            format!(
                "throttle.settle_ms = {told}, but {found}: steps go by values from before the last \
                 step; at least {needed}, or fuse_rapl = true"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn parse(meter: &str) -> Result<AgentConfig, String> {
        let text = format!("server = \"s01\"\nchassis = \"c1\"\n[meter]\n{meter}");
        AgentConfig::parse("agent.toml", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn wrong_times_and_wrong_pairs_are_refused() {
        let slow = "source = \"hwmon\"\nname = \"power_meter\"\n";
        for (meter, said) in [
            ("sample_ms = 10", "meter.sample_ms = 10: whole milliseconds, 20 to 10000"),
            ("stale_ms = 500", "meter.stale_ms = 500: at least 3 * sample_ms = 600"),
            ("stale_ms = 60001", "60 to 60000"),
            (&format!("{slow}fuse_rapl = true\nstale_ms = 1999"), "at least 2 * refresh_ms = 2000"),
            ("deadline_ms = 0", "meter.deadline_ms = 0: whole milliseconds, 20 to 60000"),
            ("fuse_rapl = true", "only with another source"),
            ("fuse_rapl = 1", "true or false"),
            ("refresh_ms = 0", "20 to 10000"),
            (&format!("{slow}fuse_rapl = true\nsample_ms = 2000"), "at most refresh_ms"),
            (
                &format!("{slow}fuse_rapl = true\nsample_ms = 20\nrefresh_ms = 10000"),
                "(lag_ms + 3 * refresh_ms) / 500 = 61",
            ),
            ("source = \"psys\"", "meter.source = \"psys\""),
            ("source = \"redfish\"", "meter.redfish is missing: https://host"),
            ("source = \"redfish\"\nredfish = \"http://bmc1\"", "meter.redfish = \"http://bmc1\""),
            ("source = \"redfish\"\nredfish = \"https://b\"", "redfish.credentials_file is missing"),
            ("source = \"redfish\"\nname = \"bmc\"", "meter.name: no such key"),
            ("source = \"dcmi\"\nredfish = \"https://b\"", "meter.redfish: no such key"),
            ("source = \"redfish\"\nredfish_chassis = \"1\"", "redfish_chassis = \"1\": only with"),
        ] {
            let problem = parse(meter).unwrap_err();
            assert!(problem.contains(said), "{meter}: {problem}");
        }
    }

    #[test]
    fn what_rapl_does_not_see_must_be_told() {
        let offset = |watts| MeterSource::Rapl { offset: Watts::from_whole(watts) };
        for (meter, want) in [
            ("offset_w = 0", Some(0)),
            ("source = \"rapl\"\noffset_w = 65", Some(65)),
            ("", None),
            ("source = \"rapl\"", None),
            ("sample_ms = 100", None),
        ] {
            match (parse(meter), want) {
                (Ok(config), Some(watts)) => assert_eq!(config.meter.source, offset(watts)),
                (Err(said), None) => {
                    let missing = said.contains("meter.offset_w is missing");
                    assert!(missing && said.contains("at the plug"), "{said}");
                }
                (got, _) => panic!("{meter}: {got:?}"),
            }
        }

        let none = AgentConfig::parse("agent.toml", "server = \"s\"\nchassis = \"c\"\n");
        assert!(none.unwrap_err().to_string().contains("meter.offset_w is missing"));
        let bad = parse("offset_w = -1").unwrap_err();
        assert!(
            bad.contains("offset_w = -1: a number of watts, 0 to 10000") && !bad.contains("missing"),
            "{bad}"
        );
        let other = parse("source = \"psys\"").unwrap_err();
        assert!(!other.contains("offset_w"), "{other}");
    }

    #[test]
    fn fused_readings_settle_within_a_sample_and_the_slow_meter_is_read_seldom() {
        let slow = "source = \"hwmon\"\nname = \"power_meter\"\nlag_ms = 1000\n";
        let plain = parse(slow).unwrap();
        assert_eq!((plain.throttle.settle, plain.meter.read_period()), (MS(1200), MS(200)));
        let fused = parse(&format!("{slow}fuse_rapl = true\n")).unwrap();
        assert_eq!((fused.throttle.settle, fused.meter.read_period()), (MS(200), MS(250)));
        let bmc = parse("source = \"dcmi\"\nfuse_rapl = true\n").unwrap().meter;
        assert_eq!((bmc.source.clone(), bmc.read_period()), (MeterSource::Dcmi, MS(500)));
        assert_eq!((plain.meter.reading_stale(), plain.meter.stale), (Some(MS(600)), MS(600)));
        assert_eq!((fused.meter.reading_stale(), fused.meter.stale), (None, MS(5000)));
        assert_eq!(fused.meter.name(), "hwmon power_meter");
    }

    #[test]
    fn a_bmc_over_the_network_is_taken_for_slow_unless_told_otherwise() {
        let access = "[redfish]\ncredentials_file = \"/etc/bmc\"\n";
        let read = |more: &str| {
            let bmc = "source = \"redfish\"\nredfish = \"https://bmc1/\"\n";
            parse(&format!("{bmc}{more}{access}")).unwrap()
        };

        let plain = read("");
        let address = BmcAddress { url: "https://bmc1".to_owned(), chassis: None, pin: None };
        assert_eq!(plain.meter.source, MeterSource::Redfish(address));
        assert_eq!((plain.meter.read_period(), plain.meter.lag), (MS(2000), MS(1000)));
        assert_eq!((plain.meter.stale, plain.throttle.settle), (MS(6000), MS(3000)));
        assert_eq!((plain.meter.deadline, plain.meter.too_fast_for(MS(2000), MS(3000))), (MS(5000), None));

        let fused = read("fuse_rapl = true\nredfish_chassis = \"1\"\n");
        assert_eq!((fused.meter.sample, fused.meter.read_period()), (MS(200), MS(1000)));
        assert_eq!((fused.meter.stale, fused.throttle.settle), (MS(10_000), MS(200)));
        assert_eq!(fused.meter.name(), "redfish https://bmc1");
        assert_eq!(read("sample_ms = 500\nlag_ms = 0\n").throttle.settle, MS(500));
        assert_eq!(fused.redfish.timeout, MS(3000));
    }

    #[test]
    fn a_meter_slower_than_it_was_taken_for_is_told_of() {
        let slow = "source = \"hwmon\"\nname = \"power_meter\"\n";
        for (more, refresh, said) in [
            ("", 200, None),
            ("", 210, None),
            ("", 1000, Some("meter.stale_ms = 600, but the meter refreshes every 1000 ms")),
            ("stale_ms = 3000\n", 1000, Some("throttle.settle_ms = 400")),
            ("stale_ms = 3000\nlag_ms = 1000\nsample_ms = 1000\n", 1000, None),
            ("fuse_rapl = true\n", 1000, None),
            ("fuse_rapl = true\n", 2000, Some("meter.refresh_ms = 1000, but")),
        ] {
            let config = parse(&format!("{slow}{more}")).unwrap();
            let told = config.meter.too_fast_for(MS(refresh), config.throttle.settle);
            match said {
                None => assert_eq!(told, None, "{more} {refresh}"),
                Some(said) => assert!(told.as_deref().unwrap().contains(said), "{told:?}"),
            }
        }
    }
}
