//! `/v1/hosts`: which hosts there are, by HTTP or by a file.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use ballast_placement::inventory::{HostSpec, HostView, NamedHost, Snapshot};
use ballast_placement::{HostState, Inventory, InventoryError};
use ballast_types::wire::{ChassisBalance, EventKind, InventoryStatus};
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::fault::Fault;
use super::fields::{self, Fields};
use super::store::Record;
use crate::config::{ToldHost, host_size};
use ballast_runtime::http::{Refused, Right, only};

/// The states by name.
const STATES: [(&str, HostState); 3] =
    [("open", HostState::Open), ("cordoned", HostState::Cordoned), ("draining", HostState::Draining)];

/// The paths.
pub(super) fn routes() -> Router<Api> {
    let host = get(one).merge(only(Right::Operate, axum::routing::put(put).delete(delete)));
    Router::new().route("/v1/hosts", get(list)).route("/v1/hosts/{name}", host)
}

/// A host as it is.
#[derive(Serialize)]
struct HostAnswer<'a> {
    host: &'a str,
    chassis: &'a str,
    state: HostState,
    cores: f64,
    free_cores: f64,
    memory_gb: f64,
    free_memory_gb: f64,
    vms: u32,
    server_score: f64,
    chassis_score: f64,
}

impl<'a> From<HostView<'a>> for HostAnswer<'a> {
    fn from(host: HostView<'a>) -> Self {
        Self {
            host: host.name,
            chassis: host.chassis,
            state: host.state,
            cores: host.capacity.cores.cores(),
            free_cores: host.free.cores.cores(),
            memory_gb: host.capacity.memory.gb(),
            free_memory_gb: host.free.memory.gb(),
            vms: host.vms,
            server_score: host.server_score,
            chassis_score: host.chassis_score,
        }
    }
}

#[derive(Serialize)]
struct List<'a> {
    hosts: Vec<HostAnswer<'a>>,
}

async fn list(State(api): State<Api>) -> Response {
    let inventory = api.inventory.look();
    Json(List { hosts: inventory.hosts().map(HostAnswer::from).collect() }).into_response()
}

async fn one(State(api): State<Api>, Path(name): Path<String>) -> Result<Response, Refused> {
    let inventory = api.inventory.look();
    let answer = inventory.host(&name).map(|host| Json(HostAnswer::from(host)).into_response());
    answer.ok_or_else(|| Fault::from(InventoryError::UnknownHost { host: name }).refused)
}

