//! What is asked of the predictor: one VM or a batch of them.

use ballast_predict::lifetime::{LifetimeFeatures, LifetimeQuestion};
use ballast_predict::{Features, Past, Request};

use super::fields::{self, Fields};
use ballast_runtime::http::Refused;

/// Above this a JSON number is no longer every whole number.
const WHOLE_MAX: f64 = 9e15;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Question {
    One(Box<VmQuestion>),
    /// Of several: `{"vms": […]}`.
    Batch(Vec<VmQuestion>),
}

/// A VM: what its class and P95 are asked by, and its lifetime.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VmQuestion {
    pub(super) request: Request,
    pub(super) lifetime: LifetimeQuestion,
}

impl Question {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refused> {
        fields::body(body, |body| match body.vms()? {
            None => read_vm(body).map(|asked| Self::One(Box::new(asked))),
            Some(vms) => vms.iter().map(read_vm).collect::<Result<_, _>>().map(Self::Batch),
        })
    }
}

fn read_vm(vm: &Fields<'_>) -> Result<VmQuestion, String> {
    let needed = |key| vm.number(key)?.ok_or_else(|| format!("{}{key} is missing", vm.at));
    let features = Features {
        cores: needed("cores")?,
        memory_gb: needed("memory_gb")?,
        vm_type: vm.name("vm_type")?,
        past: vm.inner("past")?.map(|past| read_past(&past)).transpose()?,
    };
    features.check().map_err(|error| format!("{}{error}", vm.at))?;
    let subscription = vm.name("subscription")?;

    let start_s = vm.number("start_s")?;
    if start_s.is_some_and(|start_s| start_s.fract() != 0.0) {
        return Err(vm.wrong("start_s", "whole Unix seconds"));
    }
    let lifetime = LifetimeQuestion {
        start_s: start_s.map(|start_s| start_s as i64),
        uptime_s: vm.number("uptime_s")?.unwrap_or_default(),
        features: LifetimeFeatures {
            cores: Some(features.cores),
            memory_gb: Some(features.memory_gb),
            tenant: vm.name("tenant")?.or_else(|| subscription.clone()),
            vm_type: features.vm_type.clone(),
            batch_vms: vm.whole("batch_vms", u32::MAX)?,
            labels: vm.texts("labels")?.unwrap_or_default(),
        },
    };
    lifetime.check().map_err(|error| format!("{}{error}", vm.at))?;

    Ok(VmQuestion { request: Request { vm_id: vm.name("vm_id")?, subscription, features }, lifetime })
}

