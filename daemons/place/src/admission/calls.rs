//! `/v1/admit` and `/v1/forecast`.

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use ballast_placement::admission::demand::horizons;
use ballast_runtime::http::{Endpoint, Refused, Right};
use ballast_types::wire::EventKind;
use serde::{Deserialize, Serialize};

use super::decision::AdmissionAnswer;
use super::record::{Newcomer, key};
use crate::api::Api;
use crate::body::{self, Name, VmBody};
use crate::config::host_size;
use crate::counters::count_more;
use crate::fault::{Fault, NOT_ADMITTED};
use crate::vm_request::VmRequest;

/// So many horizons are answered at once.
const HORIZONS_MAX: usize = 100;
/// Ten years, in hours.
const AHEAD_MAX_H: f64 = 87_600.0;

/// What is asked about admission.
pub(crate) fn endpoints() -> Vec<Endpoint<Api>> {
    vec![
        Endpoint::post("/v1/admit", post)
            .only(Right::Place)
            .takes(
                "a `deployment` and its `vms` or `cores`, a `label`; `commit` to keep its room for 24 h, if \
                 it is admitted",
            )
            .answers("whether it may come, how likely the cores do not suffice, and where that is tightest")
            .fails("404 without `[admission]`; 409 for a commit of a deployment that is there; 503"),
        Endpoint::delete("/v1/admit/{deployment}", withdraw)
            .only(Right::Place)
            .answers("204 once the room that was kept for it is free")
            .fails("404 where none is kept; 503"),
        Endpoint::get("/v1/forecast", forecast)
            .answers("the cores that are expected `?hours=1,24` ahead, how far they may be off, the capacity")
            .fails("404 without `[admission]`; 409 without priors, or where they do not let it be computed"),
    ]
}

/// The fields of a request beside its VMs.
#[derive(Deserialize)]
struct AdmitBody {
    deployment: Name,
    label: Option<Name>,
    commit: Option<bool>,
}

/// The deployment's name, its size, and whether to reserve the room.
fn read(body: &[u8]) -> Result<(String, Newcomer, bool), Refused> {
    let AdmitBody { deployment: Name(deployment), label, commit } = body::read(body)?;
    let mut common: VmBody = body::read(body)?;
    if deployment.chars().any(char::is_control) {
        return Err(body::refused(&format!("deployment = {deployment:?}: without control characters")));
    }
    let mut label = label.or(common.subscription.clone()).map(|name| name.0);
    let vms = match (common.cores, common.vms.take()) {
        (Some(cores), None) => {
            vec![host_size(cores, common.memory_gb.unwrap_or(0.0)).map_err(|why| body::refused(&why))?]
        }
        (None, Some(vms)) => {
            let vms = body::each(vms.0, |vm| VmRequest::new(vm.or(&common), None))?;
            label = label.or_else(|| vms.iter().find_map(|vm| vm.tenant().map(str::to_owned)));
            vms.iter().map(VmRequest::resources).collect()
        }
        (None, None) => return Err(body::refused("vms or cores is missing")),
        (Some(_), Some(_)) => return Err(body::refused("vms and cores: one of them, not both")),
    };
    let newcomer = Newcomer { key: key(Some(&deployment), ""), label, vms };
    Ok((deployment, newcomer, commit.unwrap_or(false)))
}

#[derive(Serialize)]
struct Admitted {
    deployment: String,
    #[serde(flatten)]
    answer: AdmissionAnswer,
    /// Whether room is kept for it.
    committed: bool,
    /// Whether that was so before, by the same request.
    repeated: bool,
}

async fn post(State(api): State<Api>, body: Bytes) -> Result<Response, Refused> {
    let (deployment, newcomer, commit) = api.checked(read(&body))?;
    let changed = api.inventory.change(|inventory| {
        let mut book = api.inventory.admission().ok_or_else(off)?;
        let now = ballast_runtime::unix_now();
        book.tick(now);
        let (key, cores) = (&newcomer.key, newcomer.cores());
        let deployment = deployment.clone();
        if let Some(there) = book.deployments.cores_of(key) {
            let committed = book.committed(key);
            let kept = committed.as_ref().map_or(0.0, |(it, _)| it.cores);
            let same = committed.is_some_and(|(it, label)| {
                (it.admitted_cores - cores).abs() < 1e-6
                    && it.admitted_memory_kb == newcomer.memory_kb()
                    && label == newcomer.label
            });
            let why = format!(
                "it is there, with {there} cores, of which {kept} are kept for VMs: a scale-out is not asked"
            );
            if commit && !same {
                return Err(Refused(StatusCode::CONFLICT, format!("deployment {deployment:?}: {why}")));
            }
            let answer = AdmissionAnswer::admitted(why);
            return Ok((Admitted { deployment, answer, committed: same, repeated: commit }, None));
        }

        let newcomers = core::slice::from_ref(&newcomer);
        let answer = book.decide(inventory.cluster(), newcomers).ok_or_else(off)?;
        let committed = commit && answer.admit;
        if committed {
            book.commit(&newcomer)?;
        }
        Ok((Admitted { deployment, answer, committed, repeated: false }, None))
    });
    let answer = changed.await?.map_err(|refused: Refused| api.refuse(refused.into()))?;
    if commit && !answer.repeated {
        api.admission_decided(&answer.deployment, 1, &answer.answer);
    }
    Ok(Json(answer).into_response())
}

