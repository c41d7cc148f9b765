//! What is asked about drains, and what is done about them each second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::drain::{DrainOrder, emptiable};
use ballast_placement::{Inventory, InventoryError};
use ballast_runtime::http::{Endpoint, Refused, Right};
use ballast_types::wire::{DrainAnswer, EventKind};
use serde::{Deserialize, Serialize};

use super::answer;
use super::book::Drains;
use super::record::DrainSpec;
use crate::api::Api;
use crate::body::{self, Several, Whole};
use crate::fault::Fault;
use crate::store::Record;

/// So many hosts are drained together at most.
const HOSTS_MAX: usize = 200;
/// How often what others have done is taken note of, and whether a drain should begin by itself.
const PERIOD: Duration = Duration::from_secs(1);

/// What is asked about drains.
pub(crate) fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::post("/v1/drains", post)
            .only(Right::Operate)
            .takes(
                "`hosts` by name, or how many (`count`); `order`, `limit`, `reopen`; `dry_run` to write \
                 nothing down, `approve` to begin at once",
            )
            .answers("the plan: its `id`, the VMs in the order of their moves, and when each host is free")
            .fails("404 for an unknown host; 409 where nothing can be drained, or a drain is under way; 503"),
        Endpoint::get("/v1/drains", list).answers("drains, the newest first"),
        Endpoint::get("/v1/drains/{id}", one)
            .answers("the drain: which VMs are due and where they go, who waits, when each host is free")
            .fails("404 for an unknown drain"),
        Endpoint::post("/v1/drains/{id}/approve", approve)
            .only(Right::Operate)
            .answers("the drain, which is under way")
            .fails("404 for an unknown drain; 409 for one that is not proposed, or beside another; 503"),
        Endpoint::post("/v1/drains/{id}/moves/{vm}", told)
            .only(Right::Place)
            .takes("`done`: whether the VM has arrived, or its move has failed")
            .answers("the drain, and whether the same was told before (`repeated`)")
            .fails("404 for a VM that is not due; 409 where no VM is, or it was told otherwise before; 503"),
        Endpoint::delete("/v1/drains/{id}", cancel)
            .only(Right::Operate)
            .answers("204 once it is cancelled: its hosts are as they were before, and no room is held")
            .fails("404 for an unknown drain; 409 for one that has ended; 503"),
    ]
}

/// A drain to propose or start. Unknown fields are rejected, because a misspelt one would change which hosts are drained.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    hosts: Option<Several<String, HOSTS_MAX>>,
    /// The number of emptiest hosts to choose, instead of `hosts`.
    count: Option<Whole<1, 200>>,
    order: Option<DrainOrder>,
    limit: Option<Whole<1, 1000>>,
    reopen: Option<bool>,
    dry_run: Option<bool>,
    approve: Option<bool>,
}

impl DrainBody {
    fn read(body: &[u8]) -> Result<Self, Refused> {
        let request: Self = body::read(body)?;
        let mut names = BTreeSet::new();
        let duplicate = request.hosts.iter().flat_map(|hosts| &hosts.0).find(|name| !names.insert(*name));
        let why = match (&request.hosts, request.count, duplicate) {
            (None, None, _) => "hosts or count is missing",
            (Some(_), Some(_), _) => "hosts and count: one of them, not both",
            (.., Some(name)) => &format!("hosts: {name:?} is listed twice"),
            _ if request.is_dry_run() && request.approve == Some(true) => {
                "dry_run and approve: one of them, not both"
            }
            _ => return Ok(request),
        };
        Err(body::refused(why))
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run == Some(true)
    }
}

/// The hosts to drain. Each must be in the inventory.
fn chosen(inventory: &Inventory, request: &DrainBody) -> Result<Vec<String>, Fault> {
    if let Some(Several(names)) = &request.hosts {
        return match names.iter().find(|name| inventory.host(name).is_none()) {
            Some(host) => Err(InventoryError::UnknownHost { host: host.clone() }.into()),
            None => Ok(names.clone()),
        };
    }
    let hosts = inventory.emptiest(request.count.map_or(0, |count| count.0 as usize));
    let why = "count: there is no open host that has VMs".into();
    if hosts.is_empty() { Err(Refused(StatusCode::CONFLICT, why).into()) } else { Ok(hosts) }
}

async fn post(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let asked = api.checked(DrainBody::read(&body))?;
    let config = &api.drains;
    let spec = |inventory: &Inventory| -> Result<DrainSpec, Fault> {
        Ok(DrainSpec {
            hosts: chosen(inventory, &asked)?,
            order: asked.order.unwrap_or(config.order),
            limit: asked.limit.map_or(config.limit, |limit| limit.0),
            move_time: config.move_time,
            reopen: asked.reopen.unwrap_or(asked.hosts.is_none()),
            by_itself: false,
        })
    };

    let now = ballast_runtime::unix_now();
    if asked.is_dry_run() {
        let mut inventory = api.inventory.look();
        let spec = spec(&inventory).map_err(|fault| api.refuse(fault))?;
        return Ok(Json(answer::proposed(None, &spec, now, &mut inventory)).into_response());
    }

    let id = changed(&api, |drains, inventory| {
        let spec = spec(inventory)?;
        if asked.approve != Some(true) {
            return Ok(drains.propose(spec));
        }
        begin(drains, spec, now, inventory).map_err(Fault::from)
    });
    said(&api, id.await?)
}

