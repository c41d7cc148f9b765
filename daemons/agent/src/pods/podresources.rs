//! The kubelet's `podresources` service: `v1.PodResourcesLister/List`, gRPC over its socket.
//!
//! Of the answer only the fields that matter are read. `cpu_ids` are a container's exclusive CPUs: the kubelet
//! tells none for a container that shares its CPUs. Pods come by namespace and name, without their UID.
//!
//! Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; "gRPC over HTTP2" (framing, `grpc-status`).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use h2::client::SendRequest;
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The path of the one call.
pub const METHOD: &str = "/v1.PodResourcesLister/List";
/// A kubelet on a busy node answers within tens of milliseconds.
const WITHIN: Duration = Duration::from_secs(1);
/// As long as the kubelet's own clients take it.
const BYTES_MAX: usize = 16 << 20;
/// A message's frame: whether it is compressed, and its length.
const FRAME: usize = 5;

/// Every pod that the kubelet runs.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// One pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// One container, and the CPUs that nobody else has.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int64, repeated, tag = "3")]
    pub cpu_ids: Vec<i64>,
}

/// Asks the kubelet at `socket` for all its pods. Fails if it is not there, does not answer within a second, or
/// answers with anything else.
pub(super) async fn list(socket: &Path) -> anyhow::Result<ListPodResourcesResponse> {
    let of = || format!("the kubelet at {}", socket.display());
    let answer = timeout(WITHIN, ask(socket)).await;
    let answer = answer.with_context(|| format!("{} does not answer within 1 s", of()))?;
    answer.and_then(|message| read(&message)).with_context(of)
}

/// The message in an answer.
fn read(message: &[u8]) -> anyhow::Result<ListPodResourcesResponse> {
    let Some((frame, body)) = message.split_at_checked(FRAME) else {
        bail!("an answer of {} bytes: a frame of 5 and a message", message.len());
    };
    ensure!(frame[0] == 0, "a compressed answer, which was not asked for");
    let length = frame[1..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    ensure!(length == body.len(), "an answer of {} bytes: {length}, as its frame says", body.len());
    Ok(ListPodResourcesResponse::decode(body)?)
}

async fn ask(socket: &Path) -> anyhow::Result<Vec<u8>> {
    let stream = UnixStream::connect(socket).await?;
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::select! {
        answer = call(client) => answer,
        ended = connection => {
            ended?;
            bail!("it hung up")
        }
    }
}

async fn call(client: SendRequest<Bytes>) -> anyhow::Result<Vec<u8>> {
    let mut client = client.ready().await?;
    let request = Request::post(format!("http://localhost{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut body) = client.send_request(request, false)?;
    // An empty message: all pods.
    body.send_data(Bytes::from_static(&[0; FRAME]), true)?;

    let (head, mut body) = answer.await?.into_parts();
    ensure!(head.status.is_success(), "status {}", head.status);
    let mut message = vec![];
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        message.extend_from_slice(&chunk);
        ensure!(message.len() <= BYTES_MAX, "an answer of more than {BYTES_MAX} bytes");
        body.flow_control().release_capacity(chunk.len())?;
    }
    // An answer without a message has its status at the head.
    let trailers = body.trailers().await?.unwrap_or(head.headers);
    ensure!(word(&trailers, "grpc-status") == "0", "{}", refusal(&trailers));
    Ok(message)
}

fn word<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn refusal(trailers: &HeaderMap) -> String {
    let message: String = word(trailers, "grpc-message").chars().take(200).collect();
    format!("grpc-status {:?}: {message}", word(trailers, "grpc-status"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORDED: &[u8] = include_bytes!("../../../../tests/kubernetes/podresources.list.bin");

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    #[test]
    fn of_a_recorded_answer_the_exclusive_cpus_are_read_and_all_else_is_passed_over() {
        let answer = read(&framed(RECORDED)).unwrap();
        let cpus = |pod: &PodResources| {
            let cpus: Vec<_> = pod.containers.iter().flat_map(|it| it.cpu_ids.clone()).collect();
            format!("{}/{} {cpus:?}", pod.namespace, pod.name)
        };
        assert_eq!(
            answer.pod_resources.iter().map(cpus).collect::<Vec<_>>(),
            [
                "kube-system/coredns-7db6d8ff4d-x2x4z []",
                "batch/encode-0 [2, 3, 34, 35]",
                "shop/db-0 [4, 5, 36, 37]",
                "kube-system/kube-proxy-fw6wv []",
            ]
        );
        assert_eq!(read(&framed(&[])).unwrap().pod_resources, []);
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for (bytes, says) in [
            (vec![], "an answer of 0 bytes"),
            (vec![0, 0, 0, 0], "an answer of 4 bytes"),
            (vec![1, 0, 0, 0, 0], "a compressed answer"),
            (vec![0, 0, 0, 0, 9], "an answer of 0 bytes: 9, as its frame says"),
            (vec![0, 0, 0, 0, 0, 0], "an answer of 1 bytes: 0"),
            (framed(&RECORDED[..RECORDED.len() - 1]), "failed to decode Protobuf message"),
        ] {
            let why = read(&bytes).unwrap_err().to_string();
            assert!(why.contains(says), "{bytes:?}: {why}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(
            at in 0..RECORDED.len(),
            with in prop::collection::vec(any::<u8>(), 0..8),
            cut in 0..RECORDED.len(),
        ) {
            let mut bytes = RECORDED.to_vec();
            bytes.splice(at..(at + with.len()).min(RECORDED.len()), with);
            let _ = read(&framed(&bytes[..cut.min(bytes.len())]));
            let _ = read(&framed(&bytes));
        }
    }
}
