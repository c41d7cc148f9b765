//! What is asked about drains, and what is done about them each second.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::drain::{DrainOrder, emptiable};
use ballast_placement::{Inventory, InventoryError};
use ballast_runtime::http::{Endpoint, Refused, Right};
use ballast_types::wire::{DrainAnswer, EventKind};
use serde::Serialize;
use serde_json::Value;

use super::answer;
use super::book::{Done, Drains};
use super::record::DrainSpec;
use crate::api::Api;
use crate::config::ORDERS;
use crate::fault::Fault;
use crate::fields::{self, Fields};
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

/// What a body asks for.
struct DrainRequest {
    hosts: Result<Vec<String>, usize>,
    order: Option<DrainOrder>,
    limit: Option<u32>,
    reopen: Option<bool>,
    dry_run: bool,
    approve: bool,
}

fn read(body: &Fields<'_>) -> Result<DrainRequest, String> {
    body.only(&["hosts", "count", "order", "limit", "reopen", "dry_run", "approve"])?;
    let hosts = body.get("hosts").map(|value| hosts(body, value)).transpose()?;
    let count = body.whole_within("count", 1..=HOSTS_MAX as u32)?;
    let hosts = match (hosts, count) {
        (Some(hosts), None) => Ok(hosts),
        (None, Some(count)) => Err(count as usize),
        (None, None) => return Err("hosts or count is missing".into()),
        (Some(_), Some(_)) => return Err("hosts and count: one of them, not both".into()),
    };
    let limit = body.whole_within("limit", 1..=1000)?;
    let flag = |key| Ok::<_, String>(body.flag(key)?.unwrap_or(false));
    let (dry_run, approve) = (flag("dry_run")?, flag("approve")?);
    if dry_run && approve {
        return Err("dry_run and approve: one of them, not both".into());
    }
    let (order, reopen) = (body.word("order", &ORDERS)?, body.flag("reopen")?);
    Ok(DrainRequest { hosts, order, limit, reopen, dry_run, approve })
}

fn hosts(body: &Fields<'_>, value: &Value) -> Result<Vec<String>, String> {
    let allowed = || body.wrong("hosts", &format!("an array of 1 to {HOSTS_MAX} names of hosts"));
    let list = value.as_array().filter(|list| (1..=HOSTS_MAX).contains(&list.len())).ok_or_else(allowed)?;
    let names = list.iter().map(|name| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned));
    let names: Vec<String> = names.collect::<Option<_>>().ok_or_else(allowed)?;
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(format!("hosts: {twice:?} is listed twice")),
        None => Ok(names),
    }
}

/// The hosts that are meant, all of which are there.
fn chosen(inventory: &Inventory, asked: &DrainRequest) -> Result<Vec<String>, Fault> {
    match &asked.hosts {
        Ok(names) => match names.iter().find(|name| inventory.host(name).is_none()) {
            Some(host) => Err(InventoryError::UnknownHost { host: host.clone() }.into()),
            None => Ok(names.clone()),
        },
        Err(count) => {
            let hosts = inventory.emptiest(*count);
            let why = "count: there is no open host that has VMs".into();
            if hosts.is_empty() { Err(Refused(StatusCode::CONFLICT, why).into()) } else { Ok(hosts) }
        }
    }
}

async fn post(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let asked = api.checked(fields::body(&body, read))?;
    let config = &api.drains;
    let spec = |inventory: &Inventory| -> Result<DrainSpec, Fault> {
        Ok(DrainSpec {
            hosts: chosen(inventory, &asked)?,
            order: asked.order.unwrap_or(config.order),
            limit: asked.limit.unwrap_or(config.limit),
            move_time: config.move_time,
            reopen: asked.reopen.unwrap_or(asked.hosts.is_err()),
            by_itself: false,
        })
    };

    let now = ballast_runtime::unix_now();
    if asked.dry_run {
        let mut inventory = api.inventory.look();
        let spec = spec(&inventory).map_err(|fault| api.refuse(fault))?;
        return Ok(Json(answer::proposed(None, &spec, now, &mut inventory)).into_response());
    }

    let id = changed(&api, |drains, inventory| {
        let spec = spec(inventory)?;
        if !asked.approve {
            let (id, record) = drains.propose(spec);
            return Ok((id, Done { record, changed: vec![] }));
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
) -> Result<(u64, Done), Refused> {
    if let Some(other) = drains.under_way() {
        let why = format!("drain {} is under way: wait until it is done, or cancel it", other.id);
        return Err(Refused(StatusCode::CONFLICT, why));
    }
    // What was proposed is written down with what has begun: the newer record is of both.
    let (id, proposed) = drains.propose(spec);
    let mut done = drains.approve(id, now, inventory)?;
    if let (Record::Drains { gone, .. }, Record::Drains { gone: before, .. }) = (&mut done.record, proposed) {
        gone.extend(before);
    }
    Ok((id, done))
}

/// Changes something, and comes back when it is on disk.
async fn changed<T>(
    api: &Api,
    change: impl FnOnce(&mut Drains, &mut Inventory) -> Result<(T, Done), Fault>,
) -> Result<T, Refused> {
    let changed = api.inventory.change(|inventory| {
        let (told, Done { record, changed }) = change(&mut api.inventory.drains(), inventory)?;
        Ok::<_, Fault>(((told, changed), Some(record)))
    });
    let (told, hosts) = changed.await?.map_err(|fault| api.refuse(fault))?;
    hosts.into_iter().for_each(|host| api.tell(EventKind::HostChanged { host }));
    Ok(told)
}

fn said(api: &Api, id: u64) -> Result<Response, Refused> {
    Ok(Json(answer_of(api, id)?).into_response())
}

fn answer_of(api: &Api, id: u64) -> Result<DrainAnswer, Refused> {
    let mut inventory = api.inventory.look();
    let drains = api.inventory.drains();
    Ok(answer::of(drains.get(id)?, ballast_runtime::unix_now(), &mut inventory))
}

#[derive(Serialize)]
struct List {
    drains: Vec<DrainAnswer>,
}

async fn list(State(api): State<Api>) -> Response {
    let inventory = api.inventory.look();
    let brief = |drain| answer::brief(drain, &inventory);
    let drains = api.inventory.drains().all().rev().map(brief).collect();
    Json(List { drains }).into_response()
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

async fn told(
    State(api): State<Api>,
    Path((id, vm)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refused> {
    let id = number(&id)?;
    let read = |body: &Fields<'_>| {
        body.only(&["done"])?;
        body.needed("done", body.flag("done")?)
    };
    let done = api.checked(fields::body(&body, read))?;
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
        let (record, changed) = done.map(|done| (done.record, done.changed)).unzip();
        Ok::<_, Refused>((changed.unwrap_or_default(), record))
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
) -> Result<Option<Done>, Refused> {
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
    Ok(Some(Done { record, changed: vec![] }))
}
