//! `/v1/score`, `/v1/place`, `/v1/vms`: where VMs should go, go, and are.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::inventory::{NamedVm, Placed, VmSpec, VmTraits, VmView};
use ballast_placement::{Inventory, InventoryError, Verdict};
use ballast_types::VmClass;
use ballast_types::wire::{EventKind, PlacedVm};
use serde::{Deserialize, Serialize};

use super::admission::calls::admitted;
use super::admission::decision::AdmissionAnswer;
use super::api::Api;
use super::body::{self, VmBody};
use super::counters::count_more;
use super::fault::{Fault, NO_HOST, NOT_ADMITTED};
use super::store::Record;
use super::vm_request::{By, PredictedVm, VmRequest};
use ballast_runtime::http::{Endpoint, Refused, Right};

/// So many hosts are explained unless another number is asked for.
const TOP: usize = 10;
/// So many VMs are listed at once, at most.
const LIST_MAX: usize = 1000;

/// What is asked about VMs.
pub(super) fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::post("/v1/score", score)
            .takes("a VM, and how many hosts are wanted (`top`)")
            .answers("the best hosts for the VM, with what every rule says of them")
            .fails("409 for a VM that is placed already, or that no host can take"),
        Endpoint::post("/v1/place", place)
            .only(Right::Place)
            .takes("a VM, or 1 to 1,000 `vms`")
            .answers("the VMs with their hosts, once that is on disk; `repeated` if they were there")
            .fails("409 as for `/v1/score`, or not admitted; 503 when it cannot be written down"),
        Endpoint::get("/v1/vms", list)
            .answers("VMs in the order of names, at most 1,000: those of `?host=`, those `?after=` a name")
            .fails("404 for an unknown host"),
        Endpoint::get("/v1/vms/{id}", one).answers("the VM and its host").fails("404 for an unknown VM"),
        Endpoint::put("/v1/vms/{id}", put)
            .only(Right::Place)
            .takes("a VM and its `host`, as another program has put it there")
            .answers("the VM and its host")
            .fails("404 for an unknown host; 409 for a host without the room; 503 as above"),
        Endpoint::delete("/v1/vms/{id}", delete)
            .only(Right::Place)
            .answers("204 once the VM is taken out")
            .fails("404 for an unknown VM; 503 as above"),
    ]
}

/// The answer to `/v1/score`.
#[derive(Serialize)]
struct Scores<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_id: Option<&'a str>,
    /// The model's checksum, in hexadecimal; `none` without a model.
    model: &'a str,
    class: VmClass,
    class_by: By,
    p95_percent: f64,
    p95_by: By,
    lifetime_by: By,
    /// How long it is expected to live.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_s: Option<f64>,
    fitting: usize,
    /// How many hosts every constraint refuses; a host counts where it is refused first.
    refused: BTreeMap<&'static str, usize>,
    /// The best of those that fit, the best first.
    hosts: Vec<Scored<'a>>,
}

#[derive(Serialize)]
struct Scored<'a> {
    host: &'a str,
    chassis: &'a str,
    /// For which share of the time its VMs would demand more than its cores, where something is promised of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_risk: Option<f64>,
    verdicts: &'a [Verdict],
}

async fn score(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let start = Instant::now();
    let vm: VmBody = api.checked(body::read(&body))?;
    let top = vm.top.map_or(TOP, |top| top.0 as usize);
    let request = VmRequest::new(vm, Some(1)).map_err(|why| body::refused(&why));
    let request = api.checked(request)?;
    let model = api.predictor.now();
    let predicted = api.predict(model.as_deref(), &request);
    let inventory = api.inventory.look();
    let name = &predicted.vm.name;
    let (now, spec) = (ballast_runtime::unix_now(), &predicted.vm.spec);
    let scored = match inventory.vm(name) {
        Some(there) => Err(already(&there)),
        None => inventory.score(now, name, spec, top),
    };

    let scores = scored.map_err(|error| api.refuse(error.into()))?;
    let hosts = scores.hosts.iter().map(|scored| {
        let host = inventory.host_name(scored.host);
        Scored {
            host,
            chassis: inventory.chassis_of(scored.host),
            cpu_risk: inventory.cpu_risk(now, host, Some(spec)).unwrap_or_default(),
            verdicts: &scored.verdicts,
        }
    });

    let answer = Scores {
        vm_id: request.name.as_deref(),
        model: model.as_ref().map_or("none", |model| &model.checksum),
        class: predicted.vm.spec.class,
        class_by: predicted.class_by,
        p95_percent: percent(predicted.vm.spec.p95),
        p95_by: predicted.p95_by,
        lifetime_by: lifetime_by(&inventory, spec),
        expected_s: inventory.expected(now, spec).map(|expected| expected.as_secs_f64()),
        fitting: scores.fitting,
        refused: scores.refused.into_iter().collect(),
        hosts: hosts.collect(),
    };

    let answer = Json(answer).into_response();
    api.counters.score_latency.0.observe(start.elapsed().as_secs_f64());
    Ok(answer)
}

