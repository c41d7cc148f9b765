//! The bodies of requests. Unknown fields are ignored, except in orders to drain hosts. An error names the field, the
//! value and what is allowed.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use ballast_predict::Past;
use ballast_runtime::http::Refused;
use ballast_types::VmClass;
use serde::Deserialize;
use serde::de::DeserializeOwned;

const NAME_MAX: usize = 256;
const TEXTS_MAX: usize = 32;
/// So many characters of an error are shown, from its start and from its end.
const SHOWN: usize = 90;

/// Reads a body, which is an object.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(refused("body: an object is needed"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read =
        serde_path_to_error::deserialize(&mut json).map_err(|error| match error.inner().is_data() {
            true => refused(&shown(&error.to_string())),
            false => refused(&format!("body is not valid: {}", error.inner())),
        })?;
    json.end().map_err(|error| refused(&format!("body is not valid: {error}")))?;
    Ok(read)
}

pub(super) fn refused(why: &str) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why.to_owned())
}

/// An error without its line and column. A long one keeps its start and its end.
fn shown(error: &str) -> String {
    let error = error.rsplit_once(" at line ").map_or(error, |(error, _)| error);
    let characters: Vec<char> = error.chars().collect();
    if characters.len() <= 2 * SHOWN {
        return error.to_owned();
    }
    let (start, end) = (&characters[..SHOWN], &characters[characters.len() - SHOWN..]);
    start.iter().chain(['…'].iter()).chain(end).collect()
}

/// A text of 1 to 256 bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Name(pub(super) String);

impl TryFrom<String> for Name {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match text.len() {
            1..=NAME_MAX => Ok(Self(text)),
            _ => Err(format!("{text:?}: a text of 1 to {NAME_MAX} bytes")),
        }
    }
}

/// Labels: texts by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, Option<Name>>")]
pub(super) struct Texts(pub(super) BTreeMap<String, String>);

impl TryFrom<BTreeMap<String, Option<Name>>> for Texts {
    type Error = String;
    fn try_from(texts: BTreeMap<String, Option<Name>>) -> Result<Self, String> {
        let count = texts.len();
        if count > TEXTS_MAX || texts.keys().any(|name| name.len() > NAME_MAX) {
            return Err(format!("{count} texts: at most {TEXTS_MAX}, names of at most {NAME_MAX} bytes"));
        }
        Ok(Self(texts.into_iter().filter_map(|(name, text)| Some((name, text?.0))).collect()))
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Number<const MIN: u32, const MAX: u32>(pub(super) f64);

impl<const MIN: u32, const MAX: u32> TryFrom<f64> for Number<MIN, MAX> {
    type Error = String;
    fn try_from(number: f64) -> Result<Self, String> {
        let is_allowed = (f64::from(MIN)..=f64::from(MAX)).contains(&number);
        is_allowed.then_some(Self(number)).ok_or_else(|| format!("{number}: {MIN} to {MAX}"))
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Whole<const MIN: u32, const MAX: u32>(pub(super) u32);

impl<const MIN: u32, const MAX: u32> TryFrom<f64> for Whole<MIN, MAX> {
    type Error = String;
    fn try_from(number: f64) -> Result<Self, String> {
        let is_allowed = number.fract() == 0.0 && (f64::from(MIN)..=f64::from(MAX)).contains(&number);
        let whole = is_allowed.then_some(Self(number as u32));
        whole.ok_or_else(|| format!("{number}: a whole number from {MIN} to {MAX}"))
    }
}

/// Amounts of resources, by the resource's name.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Amounts(BTreeMap<String, Option<Whole<0, { u32::MAX }>>>);

impl From<Amounts> for BTreeMap<String, u32> {
    fn from(amounts: Amounts) -> Self {
        let present = amounts.0.into_iter().filter_map(|(name, amount)| Some((name, amount?.0)));
        // An amount of 0 equals an absent one.
        present.filter(|(_, amount)| *amount > 0).collect()
    }
}

/// From 1 to `MAX` items.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Vec<T>")]
pub(super) struct Several<T, const MAX: usize>(pub(super) Vec<T>);

impl<T, const MAX: usize> TryFrom<Vec<T>> for Several<T, MAX> {
    type Error = String;
    fn try_from(items: Vec<T>) -> Result<Self, String> {
        match items.len() {
            0 => Err(format!("none: 1 to {MAX}")),
            count if count > MAX => Err(format!("{count} of them: 1 to {MAX}")),
            _ => Ok(Self(items)),
        }
    }
}

/// One VM, or a list of VMs with their common fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "an object")]
pub(super) struct VmBody {
    pub(super) vm_id: Option<Name>,
    pub(super) cores: Option<f64>,
    pub(super) memory_gb: Option<f64>,
    pub(super) vm_type: Option<Name>,
    pub(super) batch_vms: Option<Whole<1, 1_000_000_000>>,
    pub(super) labels: Option<Texts>,
    pub(super) subscription: Option<Name>,
    pub(super) past: Option<Past>,
    pub(super) class: Option<VmClass>,
    pub(super) p95_percent: Option<Number<0, 100>>,
    /// Up to 100 years.
    pub(super) lifetime_s: Option<Number<0, 3_200_000_000>>,
    pub(super) deployment: Option<Name>,
    pub(super) spread: Option<bool>,
    pub(super) domain_skew: Option<Whole<0, 255>>,
    pub(super) extras: Option<Amounts>,
    /// The host that runs the VM, for `PUT /v1/vms/{id}`.
    pub(super) host: Option<Name>,
    /// The number of hosts to return, for `/v1/score`.
    pub(super) top: Option<Whole<1, 1000>>,
    /// The owner, whose VMs have similar lifetimes, for `/v1/predict`.
    pub(super) tenant: Option<Name>,
    /// The start time in Unix seconds, for `/v1/predict`.
    pub(super) start_s: Option<f64>,
    pub(super) uptime_s: Option<f64>,
    /// A list of VMs. The other fields here are the defaults of those VMs.
    pub(super) vms: Option<Several<VmBody, 1000>>,
}

impl VmBody {
    /// The VM, with the request's common fields where it has none of its own.
    pub(super) fn or(self, common: &Self) -> Self {
        Self {
            vm_type: self.vm_type.or_else(|| common.vm_type.clone()),
            batch_vms: self.batch_vms.or(common.batch_vms),
            labels: self.labels.or_else(|| common.labels.clone()),
            subscription: self.subscription.or_else(|| common.subscription.clone()),
            deployment: self.deployment.or_else(|| common.deployment.clone()),
            spread: self.spread.or(common.spread),
            domain_skew: self.domain_skew.or(common.domain_skew),
            ..self
        }
    }

    /// The cores, and the memory in GB.
    pub(super) fn size(&self) -> Result<(f64, f64), String> {
        Ok((self.cores.ok_or("cores is missing")?, self.memory_gb.ok_or("memory_gb is missing")?))
    }
}

/// Reads each VM of a list. An error names the VM's index.
pub(super) fn each<T>(
    vms: Vec<VmBody>,
    read: impl Fn(VmBody) -> Result<T, String>,
) -> Result<Vec<T>, Refused> {
    let results = vms
        .into_iter()
        .enumerate()
        .map(|(index, vm)| read(vm).map_err(|why| refused(&format!("vms[{index}].{why}"))));
    results.collect()
}
