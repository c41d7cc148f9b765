//! What is read of the API server's objects: the fields that matter here, and no others.
//!
//! Go writes `null` where a list, a map or a struct is empty, so `null` is as good as absent everywhere.

use std::collections::BTreeMap;

use ballast_types::Instant;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::value::RawValue;

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Structs of optional fields.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$field_doc])* #[serde(default, deserialize_with = "nullable")] pub $field: $type,)*
        }
    )*};
}

objects! {
    /// `metadata` of an object.
    Meta {
        /// Unique in its namespace at any one time.
        name: String,
        namespace: String,
        uid: String,
        /// Opaque: two of the same object are compared for equality, and no more.
        resource_version: String,
        /// RFC 3339.
        creation_timestamp: String,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<Owner>,
    }

    /// Who made an object.
    Owner {
        kind: String,
        name: String,
        /// Whether it is the one that looks after it.
        controller: bool,
    }
}

pub type Quantities = BTreeMap<String, Quantity>;

/// A quantity's text. The API server writes strings; numbers stand for themselves.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    Text(String),
    /// As a hand may write it.
    Number(serde_json::Number),
}

impl Quantity {
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Number(number) => number.to_string().into(),
        }
    }
}

objects! {
    /// `resources` of a container, or of a pod.
    Resources {
        requests: Quantities,
        /// What is requested where only a limit is told.
        limits: Quantities,
    }

    Container {
        name: String,
        resources: Resources,
        /// `Always` makes an init container a sidecar.
        restart_policy: String,
    }

    /// What a container has now: other than its spec while it is resized in place.
    ContainerStatus {
        name: String,
        resources: Resources,
        allocated_resources: Quantities,
    }

    Toleration { key: String, effect: String, }

    PodSpec {
        /// Empty until it is bound; never changed after.
        node_name: String,
        priority_class_name: String,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        overhead: Quantities,
        /// Of the whole pod, where told.
        resources: Resources,
        tolerations: Vec<Toleration>,
    }

    PodStatus {
        /// `Succeeded` and `Failed` are final.
        phase: String,
        /// `Guaranteed`, `Burstable` or `BestEffort`.
        qos_class: String,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
    }

    Pod { metadata: Meta, spec: PodSpec, status: PodStatus, }
}

impl Pod {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// When it was made. The stamp of its start comes later, by its status: a pod would come twice.
    pub fn since(&self) -> Option<Instant> {
        let stamp: Timestamp = self.metadata.creation_timestamp.parse().ok()?;
        u64::try_from(stamp.as_nanosecond()).ok().map(Instant::from_nanos)
    }

    /// Whether it has ended, and its containers hold nothing any more.
    pub fn is_over(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// Whether it may go to a node that is marked unschedulable, as daemon sets' pods may.
    pub fn tolerates_cordon(&self) -> bool {
        let key = |key: &str| key.is_empty() || key == "node.kubernetes.io/unschedulable";
        let effect = |effect: &str| effect.is_empty() || effect == "NoSchedule";
        self.spec.tolerations.iter().any(|it| key(&it.key) && effect(&it.effect))
    }
}

objects! {
    NodeSpec { unschedulable: bool, }

    NodeStatus {
        /// What pods may have of it.
        allocatable: Quantities,
    }

    Node { metadata: Meta, spec: NodeSpec, status: NodeStatus, }

    /// `metadata` of a list.
    ListMeta {
        /// Where a watch goes on from here.
        resource_version: String,
        /// What brings the next page; empty on the last.
        r#continue: String,
    }

    /// The API server's `Status`: what went wrong.
    Status { message: String, reason: String, code: u16, }
}

#[derive(Debug, Deserialize)]
pub struct List<T: DeserializeOwned> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "items")]
    pub items: Vec<T>,
}

fn items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// What a line of a watch says.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice<T> {
    /// `ADDED` or `MODIFIED`: the object as it is now. A reader that has missed something gets one for the
    /// other.
    Is(T),
    /// `DELETED`: the object as it last was.
    Gone(T),
    /// `BOOKMARK`: nothing has changed up to this resource version.
    Bookmark(String),
    Error(Status),
}