#[derive(Serialize)]
struct VmAnswer {
    vm_id: String,
    host: String,
    chassis: String,
    /// For which share of the time the host's VMs demand more than its cores, where something is promised of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_risk: Option<f64>,
    cores: f64,
    memory_gb: f64,
    class: VmClass,
    p95_percent: f64,
    /// What else it takes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extras: BTreeMap<String, u32>,
    deployment: Option<String>,
    spread: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain_skew: Option<u8>,
    subscription: Option<String>,
    /// When it came, in milliseconds since 1970.
    since_ms: u64,
    /// How long it will live in all, as told.
    lifetime_s: Option<f64>,
    /// How much longer it is expected to live, as told or as the model says.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_s: Option<f64>,
    #[serde(flatten)]
    traits: VmTraits,
}

impl VmAnswer {
    fn new(inventory: &Inventory, vm: VmView<'_>) -> Self {
        let chassis = inventory.host(vm.host).map_or("", |host| &host.spec.chassis).to_owned();
        let remaining = inventory.cluster().remaining(ballast_runtime::unix_now(), vm.since, vm.end);
        let cpu_risk = inventory.cpu_risk(ballast_runtime::unix_now(), vm.host, None).unwrap_or_default();
        Self {
            vm_id: vm.name.to_owned(),
            host: vm.host.to_owned(),
            chassis,
            cpu_risk,
            cores: vm.spec.resources.cores.cores(),
            memory_gb: vm.spec.resources.memory.gb(),
            class: vm.spec.class,
            p95_percent: percent(vm.spec.p95),
            extras: vm.spec.extras,
            deployment: vm.spec.deployment,
            spread: vm.spec.spread,
            domain_skew: Some(vm.spec.domain_skew).filter(|skew| *skew > 0),
            subscription: vm.spec.tenant,
            since_ms: vm.since.as_millis(),
            lifetime_s: vm.spec.lifetime.map(|lifetime| lifetime.as_secs_f64()),
            remaining_s: remaining.map(|remaining| remaining.as_secs_f64().round()),
            traits: vm.spec.traits,
        }
    }
}

/// The answer to `/v1/place`.
#[derive(Serialize)]
struct PlaceAnswer<T> {
    /// Whether all of it was there already, by the same request.
    repeated: bool,
    #[serde(flatten)]
    placed: T,
}

#[derive(Serialize)]
struct Many {
    vms: Vec<VmAnswer>,
}

/// The VMs to place, and whether the body is a single VM instead of a list.
fn read(body: &[u8]) -> Result<(bool, Vec<VmRequest>), Refused> {
    let mut common: VmBody = body::read(body)?;
    match common.vms.take() {
        None => {
            let vm = VmRequest::new(common, Some(1)).and_then(VmRequest::named);
            Ok((true, vec![vm.map_err(|why| body::refused(&why))?]))
        }
        Some(vms) => {
            let count = Some(vms.0.len() as u32);
            let vms = body::each(vms.0, |vm| VmRequest::new(vm.or(&common), count)?.named())?;
            Ok((false, vms))
        }
    }
}