pub(super) fn read_past(past: &Fields<'_>) -> Result<Past, String> {
    let vms = past.number("vms")?.filter(|n| n.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(n));
    let vms = vms.ok_or_else(|| past.wrong("vms", "how many VMs there were, a whole number"))?;
    Ok(Past {
        vms: vms as u64,
        uf_share: past.number("uf_share")?,
        lived_7d_share: past.number("lived_7d_share")?,
        bucket_shares: past.shares("bucket_shares")?,
        mean_avg_cpu: past.number("mean_avg_cpu")?,
        mean_p95_cpu: past.number("mean_p95_cpu")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: &Value) -> Result<Question, String> {
        Question::read(value.to_string().as_bytes()).map_err(|Refused(_, why)| why)
    }

    fn vm() -> Value {
        json!({"vm_id": "vm-1", "cores": 4, "memory_gb": 16.0, "vm_type": "general",
            "past": {"vms": 7, "uf_share": 0.5, "lived_7d_share": null,
                "bucket_shares": [0.1, 0.2, 0.3, 0.4], "mean_avg_cpu": 20, "newer": true},
            "newer": {"field": 1}})
    }

    fn refused(value: &Value) -> String {
        read(value).unwrap_err()
    }

    #[test]
    fn one_vm_and_a_batch_are_read_with_what_is_unknown_left_out() {
        let one = read(&vm()).unwrap();
        let past = Past {
            vms: 7,
            uf_share: Some(0.5),
            lived_7d_share: None,
            bucket_shares: Some([0.1, 0.2, 0.3, 0.4]),
            mean_avg_cpu: Some(20.0),
            mean_p95_cpu: None,
        };

        let features =
            Features { cores: 4.0, memory_gb: 16.0, vm_type: Some("general".into()), past: Some(past) };

        let request = Request { vm_id: Some("vm-1".into()), subscription: None, features };
        let Question::One(asked) = &one else { panic!("{one:?}") };
        let VmQuestion { request: read_one, lifetime } = &**asked;
        assert_eq!((read_one, lifetime.features.cores), (&request, Some(4.0)));
        let small = json!({"cores": 1, "memory_gb": 0.5, "subscription": "s"});
        let both = read(&json!({"vms": [vm(), small], "more": 1})).unwrap();
        let features = Features { cores: 1.0, memory_gb: 0.5, vm_type: None, past: None };
        let second = Request { vm_id: None, subscription: Some("s".into()), features };
        let Question::Batch(both) = both else { panic!("{both:?}") };
        let tenants: Vec<_> = both.iter().map(|it| it.lifetime.features.tenant.as_deref()).collect();
        assert_eq!(tenants, [None, Some("s")]);
        assert_eq!(both.into_iter().map(|it| it.request).collect::<Vec<_>>(), [request, second]);
    }

    #[test]
    fn a_wrong_value_is_refused_by_name_and_place() {
        let with = |key: &str, value: Value| {
            let mut vm = vm();
            vm[key] = value;
            vm
        };

        let with_past = |key: &str, value: Value| {
            let mut vm = vm();
            vm["past"][key] = value;
            vm
        };

        for (value, says) in [
            (json!([vm()]), "body: an object"),
            (json!({}), "cores is missing"),
            (json!({"cores": 1}), "memory_gb is missing"),
            (with("cores", json!("4")), "cores = \"4\": a number"),
            (with("cores", json!(0)), "cores = 0: 1 to 65536"),
            (with("memory_gb", json!(-1)), "memory_gb = -1: above 0"),
            (with("vm_id", json!(7)), "vm_id = 7: a text of 1 to 256 bytes"),
            (with("vm_type", json!("")), "vm_type = \"\": a text"),
            (with("subscription", json!({})), "subscription = {}: a text"),
            (with("past", json!("s")), "past = \"s\": an object"),
            (with("uptime_s", json!(-1)), "uptime_s = -1: 0 to 3200000000"),
            (with("uptime_s", json!("1 h")), "uptime_s = \"1 h\": a number"),
            (with("start_s", json!(0.5)), "start_s = 0.5: whole Unix seconds"),
            (with("start_s", json!(1e15)), "start_s = 1000000000000000: Unix seconds"),
            (with("batch_vms", json!(0)), "batch_vms = 0: 1 to 1000000000"),
            (with("batch_vms", json!(2.5)), "batch_vms = 2.5: a whole number"),
            (with("labels", json!(["zone"])), "labels = [\"zone\"]: an object"),
            (with("labels", json!({"zone": 7})), "labels.zone = 7: a text of 1 to 256 bytes"),
            (with_past("vms", json!(1.5)), "past.vms = 1.5: how many"),
            (with_past("vms", Value::Null), "past.vms = null: how many"),
            (with_past("vms", json!(-1)), "past.vms = -1: how many"),
            (with_past("vms", json!(1e300)), "past.vms = 1e+300: how many"),
            (with_past("uf_share", json!(1.1)), "past.uf_share = 1.1: 0 to 1"),
            (with_past("mean_p95_cpu", json!(true)), "past.mean_p95_cpu = true: a number"),
            (with_past("bucket_shares", json!([1, 0, 0])), "past.bucket_shares = [1,0,0]: four"),
            (with_past("bucket_shares", json!([1, 0, 0, "x", 0])), "past.bucket_shares = [1,0,0"),
            (json!({"vms": vm()}), "vms: an array of 1 to 1000 VMs"),
            (json!({"vms": []}), "vms: an array of 1 to 1000 VMs, not of 0"),
            (json!({"vms": vec![vm(); 1001]}), "not of 1001"),
            (json!({"vms": [vm(), 7]}), "vms[1]: an object"),
        ] {
            let why = refused(&value);
            assert!(why.starts_with(says) || why.ends_with(says), "{says}: {why}");
        }

        let third = json!({"vms": [vm(), vm(), with_past("mean_avg_cpu", json!(101))]});
        assert!(refused(&third).starts_with("vms[2].past.mean_avg_cpu = 101: 0 to 100"));
        let first = json!({"vms": [with("cores", json!(null))]});
        assert_eq!(refused(&first), "vms[0].cores is missing");
        let long = "x".repeat(257);
        let why = refused(&with("vm_type", json!(long)));
        assert!(why.len() < 200 && why.starts_with("vm_type = \"xxx"), "{why}");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for body in ["", "{", "{\"cores\": 1e999}", "{\"cores\": NaN}", "\u{fffd}"] {
            let Err(Refused(status, why)) = Question::read(body.as_bytes()) else {
                panic!("{body} was taken");
            };
            assert_eq!(status, 400);
            assert!(why.starts_with("body is not valid: "), "{why}");
        }
        let deep = "[".repeat(100_000);
        assert!(Question::read(deep.as_bytes()).is_err());
    }
}
