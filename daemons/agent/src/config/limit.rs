//! `[server_limit]`: the server's own hardware limit.

use std::time::Duration;

use ballast_types::Watts;

use ballast_runtime::config::allowed::{Allowed, choice, flag, millis, text, watts};
use ballast_runtime::config::reader::Section;

/// `[server_limit]`.
#[derive(Clone, Debug)]
pub struct ServerLimitConfig {
    pub by: LimitBy,
    /// The lowest limit of the server's own hardware; `None` when it is not to be used.
    pub floor: Option<Watts>,
    /// How long the limit stays on after the draw came under the target.
    pub hold: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitBy {
    /// RAPL's package limits.
    Rapl,
    /// A hwmon device's `powerN_cap`.
    PowerCap {
        name: String,
        /// The channel's `powerN_label`, where it has labels.
        label: Option<String>,
    },
    /// The BMC's, by IPMI DCMI.
    Dcmi,
}

impl ServerLimitConfig {
    pub(super) fn read(root: &mut Section<'_, '_>) -> Self {
        let help = "This server's own hardware limit: the last resort, which hits every core.";
        let mut section = root.section("server_limit", help);
        let enabled = section.key("enabled", "Whether the limit is used.").or(true, flag());
        let by = LimitBy::read(&mut section);
        let floor =
            section.key("floor_w", "The lowest limit that is set.").or(Watts::from_whole(150), watts());
        let hold = section
            .key("hold_ms", "The limit stays on for so long after the draw came under the target.")
            .or(Duration::from_secs(2), millis(100..=600_000));
        section.finish();
        Self { by, floor: enabled.then_some(floor), hold }
    }
}

impl LimitBy {
    fn read(section: &mut Section<'_, '_>) -> Self {
        let power_cap = Self::PowerCap { name: String::new(), label: None };
        let by = section
            .key("by", "RAPL's package limits, a hwmon device's cap, or the BMC's through `/dev/ipmi0`.")
            .or(Self::Rapl, choice([("rapl", Self::Rapl), ("power1-cap", power_cap), ("dcmi", Self::Dcmi)]));

        let name = |text: &str| {
            let is_name = !text.is_empty() && !text.contains(char::is_whitespace);
            is_name.then(|| text.to_owned())
        };
        match by {
            Self::PowerCap { .. } => Self::PowerCap {
                name: section
                    .key("name", "The hwmon device; by default the ACPI power meter.")
                    .or("power_meter".into(), Allowed::text("the device's hwmon name", name)),
                label: section
                    .key("label", "Its channel, where it has labels.")
                    .optional(text("the channel's label")),
            },
            by => by,
        }
    }
}
