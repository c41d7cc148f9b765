//! `/v1/hosts`: which hosts there are, by HTTP or by a file.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::inventory::{HostSpec, HostView, NamedHost, Overcommit};
use ballast_placement::{HostState, Inventory, InventoryError, Resources};
use ballast_types::wire::EventKind;
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::body::{self, Amounts, Name, Whole};
use super::fault::Fault;
use super::store::Record;
use crate::config::host_size;
use ballast_runtime::audit::Before;
use ballast_runtime::http::{Endpoint, Refused, Right};

/// What is asked about hosts.
pub(super) fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::get("/v1/hosts", list).answers("every host: its free cores and memory, VMs and scores"),
        Endpoint::get("/v1/hosts/{name}", one).answers("the host").fails("404 for an unknown host"),
        Endpoint::put("/v1/hosts/{name}", put)
            .only(Right::Operate)
            .takes(
                "`chassis`, `cores`, `memory_gb`, `state`, `fault_domain`, `extras`, `overcommit`, \
                 `max_vms` (0: no limit); what is absent of a known host stays",
            )
            .answers("204 once the host is there, and is so")
            .fails("409 for more than its `state` where a file says the hosts; 503 as above"),
        Endpoint::delete("/v1/hosts/{name}", delete)
            .only(Right::Operate)
            .answers("204 once the host is gone; with `?vms=forget` its VMs too")
            .fails("404 for an unknown host; 409 for one with VMs, or where a file says the hosts; 503"),
    ]
}

#[derive(Serialize)]
struct HostAnswer<'a> {
    host: &'a str,
    chassis: &'a str,
    fault_domain: &'a str,
    state: HostState,
    cores: f64,
    /// Of the cores that its VMs may take together.
    free_cores: f64,
    memory_gb: f64,
    free_memory_gb: f64,
    overcommit: Overcommit,
    /// For which share of the time its VMs demand more than its cores, where something is promised of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_risk: Option<f64>,
    /// What else it has, by name.
    extras: &'a BTreeMap<String, u32>,
    free_extras: BTreeMap<String, u32>,
    vms: u32,
    max_vms: Option<u32>,
    server_score: f64,
    chassis_score: f64,
}

impl<'a> HostAnswer<'a> {
    fn new(inventory: &Inventory, host: &HostView<'a>) -> Self {
        let spec = host.spec;
        Self {
            host: host.name,
            chassis: &spec.chassis,
            fault_domain: spec.fault_domain.as_ref().unwrap_or(&spec.chassis),
            state: spec.state,
            cores: spec.capacity.cores.cores(),
            free_cores: host.free.cores.cores(),
            memory_gb: spec.capacity.memory.gb(),
            free_memory_gb: host.free.memory.gb(),
            overcommit: spec.overcommit,
            cpu_risk: inventory.cpu_risk(ballast_runtime::unix_now(), host.name, None).unwrap_or_default(),
            extras: &spec.extras,
            free_extras: inventory.named_extras(host.free.extras),
            vms: host.vms,
            max_vms: spec.max_vms,
            server_score: host.server_score,
            chassis_score: host.chassis_score,
        }
    }
}

async fn list(State(api): State<Api>) -> Response {
    let inventory = api.inventory.look();
    let hosts: Vec<_> = inventory.hosts().map(|host| HostAnswer::new(&inventory, &host)).collect();
    Json(BTreeMap::from([("hosts", hosts)])).into_response()
}

async fn one(State(api): State<Api>, Path(name): Path<String>) -> Result<Response, Refused> {
    let inventory = api.inventory.look();
    let answer = inventory.host(&name).map(|host| Json(HostAnswer::new(&inventory, &host)).into_response());
    answer.ok_or_else(|| Fault::from(InventoryError::UnknownHost { host: name }).refused)
}

/// The host before an order, for the audit log.
fn before(api: &Api, name: &str) -> Option<Extension<Before>> {
    let inventory = api.inventory.look();
    let host = inventory.host(name).map(|host| HostAnswer::new(&inventory, &host))?;
    Some(Extension(Before(serde_json::to_string(&host).ok()?)))
}