async fn withdraw(State(api): State<Api>, Path(deployment): Path<String>) -> Result<Response, Refused> {
    let changed = api.inventory.change(|_| {
        let mut book = api.inventory.admission().ok_or_else(off)?;
        book.tick(ballast_runtime::unix_now());
        match book.withdraw(&key(Some(&deployment), "")) {
            true => Ok(((), None)),
            false => {
                let why = format!("deployment {deployment:?}: no room is kept for it");
                Err(Refused(StatusCode::NOT_FOUND, why))
            }
        }
    });
    changed.await?.map_err(|refused: Refused| api.refuse(refused.into()))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn off() -> Refused {
    Refused(StatusCode::NOT_FOUND, "admission is off: the configuration has no [admission]".to_owned())
}

#[derive(Deserialize)]
struct Ahead {
    /// How far ahead, in hours from 0 to [`AHEAD_MAX_H`]; several with commas.
    hours: Option<String>,
}

#[derive(Serialize)]
struct Forecast {
    capacity: f64,
    /// What the deployments have now, with what is committed.
    cores: f64,
    deployments: usize,
    ahead: Vec<AheadAnswer>,
}

#[derive(Serialize)]
struct AheadAnswer {
    after_h: f64,
    expected_cores: f64,
    sd: f64,
}

async fn forecast(State(api): State<Api>, Query(ahead): Query<Ahead>) -> Result<Response, Refused> {
    let hours = ahead.hours.as_deref().map_or(Ok(horizons().to_vec()), read_hours);
    let hours = hours.map_err(|why| Refused(StatusCode::BAD_REQUEST, why))?;
    let inventory = api.inventory.look();
    let mut book = api.inventory.admission().ok_or_else(off)?;
    let moments = book.forecast(ballast_runtime::unix_now(), &hours).ok_or_else(|| {
        let why = "there are no priors, and so no forecast: admission.priors = FILE";
        Refused(StatusCode::CONFLICT, why.to_owned())
    })?;
    if !moments.iter().all(|it| it.mean.is_finite() && it.variance.is_finite()) {
        let why = "what is expected of the deployments cannot be computed from the priors";
        return Err(Refused(StatusCode::CONFLICT, why.to_owned()));
    }
    let ahead = hours.into_iter().zip(moments).map(|(after_h, it)| AheadAnswer {
        after_h,
        expected_cores: it.mean,
        sd: it.variance.max(0.0).sqrt(),
    });
    let (capacity, cores) = (book.capacity(inventory.cluster()), book.deployments.cores());
    let deployments = book.deployments.len();
    Ok(Json(Forecast { capacity, cores, deployments, ahead: ahead.collect() }).into_response())
}

fn read_hours(text: &str) -> Result<Vec<f64>, String> {
    let allowed = |n: &f64| (0.0..=AHEAD_MAX_H).contains(n);
    let numbers = text.split(',').map(|it| it.trim().parse().ok().filter(allowed));
    let numbers: Option<Vec<f64>> = numbers.collect();
    let shown: String = text.chars().take(80).collect();
    numbers.filter(|it| it.len() <= HORIZONS_MAX).ok_or_else(|| {
        format!("hours = {shown:?}: 1 to {HORIZONS_MAX} numbers from 0 to {AHEAD_MAX_H}, with commas")
    })
}

impl Api {
    /// Counts a decision about so many new deployments, and tells who listens of a refusal.
    pub(crate) fn admission_decided(&self, deployment: &str, count: usize, answer: &AdmissionAnswer) {
        let shadow = answer.would_refuse == Some(true);
        let outcome = if shadow { 2 } else { usize::from(!answer.admit) };
        count_more(&self.counters.admissions[outcome], count as u64);
        if !answer.admit || shadow {
            let (deployment, why) = (deployment.to_owned(), answer.why.clone());
            tracing::warn!(deployment, shadow, "not admitted: {why}");
            self.tell(EventKind::DeploymentRefused { deployment, shadow, why });
        }
    }
}

/// Whether VMs of a new deployment may be placed.
pub(crate) fn admitted(deployment: &str, answer: &AdmissionAnswer) -> Result<(), Fault> {
    if answer.admit {
        return Ok(());
    }
    let why = format!("deployment {deployment} is not admitted: {}", answer.why);
    Err(Fault { reason: NOT_ADMITTED, refused: Refused(StatusCode::CONFLICT, why) })
}
