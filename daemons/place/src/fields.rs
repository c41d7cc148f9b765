//! The fields of a question in JSON. Unknown ones are ignored, but for orders to drain hosts; a wrong value is
//! refused by the name of its field and, in a batch, its place.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use axum::http::StatusCode;
use serde_json::{Map, Value};

use ballast_runtime::http::Refused;

/// No name is longer.
const NAME_MAX: usize = 256;
/// An object has no more texts.
const TEXTS_MAX: usize = 32;
/// How many VMs may be asked for at once.
pub(super) const BATCH_MAX: usize = 1000;

/// Reads a body as an object, and what `read` makes of it.
pub(super) fn body<T>(
    body: &[u8],
    read: impl FnOnce(&Fields<'_>) -> Result<T, String>,
) -> Result<T, Refused> {
    let refused = |why: String| Refused(StatusCode::BAD_REQUEST, why);
    let value: Value =
        serde_json::from_slice(body).map_err(|error| refused(format!("body is not valid: {error}")))?;
    let object = value.as_object();
    let object = object.ok_or_else(|| refused("body: an object is needed".into()))?;
    read(&Fields { at: String::new(), object }).map_err(refused)
}

/// An object's fields; `null` is as good as absent.
pub(super) struct Fields<'v> {
    pub(super) at: String,
    pub(super) object: &'v Map<String, Value>,
}

impl Fields<'_> {
    /// What is there, unless it is `null`.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Refuses a field of another name. Only orders that name all of theirs do that: one that is misspelt would be done
    /// otherwise than it was meant.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), String> {
        let unknown = self.object.keys().find(|key| !known.contains(&key.as_str()));
        let refused = |key: &String| {
            let key: String = key.chars().take(80).collect();
            format!("{}{key}: no such field; there are {}", self.at, known.join(", "))
        };
        unknown.map_or(Ok(()), |key| Err(refused(key)))
    }

    /// What is wrong with a value, and what is allowed.
    pub(super) fn wrong(&self, key: &str, allowed: &str) -> String {
        let shown = self.object.get(key).map_or_else(|| "absent".into(), Value::to_string);
        let shown: String = shown.chars().take(80).collect();
        format!("{}{key} = {shown}: {allowed}", self.at)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let read = |value: &Value| value.as_f64().ok_or_else(|| self.wrong(key, "a number"));
        self.get(key).map(read).transpose()
    }

    /// A text of 1 to 256 bytes.
    pub(super) fn name(&self, key: &str) -> Result<Option<String>, String> {
        let good = |text: &&str| (1..=NAME_MAX).contains(&text.len());
        let read = |value: &Value| {
            let text = value.as_str().filter(good).map(str::to_owned);
            text.ok_or_else(|| self.wrong(key, &format!("a text of 1 to {NAME_MAX} bytes")))
        };
        self.get(key).map(read).transpose()
    }

    /// Four numbers.
    pub(super) fn shares(&self, key: &str) -> Result<Option<[f64; 4]>, String> {
        let read = |value: &Value| {
            let numbers = |all: &Vec<Value>| all.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
            let four = value.as_array().and_then(numbers).and_then(|all| all.try_into().ok());
            four.ok_or_else(|| self.wrong(key, "four numbers"))
        };
        self.get(key).map(read).transpose()
    }

    /// A whole number up to `max`.
    pub(super) fn whole(&self, key: &str, max: u32) -> Result<Option<u32>, String> {
        self.whole_within(key, 0..=max)
    }

    /// A whole number in a range.
    pub(super) fn whole_within(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, String> {
        let (min, max) = (range.start(), range.end());
        let read = |value: &Value| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| range.contains(number));
            number.ok_or_else(|| self.wrong(key, &format!("a whole number from {min} to {max}")))
        };
        self.get(key).map(read).transpose()
    }

    /// Amounts by the names of what they are of.
    pub(super) fn amounts(&self, key: &str) -> Result<Option<BTreeMap<String, u32>>, String> {
        let Some(object) = self.inner(key)? else { return Ok(None) };
        let amount = |name: &String| Ok((name.clone(), object.whole(name, u32::MAX)?.unwrap_or(0)));
        let amounts = object.object.keys().map(amount).collect::<Result<Vec<_>, String>>()?;
        // None of something is as good as not to name it.
        Ok(Some(amounts.into_iter().filter(|(_, amount)| *amount > 0).collect()))
    }

    /// Texts by the names of what they say something of.
    pub(super) fn texts(&self, key: &str) -> Result<Option<BTreeMap<String, String>>, String> {
        let Some(object) = self.inner(key)? else { return Ok(None) };
        if object.object.len() > TEXTS_MAX || object.object.keys().any(|name| name.len() > NAME_MAX) {
            return Err(self.wrong(key, &format!("at most {TEXTS_MAX}, names of at most {NAME_MAX} bytes")));
        }
        let text = |name: &String| Ok(object.name(name)?.map(|text| (name.clone(), text)));
        let texts = object.object.keys().filter_map(|name| text(name).transpose());
        texts.collect::<Result<_, String>>().map(Some)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false"));
        self.get(key).map(read).transpose()
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
        let read = |value: &Value| {
            let known = words.iter().find(|(word, _)| value.as_str() == Some(word));
            let all = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>();
            known.map(|(_, it)| *it).ok_or_else(|| self.wrong(key, &all().join(" or ")))
        };
        self.get(key).map(read).transpose()
    }

    /// A number in a range; `allowed` says which.
    pub(super) fn within(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
        allowed: &str,
    ) -> Result<Option<f64>, String> {
        let number = self.number(key)?;
        match number.filter(|number| !range.contains(number)) {
            Some(_) => Err(self.wrong(key, allowed)),
            None => Ok(number),
        }
    }

    pub(super) fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, String> {
        value.ok_or_else(|| format!("{}{key} is missing", self.at))
    }

    /// The objects of `vms`, if it is there.
    pub(super) fn vms(&self) -> Result<Option<Vec<Fields<'_>>>, String> {
        let Some(vms) = self.object.get("vms") else { return Ok(None) };
        let allowed = || format!("vms: an array of 1 to {BATCH_MAX} VMs");
        let vms = vms.as_array().ok_or_else(allowed)?;
        if vms.is_empty() || vms.len() > BATCH_MAX {
            return Err(format!("{}, not of {}", allowed(), vms.len()));
        }
        let mut read = Vec::with_capacity(vms.len());
        for (n, vm) in vms.iter().enumerate() {
            let object = vm.as_object().ok_or_else(|| format!("vms[{n}]: an object"))?;
            read.push(Fields { at: format!("vms[{n}]."), object });
        }
        Ok(Some(read))
    }

    /// An object in this one.
    pub(super) fn inner(&self, key: &str) -> Result<Option<Fields<'_>>, String> {
        let read = |value| {
            let object = Value::as_object(value).ok_or_else(|| self.wrong(key, "an object"))?;
            Ok(Fields { at: format!("{}{key}.", self.at), object })
        };
        self.get(key).map(read).transpose()
    }
}