/// A host is there, and is so; what is not told of a known one stays.
async fn put(State(api): State<Api>, Path(name): Path<String>, body: Bytes) -> impl IntoResponse {
    (before(&api, &name), try_put(api, name, body).await)
}

/// A new host, or changes of a known one.
#[derive(Deserialize)]
struct HostBody {
    chassis: Option<Name>,
    cores: Option<f64>,
    memory_gb: Option<f64>,
    state: Option<HostState>,
    fault_domain: Option<Name>,
    extras: Option<Amounts>,
    overcommit: Option<Overcommit>,
    max_vms: Option<Whole<0, { u32::MAX }>>,
}

impl HostBody {
    /// The host after the change. A known host keeps the fields that are absent here.
    fn after(self, name: &str, before: Option<&HostSpec>) -> Result<HostSpec, String> {
        let size = before.map(|spec| (spec.capacity.cores.cores(), spec.capacity.memory.gb()));
        let cores = self.cores.or(size.map(|size| size.0)).ok_or_else(|| missing(name, "cores"))?;
        let memory_gb =
            self.memory_gb.or(size.map(|size| size.1)).ok_or_else(|| missing(name, "memory_gb"))?;
        let chassis = self.chassis.map(|name| name.0).or_else(|| before.map(|spec| spec.chassis.clone()));
        let default = before.cloned().unwrap_or_else(|| HostSpec::new("", Resources::ZERO));
        Ok(HostSpec {
            chassis: chassis.ok_or_else(|| missing(name, "chassis"))?,
            capacity: host_size(cores, memory_gb)?,
            state: self.state.unwrap_or(default.state),
            fault_domain: self.fault_domain.map(|name| name.0).or(default.fault_domain),
            extras: self.extras.map_or(default.extras, Into::into),
            overcommit: self.overcommit.unwrap_or(default.overcommit),
            max_vms: self.max_vms.map_or(default.max_vms, |max| Some(max.0).filter(|max| *max > 0)),
        })
    }
}

fn missing(name: &str, key: &str) -> String {
    format!("{key} is missing: host {name:?} is new")
}

async fn try_put(api: Api, name: String, body: Bytes) -> Result<Response, Refused> {
    let change: HostBody = api.checked(body::read(&body))?;
    let file = api.host_file();
    let changed = api.inventory.change(|inventory| {
        let before = inventory.host(&name).map(|host| host.spec);
        let after = change.after(&name, before).map_err(|why| body::refused(&why))?;
        if let Some(file) = &file
            && before.is_none_or(|before| HostSpec { state: after.state, ..before.clone() } != after)
        {
            return Err(only_state(file));
        }
        if before == Some(&after) {
            return Ok((false, None));
        }
        inventory.set_host(ballast_runtime::unix_now(), &name, &after)?;

        Ok((
            true,
            Some(Record { hosts: vec![NamedHost { name: name.clone(), spec: after }], ..Record::default() }),
        ))
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
) -> impl IntoResponse {
    (before(&api, &name), try_delete(api, name, leaving).await)
}

async fn try_delete(api: Api, name: String, leaving: Leaving) -> Result<Response, Refused> {
    let file = api.host_file();
    let changed = api.inventory.change(|inventory| {
        if let Some(file) = &file {
            return Err(only_state(file));
        }
        let at = ballast_runtime::unix_now();
        let vms = inventory.remove_host(at, &name, leaving.vms.is_some())?;
        let ended: Vec<_> = vms.into_iter().map(|placed| (placed, at)).collect();
        Ok((ended.len(), Some(Record { ended, gone_hosts: vec![name.clone()], ..Record::default() })))
    });
    let vms = changed.await?.map_err(|fault| api.refuse(fault))?;
    api.tell(EventKind::HostRemoved { host: name, vms: vms as u64 });
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn only_state(file: &str) -> Fault {
    let why = format!("hosts are configured in {file}: only state can be changed here");
    Refused(StatusCode::CONFLICT, why).into()
}
