//! What is asked of the predictor: one VM or a batch of them.

use ballast_predict::lifetime::{LifetimeFeatures, LifetimeQuestion};
use ballast_predict::{Features, Request};

use super::body::{self, VmBody};
use ballast_runtime::http::Refused;

/// A request for predictions: one VM, or a list of VMs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) is_one: bool,
    pub(super) vms: Vec<VmQuestion>,
}

/// A VM: what its class and P95 are asked by, and its lifetime.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VmQuestion {
    pub(super) request: Request,
    pub(super) lifetime: LifetimeQuestion,
}

impl Question {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refused> {
        let mut vm: VmBody = body::read(body)?;
        let list = vm.vms.take();
        let is_one = list.is_none();
        let vms = match list {
            None => vec![VmQuestion::new(vm).map_err(|why| body::refused(&why))?],
            Some(vms) => body::each(vms.0, VmQuestion::new)?,
        };
        Ok(Self { is_one, vms })
    }
}

impl VmQuestion {
    fn new(vm: VmBody) -> Result<Self, String> {
        let (cores, memory_gb) = vm.size()?;
        let vm_type = vm.vm_type.map(|name| name.0);
        let subscription = vm.subscription.map(|name| name.0);
        let features = Features { cores, memory_gb, vm_type, past: vm.past };
        features.check().map_err(|error| error.to_string())?;
        if let Some(start_s) = vm.start_s.filter(|start_s| start_s.fract() != 0.0) {
            return Err(format!("start_s = {start_s}: whole Unix seconds"));
        }
        let lifetime = LifetimeQuestion {
            start_s: vm.start_s.map(|start_s| start_s as i64),
            uptime_s: vm.uptime_s.unwrap_or_default(),
            features: LifetimeFeatures {
                cores: Some(cores),
                memory_gb: Some(memory_gb),
                tenant: vm.tenant.map(|name| name.0).or_else(|| subscription.clone()),
                vm_type: features.vm_type.clone(),
                batch_vms: vm.batch_vms.map(|vms| vms.0),
                labels: vm.labels.unwrap_or_default().0,
            },
        };
        lifetime.check().map_err(|error| error.to_string())?;
        let vm_id = vm.vm_id.map(|name| name.0);
        Ok(Self { request: Request { vm_id, subscription, features }, lifetime })
    }
}

#[cfg(test)]
mod tests {
    use ballast_predict::Past;
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
        let [VmQuestion { request: read_one, lifetime }] = &one.vms[..] else { panic!("{one:?}") };
        assert!(one.is_one);
        assert_eq!((read_one, lifetime.features.cores), (&request, Some(4.0)));
        let small = json!({"cores": 1, "memory_gb": 0.5, "subscription": "s"});
        let both = read(&json!({"vms": [vm(), small], "more": 1})).unwrap();
        let features = Features { cores: 1.0, memory_gb: 0.5, vm_type: None, past: None };
        let second = Request { vm_id: None, subscription: Some("s".into()), features };
        let Question { is_one: false, vms: both } = both else { panic!("{both:?}") };
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
            (with("cores", json!("4")), "cores: invalid type: string \"4\", expected f64"),
            (with("cores", json!(0)), "cores = 0: 1 to 65536"),
            (with("memory_gb", json!(-1)), "memory_gb = -1: above 0"),
            (with("vm_id", json!(7)), "vm_id: invalid type: integer `7`, expected a string"),
            (with("vm_type", json!("")), "vm_type: \"\": a text of 1 to 256 bytes"),
            (with("subscription", json!({})), "subscription: invalid type: map, expected a string"),
            (with("past", json!("s")), "past: invalid type: string \"s\", expected struct Past"),
            (with("uptime_s", json!(-1)), "uptime_s = -1: 0 to 3200000000"),
            (with("uptime_s", json!("1 h")), "uptime_s: invalid type: string \"1 h\", expected f64"),
            (with("start_s", json!(0.5)), "start_s = 0.5: whole Unix seconds"),
            (with("start_s", json!(1e15)), "start_s = 1000000000000000: Unix seconds"),
            (with("batch_vms", json!(0)), "batch_vms: 0: a whole number from 1 to 1000000000"),
            (with("batch_vms", json!(2.5)), "batch_vms: 2.5: a whole number from 1 to 1000000000"),
            (with("labels", json!(["zone"])), "labels: invalid type: sequence, expected a map"),
            (with("labels", json!({"zone": 7})), "labels.zone: invalid type: integer `7`, expected a string"),
            (with_past("vms", json!(1.5)), "past.vms: invalid type: floating point `1.5`, expected u64"),
            (with_past("vms", Value::Null), "past.vms: invalid type: null, expected u64"),
            (with_past("vms", json!(-1)), "past.vms: invalid value: integer `-1`, expected u64"),
            (with_past("vms", json!(1e300)), "past.vms: invalid type: floating point `1e+300`, expected u64"),
            (with_past("uf_share", json!(1.1)), "past.uf_share = 1.1: 0 to 1"),
            (
                with_past("mean_p95_cpu", json!(true)),
                "past.mean_p95_cpu: invalid type: boolean `true`, expected f64",
            ),
            (
                with_past("bucket_shares", json!([1, 0, 0])),
                "past.bucket_shares: invalid length 3, expected an array of length 4",
            ),
            (
                with_past("bucket_shares", json!([1, 0, 0, "x", 0])),
                "past.bucket_shares[3]: invalid type: string \"x\", expected f64",
            ),
            (json!({"vms": vm()}), "vms: invalid type: map, expected a sequence"),
            (json!({"vms": []}), "vms: none: 1 to 1000"),
            (json!({"vms": vec![vm(); 1001]}), "vms: 1001 of them: 1 to 1000"),
            (json!({"vms": [vm(), 7]}), "vms[1]: invalid type: integer `7`, expected an object"),
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
        assert!(why.len() < 200 && why.starts_with("vm_type: \"xxx"), "{why}");
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
