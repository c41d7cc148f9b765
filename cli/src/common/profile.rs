//! The profile file: a server's curves, and what they rest on. TOML, with units in its keys.

use std::path::Path;

use anyhow::{Context, bail};
use ballast_planner::{Fit, Linear, Point, Residuals};
use ballast_types::PowerModel;
use serde::{Deserialize, Serialize};

/// The format; another number is not read.
const VERSION: u32 = 1;

/// A server's curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    version: u32,
    pub(crate) kind: Kind,
    /// The server, the file of points, or the published system.
    pub(crate) of: String,
    /// When it was measured, in UTC.
    pub(crate) made_at: String,
    pub(crate) model: Model,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fit: Option<FitTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meter: Option<Meter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<Machine>,
    #[serde(default, rename = "point", skip_serializing_if = "Vec::is_empty")]
    pub(crate) points: Vec<Measured>,
}

/// What the curves rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Measured,
    Points,
    /// Idle and full load alone are known; half frequency is as the paper's server has it.
    FirstGuess,
}

impl Kind {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Points => "fitted to points",
            Self::FirstGuess => "a first guess",
        }
    }
}

/// The four figures, by their names in `[model]` of agent.toml, and the exponent that they mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    idle_w: f64,
    full_w: f64,
    half_frequency_idle_w: f64,
    half_frequency_full_w: f64,
}

impl From<PowerModel> for Model {
    fn from(model: PowerModel) -> Self {
        // What is below a milliwatt says nothing.
        let milli = |w: f64| (w * 1000.0).round() / 1000.0;
        Self {
            idle_w: milli(model.idle_w),
            full_w: milli(model.full_w),
            half_frequency_idle_w: milli(model.half_idle_w),
            half_frequency_full_w: milli(model.half_full_w),
        }
    }
}

impl From<Model> for PowerModel {
    fn from(model: Model) -> Self {
        Self {
            idle_w: model.idle_w,
            full_w: model.full_w,
            half_idle_w: model.half_frequency_idle_w,
            half_full_w: model.half_frequency_full_w,
        }
    }
}

/// How far the curves lie from the points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FitTable {
    pub(crate) exponent: f64,
    pub(crate) residuals: Residuals,
    /// The straight line over frequency beside it.
    pub(crate) linear: Linear,
}

impl From<&Fit> for FitTable {
    fn from(fit: &Fit) -> Self {
        Self { exponent: fit.model.exponent(), residuals: fit.residuals, linear: fit.linear }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meter {
    pub(crate) name: String,
    /// As configured: how far its readings lag behind the draw.
    pub(crate) lag_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_ms: Option<u64>,
    /// The smallest step between two values that was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resolution_w: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    pub(crate) driver: String,
    /// Clock domains: physical cores, where each has a clock of its own.
    pub(crate) cores: usize,
    pub(crate) cpus: usize,
    /// The lowest and the highest p-state, which is not capped.
    pub(crate) lowest_khz: u32,
    pub(crate) highest_khz: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    #[serde(flatten)]
    pub(crate) point: Point,
    /// Fresh values of the meter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) values: Option<u32>,
}

impl Profile {
    /// One that nothing but its curves is known of.
    pub(crate) fn new(kind: Kind, of: String, made_at: String, model: PowerModel) -> Self {
        let model = model.into();
        let (fit, meter, machine, points) = (None, None, None, vec![]);
        Self { version: VERSION, kind, of, made_at, model, fit, meter, machine, points }
    }

    pub(crate) fn model(&self) -> PowerModel {
        self.model.into()
    }

    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("profile {}", path.display());
        Self::parse(&std::fs::read_to_string(path).with_context(what)?).with_context(what)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = toml::from_str(text)?;
        if version != VERSION {
            bail!("version = {version}: {VERSION} is read here");
        }
        let profile: Self = toml::from_str(text)?;
        profile.model().check().map_err(|wrong| anyhow::anyhow!("[model]: {wrong}"))?;
        Ok(profile)
    }

    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let head = "# How a server draws, by ballast profile. ballast plan --profile reads it; [model] is as \
            in agent.toml.\n# Watts at the server's meter; utilisation and frequency are shares of the \
                    highest.\n";
        Ok(format!("{head}{}", toml::to_string(self)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let mut points = vec![];
        for (utilisation, frequency, watts) in
            [(0.0, 1.0, 112.0), (1.0, 1.0, 310.0), (0.0, 0.5, 111.0), (1.0, 0.5, 169.0)]
        {
            points.push(Point { utilisation, frequency, watts, error_w: Some(0.25) });
        }
        let fit = Fit::of(&points).unwrap();
        let made_at = "2026-11-21T10:00:00Z".to_owned();

        Profile {
            fit: Some((&fit).into()),
            meter: Some(Meter {
                name: "hwmon lm25066 pin".to_owned(),
                lag_ms: 200,
                refresh_ms: Some(200),
                resolution_w: Some(0.1),
            }),
            machine: Some(Machine {
                cpu: None,
                driver: "intel_cpufreq".to_owned(),
                cores: 40,
                cpus: 40,
                lowest_khz: 1_200_000,
                highest_khz: 2_400_000,
            }),
            points: points.iter().map(|&point| Measured { point, values: Some(20) }).collect(),
            ..Profile::new(Kind::Measured, "s01".to_owned(), made_at, fit.model)
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = profile().text().unwrap();
        assert_eq!(Profile::parse(&text).unwrap(), profile(), "{text}");
        assert!(text.contains("[model]\nidle_w = 112.0\nfull_w = 310.0\n"), "{text}");
        assert!(text.contains("[[point]]\n"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_with_what_is_wrong() {
        let text = profile().text().unwrap();
        for (from, to, said) in [
            ("version = 1", "version = 2", "version = 2: 1 is read here"),
            ("version = 1\n", "", "missing field `version`"),
            ("full_w = 310.0", "full_w = 31.0", "[model]: full load must draw more than idle"),
            ("full_w = 310.0", "full_w = nan", "[model]: every power"),
            ("idle_w = 112.0", "idle = 112.0", "unknown field `idle`"),
            ("kind = \"measured\"", "kind = \"dreamt\"", "dreamt"),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert!(wrong != text, "{from}");
            let error = format!("{:#}", Profile::parse(&wrong).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
