//! `[admission]`.

use std::path::PathBuf;

use ballast_placement::admission::{Order, Priors};
use ballast_runtime::config::ConfigError;
use ballast_runtime::config::allowed::{Allowed, choice, flag, number, path};
use ballast_runtime::config::reader::Section;
use toml::de::DeValue;

/// Whether new deployments may come.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionConfig {
    pub policy: AdmissionPolicy,
    /// Nothing is refused: what would be is counted and told.
    pub shadow: bool,
    /// In cores; `None`: those of the hosts.
    pub capacity: Option<f64>,
    /// What `ballast fit` and `ballast admit tune` have written.
    pub priors: Option<PriorsFile>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdmissionPolicy {
    /// This share of cores and memory stays free.
    Reserve(f64),
    /// What is expected of the deployments.
    Moments(Order),
}

/// The file of priors, and what it said when it was last read.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorsFile {
    pub path: PathBuf,
    /// `None` before it is read.
    pub priors: Option<Priors>,
}

impl PriorsFile {
    /// Reads the file anew.
    ///
    /// # Errors
    /// With its name, the key, the value and what is allowed; what it said before stays.
    pub fn load(&mut self) -> Result<(), String> {
        let named = |why: String| format!("{}: {why}", self.path.display());
        let text = std::fs::read_to_string(&self.path).map_err(|error| named(error.to_string()))?;
        let priors: Priors = toml::from_str(&text).map_err(|error| named(error.to_string()))?;
        priors.check().map_err(|error| named(error.to_string()))?;
        if priors.tuned.is_none() {
            return Err(named("[tuned] is missing: `ballast admit tune` writes it".to_owned()));
        }
        self.priors = Some(priors);
        Ok(())
    }
}

/// The policies by their names; of the reserve its usual share.
const POLICIES: [(&str, AdmissionPolicy); 4] = [
    ("reserve", AdmissionPolicy::Reserve(0.1)),
    ("zeroth", AdmissionPolicy::Moments(Order::Zeroth)),
    ("first-moment", AdmissionPolicy::Moments(Order::First)),
    ("second-moment", AdmissionPolicy::Moments(Order::Second)),
];

impl AdmissionPolicy {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserve(_) => "reserve",
            Self::Moments(Order::Zeroth) => "zeroth",
            Self::Moments(Order::First) => "first-moment",
            Self::Moments(Order::Second) => "second-moment",
        }
    }
}

impl AdmissionConfig {
    /// `None` without the section.
    pub(super) fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let mut section = root.table("admission", "Whether new deployments may come.")?;
        let help = "What `ballast fit` and `ballast admit tune` have written; read at start and on SIGHUP.";
        let priors = section.key("priors", help).optional(path("a TOML file of priors"));
        let help = "What decides: \"reserve\", a share stays free; or, by the priors, \"zeroth\", \
                    \"first-moment\" or \"second-moment\". Without it the last with priors, else the first.";
        let policy = section.key("policy", help).optional(choice(POLICIES));
        let help = "Nothing is refused; what would be is counted and told.";
        let shadow = section.key("shadow", help).or(true, flag());
        let help = "The cores that deployments may come to need; \"auto\": those of the hosts.";
        let capacity = section.key("capacity", help).or(None, cores());
        let help = "Under \"reserve\": this share of cores and memory is kept for deployments that run.";
        let share = section.key("reserve_share", help).or(0.1, number("a share", 0.0..=1.0));

        let usual = POLICIES[if priors.is_some() { 3 } else { 0 }].1;
        let policy = match policy.unwrap_or(usual) {
            AdmissionPolicy::Reserve(_) => AdmissionPolicy::Reserve(share),
            moments @ AdmissionPolicy::Moments(_) => moments,
        };
        if priors.is_none() && matches!(policy, AdmissionPolicy::Moments(_)) {
            section.refuse_key("policy", "only with priors = FILE, which `ballast fit` writes");
        }
        section.finish();
        let priors = priors.map(|path| PriorsFile { path, priors: None });
        Some(Self { policy, shadow, capacity, priors })
    }

    pub(super) fn load(&mut self, file: &str) -> Result<(), ConfigError> {
        let priors = self.priors.as_mut().map_or(Ok(()), PriorsFile::load);
        priors.map_err(|why| ConfigError::whole(file, &format!("admission.priors: {why}")))
    }
}

/// A number of cores, or "auto".
fn cores() -> Allowed<Option<f64>> {
    let words = "\"auto\", or a number of cores, 1 to 1e9";
    let read = |value: &DeValue<'_>| {
        if value.as_str() == Some("auto") {
            return Some(None);
        }
        let float = value.as_float().map(|it| it.as_str());
        let number: f64 = float.or(value.as_integer().map(|it| it.as_str()))?.parse().ok()?;
        (1.0..=1e9).contains(&number).then_some(Some(number))
    };
    Allowed::new(words, read, |it| it.map_or("\"auto\"".to_owned(), |cores| cores.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile as _, PlaceConfig};

    #[test]
    fn admission_is_off_without_its_section_and_every_problem_is_told_with_its_line() {
        let parse = |text: &str| PlaceConfig::parse("place.toml", &format!("name = \"a\"\n{text}"));
        assert_eq!(parse("").unwrap().admission, None);
        let usual = parse("[admission]\n").unwrap().admission.unwrap();
        assert_eq!((usual.policy, usual.shadow), (AdmissionPolicy::Reserve(0.1), true));
        let fitted =
            parse("[admission]\npriors = \"law.toml\"\ncapacity = 2000\n").unwrap().admission.unwrap();
        assert_eq!(fitted.policy, AdmissionPolicy::Moments(Order::Second));
        assert_eq!(fitted.capacity, Some(2000.0));
        for (line, says) in [
            ("policy = \"third\"", "admission.policy = \"third\": \"reserve\", \"zeroth\""),
            ("policy = \"zeroth\"", "admission.policy = \"zeroth\": only with priors = FILE"),
            ("capacity = 0", "admission.capacity = 0: \"auto\", or a number of cores, 1 to 1e9"),
            ("capacity = \"all\"", "admission.capacity = \"all\": \"auto\", or a number"),
            ("capacity = nan", "admission.capacity = nan: \"auto\", or a number"),
            ("reserve_share = 1.1", "admission.reserve_share = 1.1: a share, 0 to 1"),
            ("shadow = 1", "admission.shadow = 1: true or false"),
            ("rho = 0.1", "admission.rho: no such key"),
        ] {
            let problem = parse(&format!("[admission]\n{line}")).unwrap_err().to_string();
            assert!(problem.contains(&format!(": {says}")), "{problem}");
        }
    }
}