async fn place(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let start = Instant::now();
    let (one, request) = api.checked(read(&body))?;
    let model = api.predictor.now();
    let vms: Vec<NamedVm> = request.iter().map(|request| api.predict(model.as_deref(), request).vm).collect();
    let (mut decided, mut scale_outs) = (None, 0);
    let changed = api.inventory.change(|inventory| {
        let answers = |inventory: &Inventory| -> Vec<VmAnswer> {
            let there = vms.iter().filter_map(|vm| inventory.vm(&vm.name));
            there.map(|view| VmAnswer::new(inventory, view)).collect()
        };

        if is_there(inventory, &request) {
            // The answer was lost, and with it perhaps the word to the agents.
            let answers = answers(inventory);
            api.agents.changed(answers.iter().map(|vm| vm.host.as_str()));
            return Ok(((true, answers), None));
        }
        let now = ballast_runtime::unix_now();
        if let Some(mut admission) = api.inventory.admission() {
            decided = admission.ask(now, inventory.cluster(), &vms, &mut scale_outs);
            decided.iter().try_for_each(|(name, _, answer)| admitted(name, answer))?;
        }
        let hosts = inventory.place(now, &vms)?;
        api.agents.changed(hosts.iter().map(String::as_str));
        let placed = vms.iter().cloned().zip(hosts).map(|(vm, host)| Placed { vm, host, since: now });
        Ok(((false, answers(inventory)), Some(Record { vms: placed.collect(), ..Record::default() })))
    });

    let changed = changed.await?;
    let (repeated, mut vms) = api.counted(changed, decided.as_ref(), scale_outs)?;
    if !repeated {
        count_more(&api.counters.placed, vms.len() as u64);
        let placed = |vm: &VmAnswer| PlacedVm { vm: vm.vm_id.clone(), host: vm.host.clone() };
        api.tell(EventKind::VmsPlaced { vms: vms.iter().map(placed).collect() });
    }

    api.counters.place_latency.0.observe(start.elapsed().as_secs_f64());

    Ok(match vms.pop() {
        Some(placed) if one => Json(PlaceAnswer { repeated, placed }).into_response(),
        last => {
            vms.extend(last);
            Json(PlaceAnswer { repeated, placed: Many { vms } }).into_response()
        }
    })
}

impl Api {
    /// Counts the result of a request to place VMs. A refusal is also an event.
    fn counted<T>(
        &self,
        changed: Result<T, Fault>,
        decided: Option<&(String, usize, AdmissionAnswer)>,
        scale_outs: u64,
    ) -> Result<T, Refused> {
        // A deployment that is admitted but finds no host asks again, and is counted then.
        if let Some((name, count, answer)) = decided.filter(|it| changed.is_ok() || !it.2.admit) {
            self.admission_decided(name, *count, answer);
        }
        if changed.as_ref().err().is_none_or(|fault| fault.reason == NO_HOST) {
            count_more(&self.counters.scale_outs[usize::from(changed.is_err())], scale_outs);
        }

        changed.map_err(|fault| {
            if fault.reason != NOT_ADMITTED {
                self.tell(EventKind::PlacementRefused { why: fault.refused.1.clone() });
            }
            self.refuse(fault)
        })
    }
}

/// Whether all of these are placed already, each as it is asked for now: the answer was lost, and this is the
/// same request again.
fn is_there(inventory: &Inventory, request: &[VmRequest]) -> bool {
    request.iter().all(|request| {
        let there = request.name.as_deref().and_then(|name| inventory.vm(name));
        there.is_some_and(|there| request.is(&there.spec))
    })
}

fn already(there: &VmView<'_>) -> InventoryError {
    InventoryError::AlreadyPlaced { vm: there.name.to_owned(), host: there.host.to_owned() }
}

/// Who says how long a VM will live.
fn lifetime_by(inventory: &Inventory, spec: &VmSpec) -> By {
    match (spec.lifetime, inventory.lifetimes()) {
        (Some(_), _) => By::Request,
        (None, Some(_)) => By::Model,
        (None, None) => By::Default,
    }
}

fn percent(utilisation: ballast_types::Utilisation) -> f64 {
    f64::from(utilisation.ten_thousandths()) / 100.0
}

async fn one(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    let inventory = api.inventory.look();
    let Some(vm) = inventory.vm(&id) else {
        return Err(Fault::from(InventoryError::UnknownVm { vm: id }).refused);
    };
    Ok(Json(VmAnswer::new(&inventory, vm)).into_response())
}

#[derive(Deserialize)]
struct Which {
    host: Option<String>,
    /// Those after this one, in the order of names.
    after: Option<String>,
}

#[derive(Serialize)]
struct List {
    vms: Vec<VmAnswer>,
    /// Whether there are more; they come after the last one here.
    more: bool,
}

