//! Redfish: a server's BMC out of band, over HTTPS.
//!
//! Two generations of schemas are in use: `Power` holds draw, limit and supplies in one resource; the newer
//! `EnvironmentMetrics` and `PowerSubsystem` replace it. Which one a BMC has is found by following its links;
//! where it has both, the newer one is used for what it offers.

mod cap;
mod credentials;
mod http;
mod pin;
mod refusals;
mod schema;
#[cfg(feature = "testing")]
mod testing;
#[cfg(test)]
mod tests;

use ballast_types::{SupplyState, Watts};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

pub use cap::{RedfishCap, RedfishCapState};
pub use credentials::{Auth, Credentials};
pub use http::Settings;
pub use pin::Pin;
#[cfg(feature = "testing")]
pub use testing::{ResourceReading, read_resource};

use crate::BmcError;
use crate::error::above_zero;
use http::{Fetched, Http};
use schema::{
    Chassis, Collection, EnvironmentMetrics, Link, Power, PowerSubsystem, PowerSupply, ServiceRoot, Status,
    SupplyMetrics, System,
};

const ROOT: &str = "/redfish/v1";
/// More members of a collection are not looked at.
const MEMBERS_MAX: usize = 64;

/// One power supply as a BMC sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupplyReading {
    /// Its id: in the older resource `MemberId`, or its place in the list where there is none.
    pub id: String,
    pub state: SupplyState,
    /// What it draws from its feed; `None` if there is no usable value.
    pub input: Option<Watts>,
}

/// One server's BMC. Every call blocks, by a bounded number of requests, each within [`Settings::timeout`].
pub struct Redfish {
    runtime: Runtime,
    http: Http,
    found: Option<Resources>,
}

/// Where this server's resources are.
#[derive(Clone, Debug)]
struct Resources {
    power: Option<String>,
    environment: Option<String>,
    subsystem: Option<String>,
    system: Option<String>,
}

