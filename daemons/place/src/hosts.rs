//! `/v1/hosts`: which hosts there are, by HTTP or by a file.

use axum::body::Bytes;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::inventory::{HostSpec, HostView, NamedHost};
use ballast_placement::{HostState, InventoryError};
use ballast_types::wire::EventKind;
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::fault::Fault;
use super::fields::{self, Fields};
use super::host_list::spec;
use super::store::Record;
use crate::config::host_size;
use ballast_runtime::audit::Before;
use ballast_runtime::http::{Endpoint, Refused, Right};

const STATES: [(&str, HostState); 3] =
    [("open", HostState::Open), ("cordoned", HostState::Cordoned), ("draining", HostState::Draining)];

/// What is asked about hosts.
pub(super) fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::get("/v1/hosts", list).answers("every host: its free cores and memory, VMs and scores"),
        Endpoint::get("/v1/hosts/{name}", one).answers("the host").fails("404 for an unknown host"),
        Endpoint::put("/v1/hosts/{name}", put)
            .only(Right::Operate)
            .takes("`chassis`, `cores`, `memory_gb`, `state`; what is absent of a known host stays")
            .answers("204 once the host is there, and is so")
            .fails("409 for more than its `state` where a file says the hosts; 503 as above"),
        Endpoint::delete("/v1/hosts/{name}", delete)
            .only(Right::Operate)
            .answers("204 once the host is gone; with `?vms=forget` its VMs too")
            .fails("404 for an unknown host; 409 for one with VMs, or where a file says the hosts; 503"),
    ]
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

/// The host before an order, for the audit log.
fn before(api: &Api, name: &str) -> Option<Extension<Before>> {
    let inventory = api.inventory.look();
    let host = inventory.host(name).map(HostAnswer::from)?;
    Some(Extension(Before(serde_json::to_string(&host).ok()?)))
}

/// A host is there, and is so; what is not told of a known one stays.
async fn put(State(api): State<Api>, Path(name): Path<String>, body: Bytes) -> impl IntoResponse {
    (before(&api, &name), try_put(api, name, body).await)
}

async fn try_put(api: Api, name: String, body: Bytes) -> Result<Response, Refused> {
    struct HostChange {
        chassis: Option<String>,
        cores: Option<f64>,
        memory_gb: Option<f64>,
        state: Option<HostState>,
    }

    let read = |body: &Fields<'_>| {
        Ok(HostChange {
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
        inventory.set_host(&name, &after)?;

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
) -> impl IntoResponse {
    (before(&api, &name), try_delete(api, name, leaving).await)
}

async fn try_delete(api: Api, name: String, leaving: Leaving) -> Result<Response, Refused> {
    let file = api.host_file();
    let changed = api.inventory.change(|inventory| {
        if let Some(file) = &file {
            return Err(Fault::from(Refused(StatusCode::CONFLICT, only_state(file))));
        }
        let gone = inventory.remove_host(ballast_runtime::unix_now(), &name, leaving.vms.is_some())?;
        Ok((gone.len(), Some(Record::NoHost(name.clone()))))
    });
    let vms = changed.await?.map_err(|fault| api.refuse(fault))?;
    api.tell(EventKind::HostRemoved { host: name, vms: vms as u64 });
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn only_state(file: &str) -> String {
    format!("hosts are as {file} says: only state can be changed here")
}