async fn list(State(api): State<Api>, Query(which): Query<Which>) -> Result<Response, Refused> {
    let inventory = api.inventory.look();
    if let Some(host) = which.host.as_ref().filter(|host| inventory.host(host).is_none()) {
        return Err(Fault::from(InventoryError::UnknownHost { host: host.clone() }).refused);
    }
    let request = |vm: &VmView<'_>| which.host.as_ref().is_none_or(|host| vm.host == host);
    let mut rest = inventory.vms_after(which.after.as_deref()).filter(request);
    let vms = rest.by_ref().take(LIST_MAX).map(|vm| VmAnswer::new(&inventory, vm)).collect();
    let more = rest.next().is_some();
    Ok(Json(List { vms, more }).into_response())
}

/// A VM is on this host, and is so: somebody else has put it there, moved it, or changed it.
async fn put(State(api): State<Api>, Path(id): Path<String>, body: Bytes) -> Result<Response, Refused> {
    let mut vm: VmBody = api.checked(body::read(&body))?;
    let (name, host) = (vm.vm_id.take(), vm.host.take());
    let request = match (name, host) {
        (Some(name), _) if name.0 != id => Err(format!("vm_id = {:?}: as in the path, or absent", name.0)),
        (_, None) => Err("host is missing".to_owned()),
        (_, Some(host)) => VmRequest::new(vm, None).map(|request| (request, host.0)),
    };
    let (request, host) = api.checked(request.map_err(|why| body::refused(&why)))?;
    let model = api.predictor.now();
    let PredictedVm { mut vm, .. } = api.predict(model.as_deref(), &request);
    vm.name = id;
    let changed = api.inventory.change(|inventory| {
        let now = ballast_runtime::unix_now();
        let before = inventory.vm(&vm.name).map(|there| (there.host.to_owned(), there.since, there.spec));
        if let Some((_, _, spec)) = &before {
            if request.is(spec) {
                // What was predicted when it came stays.
                vm.spec = spec.clone();
            } else if request.batch().is_none() {
                vm.spec.traits.batch_vms = spec.traits.batch_vms;
            }
        }

        // Moved, resized, predicted anew: it came when it came.
        let since = before.as_ref().map_or(now, |(_, since, _)| *since);
        match &before {
            Some((from, _, spec)) if *from == host && *spec == vm.spec => {}
            Some((from, ..)) if *from == host => inventory.change(now, &vm)?,
            Some((from, ..)) => {
                let there = inventory.remove(now, &vm.name)?;
                if let Err(error) = inventory.put(since, &vm, &host) {
                    inventory.observe(since, &there.vm, from)?;
                    return Err(error);
                }
            }
            None => inventory.put(since, &vm, &host)?,
        }

        // Were it on its way, its room elsewhere would be anybody's by now.
        api.inventory.drains().recover(now, inventory);
        let answer = inventory.vm(&vm.name).map(|view| VmAnswer::new(inventory, view));
        let hosts = [Some(&host), before.as_ref().map(|(from, ..)| from)];
        api.agents.changed(hosts.into_iter().flatten().map(String::as_str));
        let same = before.is_some_and(|(from, _, spec)| from == host && spec == vm.spec);
        let placed = Placed { vm, host, since };
        let record = (!same).then(|| Record { vms: vec![placed], ..Record::default() });

        Ok((answer, record))
    });

    let answer = changed.await?.map_err(|error: InventoryError| api.refuse(error.into()))?;

    Ok(Json(answer).into_response())
}

async fn delete(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Refused> {
    let changed = api.inventory.change(|inventory| {
        let at = ballast_runtime::unix_now();
        let gone = inventory.remove(at, &id)?;
        api.agents.changed([gone.host.as_str()]);
        let told = PlacedVm { vm: gone.vm.name.clone(), host: gone.host.clone() };
        Ok((told, Some(Record { ended: vec![(gone, at)], ..Record::default() })))
    });
    let PlacedVm { vm, host } = changed.await?.map_err(|error: InventoryError| api.refuse(error.into()))?;
    count_more(&api.counters.removed, 1);
    api.tell(EventKind::VmRemoved { vm, host });
    Ok(StatusCode::NO_CONTENT.into_response())
}