impl Redfish {
    /// A client; it connects at the first call. Fails if the authority's file cannot be used, or the client
    /// cannot be built.
    pub fn new(settings: Settings) -> Result<Self, BmcError> {
        let of = settings.url.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| BmcError::Io { of, source })?;
        Ok(Self { runtime, http: Http::new(settings)?, found: None })
    }

    pub fn power(&mut self) -> Result<Watts, BmcError> {
        let found = self.found()?;
        if let Some(path) = &found.environment {
            let metrics: EnvironmentMetrics = self.get(path)?.value;
            if let Some(reading) = metrics.power_watts {
                return above_zero(&self.of(path, "PowerWatts.Reading"), reading.reading);
            }
        }
        let Some(path) = &found.power else {
            return Err(self.missing("PowerWatts"));
        };
        let power: Power = self.get(path)?.value;
        above_zero(&self.of(path, "PowerControl[0].PowerConsumedWatts"), consumed(&power))
    }

    /// Every power supply that this BMC sees, in its order. One whose metrics cannot be read has no input.
    pub fn supplies(&mut self) -> Result<Vec<SupplyReading>, BmcError> {
        let found = self.found()?;
        if let Some(path) = &found.subsystem {
            let subsystem: PowerSubsystem = self.get(path)?.value;
            if let Some(path) = subsystem.power_supplies.as_ref().and_then(Link::path) {
                let members = self.get::<Collection>(path)?.value.members;
                let members = members.iter().take(MEMBERS_MAX);
                return members.map(|member| self.supply(member)).collect();
            }
        }
        let Some(path) = &found.power else {
            return Err(self.missing("PowerSupplies"));
        };
        let power: Power = self.get(path)?.value;
        Ok(older(power))
    }

    fn supply(&mut self, member: &Link) -> Result<SupplyReading, BmcError> {
        let Some(path) = member.path() else {
            return Err(self.missing("PowerSupplies member"));
        };
        let supply: PowerSupply = self.get(path)?.value;
        let metrics = supply.metrics.as_ref().and_then(Link::path);
        let metrics = metrics.map(|path| self.get::<SupplyMetrics>(path)).transpose();
        let reading = metrics.ok().flatten().and_then(|m| m.value.input_power_watts);
        Ok(SupplyReading {
            id: member.id().to_owned(),
            state: state(supply.status.as_ref()),
            input: reading.and_then(|reading| input(reading.reading)),
        })
    }

    /// Whether the server is switched on; `None` while it changes, or if the BMC does not say.
    pub fn powered(&mut self) -> Result<Option<bool>, BmcError> {
        let Some(path) = self.found()?.system else { return Ok(None) };
        let system: System = self.get(&path)?.value;
        Ok(match system.power_state.as_deref() {
            Some("On") => Some(true),
            Some("Off") => Some(false),
            _ => None,
        })
    }

    fn found(&mut self) -> Result<Resources, BmcError> {
        if let Some(found) = &self.found {
            return Ok(found.clone());
        }
        let found = self.find()?;
        self.found = Some(found.clone());
        Ok(found)
    }

    /// Follows the links from the root to the one chassis that has power resources.
    fn find(&mut self) -> Result<Resources, BmcError> {
        let root: ServiceRoot = self.get(ROOT)?.value;
        let Some(collection) = root.chassis.as_ref().and_then(Link::path) else {
            return Err(self.missing("Chassis"));
        };
        let wanted = self.http.settings().chassis.clone();
        let members = self.get::<Collection>(collection)?.value.members;
        let mut with_power = vec![];

        for member in members.iter().take(MEMBERS_MAX) {
            let Some(path) =
                member.path().filter(|_| wanted.as_ref().is_none_or(|wanted| wanted == member.id()))
            else {
                continue;
            };
            let chassis: Chassis = self.get(path)?.value;

            // A shelf of supplies may have no draw of its own; it must be named.
            let shelf = wanted.is_some() && chassis.power_subsystem.is_some();

            if chassis.power.is_some() || chassis.environment_metrics.is_some() || shelf {
                with_power.push((member.id().to_owned(), chassis));
            }
        }

        if with_power.len() != 1 {
            let ids: Vec<_> = members.iter().take(MEMBERS_MAX).map(Link::id).collect();
            let why = format!(
                "{} chassis with power resources{}: name one of {}",
                with_power.len(),
                wanted.map(|wanted| format!(" named {wanted:?}")).unwrap_or_default(),
                ids.join(", ")
            );

            return Err(BmcError::unusable(self.of(collection, "Members"), why));
        }

        let (_, chassis) = with_power.swap_remove(0);
        let path = |link: &Option<Link>| link.as_ref().and_then(Link::path).map(str::to_owned);
        let links = chassis.links.map(|links| links.computer_systems).unwrap_or_default();
        let system = match (&links[..], root.systems.as_ref().and_then(Link::path)) {
            ([system], _) => system.path().map(str::to_owned),
            (_, Some(systems)) => match &self.get::<Collection>(systems)?.value.members[..] {
                [system] => system.path().map(str::to_owned),
                // Several: whose state counts cannot be told.
                _ => None,
            },
            _ => None,
        };

        Ok(Resources {
            power: path(&chassis.power),
            environment: path(&chassis.environment_metrics),
            subsystem: path(&chassis.power_subsystem),
            system,
        })
    }

    fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<Fetched<T>, BmcError> {
        let fetched = self.runtime.block_on(self.http.get(path));
        if fetched.is_err() {
            // A BMC that was updated or replaced may have its resources elsewhere.
            self.found = None;
        }
        fetched
    }

    fn of(&self, path: &str, field: &str) -> String {
        format!("{}{path} {field}", self.http.settings().url)
    }

    fn missing(&self, what: &str) -> BmcError {
        BmcError::unusable(self.http.settings().url.clone(), format!("this BMC has no {what}"))
    }
}

impl Drop for Redfish {
    fn drop(&mut self) {
        self.runtime.block_on(self.http.log_out());
    }
}

/// The draw by the older resource, as it was told.
fn consumed(power: &Power) -> Option<f64> {
    power.power_control.first().and_then(|control| control.power_consumed_watts)
}

/// The supplies of the older resource. A place in the list is the last resort: it shifts when one is pulled.
fn older(power: Power) -> Vec<SupplyReading> {
    let supplies = power.power_supplies.into_iter().take(MEMBERS_MAX).enumerate();
    supplies
        .map(|(n, supply)| SupplyReading {
            state: state(supply.status.as_ref()),
            input: input(supply.power_input_watts),
            id: supply.member_id.unwrap_or_else(|| n.to_string()),
        })
        .collect()
}

/// `Enabled` and not critical carries load; what no other value tells is unknown.
fn state(status: Option<&Status>) -> SupplyState {
    let Some(status) = status else { return SupplyState::Unknown };
    match (status.state.as_deref(), status.health.as_deref()) {
        (Some("Absent"), _) => SupplyState::Absent,
        (Some("UnavailableOffline"), _) | (Some("Enabled"), Some("Critical")) => SupplyState::Failed,
        (Some("Enabled"), _) => SupplyState::Active,
        (Some("StandbySpare" | "StandbyOffline"), _) => SupplyState::Standby,
        _ => SupplyState::Unknown,
    }
}

/// A supply's draw; zero is a value (of one on standby), negative and implausible ones are none.
fn input(watts: Option<f64>) -> Option<Watts> {
    watts.filter(|watts| (0.0..1e6).contains(watts)).and_then(Watts::from_f64)
}
