//! What is made of a BMC's text, for tests that bring texts of their own.

use ballast_types::Watts;
use serde::de::DeserializeOwned;

use super::schema::{
    Chassis, Collection, EnvironmentMetrics, Link, Power, PowerSubsystem, PowerSupply, ServiceRoot,
    SupplyMetrics, System, message,
};
use super::{RedfishCapState, SupplyReading, above_zero, consumed, input, older, state};
use crate::BmcError;

/// All that a text says, whatever resource it is of.
#[derive(Debug, Default)]
pub struct ResourceReading {
    /// The draw by either generation, where the text has one.
    pub draws: Vec<Result<Watts, BmcError>>,
    pub supplies: Vec<SupplyReading>,
    /// The limit by either generation, or why it cannot be used.
    pub limits: Vec<Result<RedfishCapState, String>>,
    /// Links that would be followed.
    pub paths: Vec<String>,
    /// The reason that a refusal gives.
    pub message: Option<String>,
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// Reads a text as every resource that is read of a BMC.
pub fn read_resource(body: &[u8]) -> ResourceReading {
    let mut said = ResourceReading { message: message(body), ..ResourceReading::default() };
    let mut links: Vec<Link> = vec![];

    if let Some(metrics) = parsed::<EnvironmentMetrics>(body) {
        let draw = metrics.power_watts.map(|reading| above_zero("PowerWatts.Reading", reading.reading));
        said.draws.extend(draw);
        said.limits.extend(metrics.power_limit_watts.map(RedfishCapState::of_control));
    }

    if let Some(mut power) = parsed::<Power>(body) {
        said.draws.push(above_zero("PowerControl[0].PowerConsumedWatts", consumed(&power)));
        let limits = power.power_control.iter_mut().filter_map(|control| control.power_limit.take());
        said.limits.extend(limits.map(|limit| Ok(RedfishCapState::of_limit(limit))));
        said.supplies = older(power);
    }

    if let Some(supply) = parsed::<PowerSupply>(body) {
        let (id, state) = (String::new(), state(supply.status.as_ref()));
        let metrics = parsed::<SupplyMetrics>(body).and_then(|metrics| metrics.input_power_watts);
        let input = metrics.and_then(|reading| input(reading.reading));
        said.supplies.push(SupplyReading { id, state, input });
        links.extend(supply.metrics);
    }

    if let Some(root) = parsed::<ServiceRoot>(body) {
        links.extend(root.chassis.into_iter().chain(root.systems));
    }
    if let Some(chassis) = parsed::<Chassis>(body) {
        links.extend(chassis.links.into_iter().flat_map(|links| links.computer_systems));
        links.extend(
            [chassis.power, chassis.environment_metrics, chassis.power_subsystem].into_iter().flatten(),
        );
    }
    links.extend(parsed::<PowerSubsystem>(body).and_then(|subsystem| subsystem.power_supplies));
    links.extend(parsed::<Collection>(body).into_iter().flat_map(|collection| collection.members));
    // Its state is a word, and any word is taken.
    let _ = parsed::<System>(body);

    said.paths = links.iter().filter_map(Link::path).map(str::to_owned).collect();
    said
}