/// A host is there, and is so; what is not told of a known one stays.
async fn put(State(api): State<Api>, Path(name): Path<String>, body: Bytes) -> Result<Response, Refused> {
    struct Told {
        chassis: Option<String>,
        cores: Option<f64>,
        memory_gb: Option<f64>,
        state: Option<HostState>,
    }

    let read = |body: &Fields<'_>| {
        Ok(Told {
            chassis: body.name("chassis")?,
            cores: body.number("cores")?,
            memory_gb: body.number("memory_gb")?,
            state: body.word("state", &STATES)?,
        })
    };

    let told = api.checked(fields::body(&body, read))?;
    let file = api.host_file();
    let changed = api.inventory.change(|inventory| {
        let before = inventory.host(&name).as_ref().map(spec);
        let refused = |why: String| Fault::from(Refused(StatusCode::BAD_REQUEST, why));
        let missing = |key| refused(format!("{key} is missing: host {name:?} is new"));
        let old = before.as_ref();
        let chassis = told.chassis.or_else(|| old.map(|old| old.chassis.clone()));
        let cores = told.cores.or_else(|| old.map(|old| old.capacity.cores.cores()));
        let memory_gb = told.memory_gb.or_else(|| old.map(|old| old.capacity.memory.gb()));
        let cores = cores.ok_or_else(|| missing("cores"))?;
        let memory_gb = memory_gb.ok_or_else(|| missing("memory_gb"))?;
        let after = HostSpec {
            chassis: chassis.ok_or_else(|| missing("chassis"))?,
            capacity: host_size(cores, memory_gb).map_err(refused)?,
            state: told.state.or_else(|| old.map(|old| old.state)).unwrap_or_default(),
        };

        if let Some(file) = &file
            && old.is_none_or(|old| HostSpec { state: after.state, ..old.clone() } != after)
        {
            return Err(Fault::from(Refused(StatusCode::CONFLICT, only_state(file))));
        }
        if old == Some(&after) {
            return Ok((false, None));
        }
        inventory.set_host(ballast_runtime::now(), &name, &after)?;

        Ok((true, Some(Record::Host(NamedHost { name: name.clone(), spec: after }))))
    });

    if changed.await?.map_err(|fault| api.refuse(fault))? {
        api.tell(EventKind::HostChanged { host: name });
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What becomes of the VMs of a host that goes.
#[derive(Deserialize)]
struct Leaving {
    /// `forget`: they go with it. Absent: there must be none.
    vms: Option<Forget>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Forget {
    Forget,
}

async fn delete(
    State(api): State<Api>,
    Path(name): Path<String>,
    Query(leaving): Query<Leaving>,
) -> Result<Response, Refused> {
    let file = api.host_file();
    let changed = api.inventory.change(|inventory| {
        if let Some(file) = &file {
            return Err(Fault::from(Refused(StatusCode::CONFLICT, only_state(file))));
        }
        let gone = inventory.remove_host(ballast_runtime::now(), &name, leaving.vms.is_some())?;
        Ok((gone.len(), Some(Record::NoHost(name.clone()))))
    });
    let vms = changed.await?.map_err(|fault| api.refuse(fault))?;
    api.tell(EventKind::HostRemoved { host: name, vms: vms as u64 });
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn only_state(file: &str) -> String {
    format!("hosts are as {file} says: only state can be changed here")
}

fn spec(host: &HostView<'_>) -> HostSpec {
    HostSpec { chassis: host.chassis.to_owned(), capacity: host.capacity, state: host.state }
}

/// Makes the hosts what a file says. Where it does not say whether VMs may come, that stays. One that it no longer has is
/// gone, or drains while it has VMs.
///
/// # Errors
/// Where a name is none.
pub(super) fn follow(inventory: &mut Inventory, told: &[ToldHost]) -> Result<Option<Record>, InventoryError> {
    let before = inventory.snapshot();
    let mut after: BTreeMap<String, HostSpec> = BTreeMap::new();
    for ToldHost { host, state } in told {
        let known = inventory.host(&host.name).map(|known| known.state);
        let state = state.or(known).unwrap_or_default();
        after.insert(host.name.clone(), HostSpec { state, ..host.spec.clone() });
    }

    let mut gone = vec![];
    for host in inventory.hosts().filter(|host| !after.contains_key(host.name)).collect::<Vec<_>>() {
        if host.vms == 0 {
            gone.push(host.name.to_owned());
        } else {
            let leaves = HostSpec { state: HostState::Draining, ..spec(&host) };
            after.insert(host.name.to_owned(), leaves);
        }
    }

    let hosts: Vec<NamedHost> = after.into_iter().map(|(name, spec)| NamedHost { name, spec }).collect();
    if hosts == before.hosts {
        return Ok(None);
    }
    let is_new = |host: &&NamedHost| {
        let before = inventory.host(&host.name).as_ref().map(spec);
        before.as_ref() != Some(&host.spec)
    };

    let set = hosts.iter().filter(is_new).cloned().collect();
    inventory.replace(ballast_runtime::now(), &Snapshot { hosts, vms: before.vms })?;

    Ok(Some(Record::Hosts { set, gone }))
}

/// What status says of all of it.
pub(super) fn status(inventory: &Inventory) -> InventoryStatus {
    let mut all = InventoryStatus::default();
    let mut chassis: BTreeMap<&str, ChassisBalance> = BTreeMap::new();
    for host in inventory.hosts() {
        all.hosts += 1;
        match host.state {
            HostState::Open => {}
            HostState::Cordoned => all.cordoned_hosts += 1,
            HostState::Draining => all.draining_hosts += 1,
        }

        let (cores, memory_gb) = (host.capacity.cores.cores(), host.capacity.memory.gb());
        let taken = host.taken;
        let over = taken.milli_cores > u64::from(host.capacity.cores.milli())
            || taken.memory_kb > host.capacity.memory.kb();
        all.used_hosts += u64::from(host.vms > 0);
        all.overcommitted_hosts += u64::from(over);
        all.vms += u64::from(host.vms);
        all.cores += cores;
        all.memory_gb += memory_gb;
        all.allocated_cores += taken.milli_cores as f64 / 1e3;
        all.allocated_memory_gb += taken.memory_kb as f64 / 1e6;
        let its = chassis.entry(host.chassis).or_default();
        its.hosts += 1;
        its.vms += u64::from(host.vms);
        its.cores += cores;
        its.allocated_cores += taken.milli_cores as f64 / 1e3;
        its.score = host.chassis_score;
    }

    (all.chassis_score_std, all.server_score_std) = inventory.balance();
    let named = |(name, its): (&str, ChassisBalance)| ChassisBalance { chassis: name.into(), ..its };
    all.chassis = chassis.into_iter().map(named).collect();

    all
}
