//! A question about an arriving VM, as the command line and the network put it.

use serde::{Deserialize, Serialize};

use crate::answer::Prediction;
use crate::features::{Evidence, Features};
use crate::file::ModelFile;
use crate::lifetime::LifetimeAnswer;
use crate::vm::VmError;

/// An arriving VM. Its past may be told; otherwise it is looked up by its subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its name, which the answer repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<String>,
    /// Its subscription, whose past VMs the model file knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    #[serde(flatten)]
    pub features: Features,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The name of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<String>,
    #[serde(flatten)]
    pub prediction: Prediction,
    /// How long it will live, where that was asked of a model that knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<LifetimeAnswer>,
}

impl ModelFile {
    pub fn answer(&self, request: &Request) -> Result<Reply, VmError> {
        let Request { vm_id, subscription, features } = request;
        features.check()?;
        let (name, vm_type) = (subscription.as_deref(), features.vm_type.as_deref());
        let mut known = self.history.known(name, vm_type, features.cores);
        // Who tells a past means that one, and nothing besides.
        if let Some(past) = &features.past {
            known = Evidence { past: Some(past.clone()), of_type: known.of_type, ..Evidence::default() };
        }
        let prediction = self.model.predict(&known, features.cores, features.memory_gb);
        Ok(Reply { vm_id: vm_id.clone(), prediction, lifetime: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::tests::small;

    fn ask(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_past_is_looked_up_unless_it_is_told() {
        let file = small();
        let size = r#""cores":2,"memory_gb":8,"vm_type":"general""#;
        let name = (0..99).map(|n| format!("sub-{n:05}")).find(|n| file.history.past(n).is_some());
        let name = name.unwrap();
        let by_name = ask(&format!(r#"{{"vm_id":"a","subscription":"{name}",{size}}}"#));
        let past = file.history.past(&name).unwrap();
        let reply = file.answer(&by_name).unwrap();
        let mut known = file.history.known(Some(&name), Some("general"), 2.0);
        assert_eq!(reply.prediction, file.model.predict(&known, 2.0, 8.0));

        // Told, it stands for itself: nothing else of the subscription is looked up.
        let json = serde_json::to_string(&past).unwrap();
        let told = ask(&format!(r#"{{"vm_id":"a","subscription":"{name}",{size},"past":{json}}}"#));
        known = Evidence { recent_shares: None, alike: None, ..known };
        assert_eq!(file.answer(&told).unwrap().prediction, file.model.predict(&known, 2.0, 8.0));
        assert_eq!(reply.vm_id.as_deref(), Some("a"));
        let nobody = ask(&format!(r#"{{"subscription":"nobody",{size}}}"#));
        let unnamed = ask(&format!("{{{size}}}"));
        assert_eq!(file.answer(&nobody).unwrap(), file.answer(&unnamed).unwrap());
    }

    #[test]
    fn a_reply_has_the_names_that_are_documented() {
        let (prediction, lifetime) = (Prediction::unknown(), None);
        let reply = Reply { vm_id: Some("a".into()), prediction, lifetime };
        assert_eq!(
            serde_json::to_string(&reply).unwrap(),
            concat!(
                r#"{"vm_id":"a","class":"user-facing","class_confidence":0.0,"class_confident":false,"#,
                r#""p95_bucket":4,"p95_percent":100,"p95_confidence":0.0,"p95_confident":false}"#,
            ),
        );
    }

    #[test]
    fn impossible_requests_are_refused_by_field() {
        let error = small().answer(&ask(r#"{"cores":0,"memory_gb":8}"#)).unwrap_err();
        assert_eq!(error.field, "cores");
    }
}