impl<T: DeserializeOwned> Notice<T> {
    /// Reads a line. Fails where it is not what an API server sends, with the place.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct WatchLine<'a> {
            r#type: String,
            #[serde(borrow)]
            object: &'a RawValue,
        }

        fn object<T: DeserializeOwned>(raw: &RawValue) -> Result<T, String> {
            serde_json::from_str(raw.get()).map_err(|error| format!("object: {error}"))
        }
        #[derive(Deserialize)]
        struct Mark {
            metadata: Meta,
        }
        let line: WatchLine<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;

        match &*line.r#type {
            "ADDED" | "MODIFIED" => object(line.object).map(Self::Is),
            "DELETED" => object(line.object).map(Self::Gone),
            "BOOKMARK" => {
                object(line.object).map(|mark: Mark| Self::Bookmark(mark.metadata.resource_version))
            }
            "ERROR" => object(line.object).map(Self::Error),
            other => Err(format!(
                "type = {:?}: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR",
                other.chars().take(40).collect::<String>()
            )),
        }
    }
}

/// Something that is listed and watched.
pub trait Object: DeserializeOwned + Send + 'static {
    /// What it is called in paths.
    const PLURAL: &'static str;
    /// What is left out of lists and watches.
    const FIELD_SELECTOR: &'static str;
    fn meta(&self) -> &Meta;
}

impl Object for Pod {
    const PLURAL: &'static str = "pods";
    /// As the scheduler's own watch: a pod that ends is `DELETED` for us.
    const FIELD_SELECTOR: &'static str = "status.phase!=Succeeded,status.phase!=Failed";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Object for Node {
    const PLURAL: &'static str = "nodes";
    const FIELD_SELECTOR: &'static str = "";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let read = |text: &str| Notice::<Pod>::read(text.as_bytes());
        let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u",
            "resourceVersion":"7",
            "creationTimestamp":null,"labels":null,"ownerReferences":[{"kind":"Job","name":"j",
                "controller":true,"uid":"x"}]},
            "spec":{"containers":null,"nodeName":"n1"},"status":{"phase":"Running","newer":[1]}}"#;
        let Ok(Notice::Is(added)) = read(&format!(r#"{{"type":"ADDED","object":{pod}}}"#)) else { panic!() };
        assert_eq!((added.key(), &*added.spec.node_name), ("n/a".to_owned(), "n1"));
        assert!(added.metadata.owner_references[0].controller && !added.is_over());
        let gone = read(&format!(r#"{{"type":"DELETED","object":{pod}}}"#));
        assert_eq!(gone, Ok(Notice::Gone(added)));

        // As an API server writes it, empty spec and all.
        let mark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1",
            "metadata":{"resourceVersion":"12746",
            "creationTimestamp":null},"spec":{"containers":null},"status":{}}}"#;
        assert_eq!(read(mark), Ok(Notice::Bookmark("12746".into())));
        let error = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},
            "status":"Failure",
            "message":"too old resource version: 1 (2)","reason":"Expired","code":410}}"#;
        let Ok(Notice::Error(status)) = read(error) else { panic!() };
        assert_eq!((status.code, &*status.reason), (410, "Expired"));

        for (text, says) in [
            ("{", "EOF"),
            (r#"{"type":"RENAMED","object":{}}"#, "type = \"RENAMED\": ADDED, MODIFIED"),
            (r#"{"type":"ADDED","object":7}"#, "object: "),
            (r#"{"type":"ADDED","object":{"spec":{"nodeName":7}}}"#, "object: "),
            (r#"{"type":"ADDED"}"#, "missing field `object`"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn cordons_are_tolerated_by_key_and_effect() {
        for (key, effect, tolerates) in [
            ("node.kubernetes.io/unschedulable", "NoSchedule", true),
            ("node.kubernetes.io/unschedulable", "", true),
            ("", "", true),
            ("node.kubernetes.io/unschedulable", "NoExecute", false),
            ("dedicated", "NoSchedule", false),
        ] {
            let mut pod = Pod::default();
            pod.spec.tolerations = vec![Toleration { key: key.into(), effect: effect.into() }];
            assert_eq!(pod.tolerates_cordon(), tolerates, "{key} {effect}");
        }
        assert!(!Pod::default().tolerates_cordon());
    }
}