/// A drain that is approved as soon as it is there.
fn begin(
    drains: &mut Drains,
    spec: DrainSpec,
    now: ballast_types::Instant,
    inventory: &mut Inventory,
) -> Result<(u64, Record), Refused> {
    if let Some(other) = drains.under_way() {
        let why = format!("drain {} is under way: wait until it is done, or cancel it", other.id);
        return Err(Refused(StatusCode::CONFLICT, why));
    }
    // What was proposed is written down with what has begun: the newer record is of both.
    let (id, proposed) = drains.propose(spec);
    let mut done = drains.approve(id, now, inventory)?;
    done.gone_drains.extend(proposed.gone_drains);
    Ok((id, done))
}

/// Changes something, and comes back when it is on disk.
async fn changed<T>(
    api: &Api,
    change: impl FnOnce(&mut Drains, &mut Inventory) -> Result<(T, Record), Fault>,
) -> Result<T, Refused> {
    let changed = api.inventory.change(|inventory| {
        let (answer, record) = change(&mut api.inventory.drains(), inventory)?;
        Ok::<_, Fault>(((answer, names(&record)), Some(record)))
    });
    let (told, hosts) = changed.await?.map_err(|fault| api.refuse(fault))?;
    hosts.into_iter().for_each(|host| api.tell(EventKind::HostChanged { host }));
    Ok(told)
}

/// The names of hosts whose state has changed.
fn names(record: &Record) -> Vec<String> {
    record.hosts.iter().map(|host| host.name.clone()).collect()
}

fn said(api: &Api, id: u64) -> Result<Response, Refused> {
    Ok(Json(answer_of(api, id)?).into_response())
}

fn answer_of(api: &Api, id: u64) -> Result<DrainAnswer, Refused> {
    let mut inventory = api.inventory.look();
    let drains = api.inventory.drains();
    Ok(answer::of(drains.get(id)?, ballast_runtime::unix_now(), &mut inventory))
}

async fn list(State(api): State<Api>) -> Response {
    let inventory = api.inventory.look();
    let drains = api.inventory.drains();
    let drains: Vec<_> = drains.all().rev().map(|drain| answer::brief(drain, &inventory)).collect();
    Json(BTreeMap::from([("drains", drains)])).into_response()
}

async fn one(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    said(&api, number(&id)?)
}

async fn approve(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    let id = number(&id)?;
    let now = ballast_runtime::unix_now();
    changed(&api, |drains, inventory| Ok(((), drains.approve(id, now, inventory)?))).await?;
    said(&api, id)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    /// Whether the VM has arrived. `false`: the move has failed.
    done: bool,
}

async fn told(
    State(api): State<Api>,
    Path((id, vm)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refused> {
    let id = number(&id)?;
    let MoveBody { done } = api.checked(body::read(&body))?;
    let now = ballast_runtime::unix_now();
    let repeated = changed(&api, |drains, inventory| {
        let (record, told) = drains.told(id, &vm, done, now, inventory)?;
        api.agents.changed(told.hosts.iter().map(String::as_str));
        Ok((told.repeated, record))
    });
    let repeated = repeated.await?;
    Ok(Json(MoveAnswer { repeated, drain: answer_of(&api, id)? }).into_response())
}

#[derive(Serialize)]
struct MoveAnswer {
    /// Whether the same was told before.
    repeated: bool,
    #[serde(flatten)]
    drain: DrainAnswer,
}

async fn cancel(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    let id = number(&id)?;
    let now = ballast_runtime::unix_now();
    changed(&api, |drains, inventory| Ok(((), drains.cancel(id, now, inventory)?))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn number(id: &str) -> Result<u64, Refused> {
    let refused =
        || Refused(StatusCode::BAD_REQUEST, format!("drain {id:?}: the number of a drain is needed"));
    id.parse().map_err(|_| refused())
}

/// Goes on with what is under way, and begins a drain when too few hosts are empty.
pub(crate) async fn follow(api: Api) {
    loop {
        tokio::time::sleep(PERIOD).await;
        if let Err(Refused(_, why)) = step(&api).await {
            tracing::warn!("drains: {why}");
        }
    }
}

pub(super) async fn step(api: &Api) -> Result<(), Refused> {
    let (config, now) = (&api.drains, ballast_runtime::unix_now());
    let is_due = {
        let inventory = api.inventory.look();
        let drains = api.inventory.drains();
        let is_due = drains.is_due(config, now, &inventory);
        if !is_due && drains.under_way().is_none() {
            return Ok(());
        }
        is_due
    };

    let stepped = api.inventory.change(|inventory| {
        let mut drains = api.inventory.drains();
        let done =
            if is_due { by_itself(api, &mut drains, now, inventory)? } else { drains.step(now, inventory) };
        Ok::<_, Refused>((done.as_ref().map(names).unwrap_or_default(), done))
    });
    let hosts: Vec<String> = stepped.await??;
    hosts.into_iter().for_each(|host| api.tell(EventKind::HostChanged { host }));
    Ok(())
}

/// A drain that begins by itself; `None` where no host can be emptied.
fn by_itself(
    api: &Api,
    drains: &mut Drains,
    now: ballast_types::Instant,
    inventory: &mut Inventory,
) -> Result<Option<Record>, Refused> {
    let config = &api.drains;
    let hosts = emptiable(inventory, now, &inventory.emptiest(config.hosts as usize));
    if hosts.is_empty() {
        return Ok(None);
    }
    let spec = DrainSpec {
        hosts,
        order: config.order,
        limit: config.limit,
        move_time: config.move_time,
        reopen: true,
        by_itself: true,
    };
    if !config.ask {
        return begin(drains, spec, now, inventory).map(|(_, done)| Some(done));
    }
    let (id, record) = drains.propose(spec);
    tracing::info!("too few hosts are empty: drain {id} is proposed, and waits for approval");
    Ok(Some(record))
}
