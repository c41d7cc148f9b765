//! Calls of a test to daemons.

use std::time::Duration;

use ballast_runtime::{Target, tls};
use reqwest::header::{self, HeaderMap};
use reqwest::{Client, ClientBuilder, RequestBuilder};
use serde_json::Value;
use tokio::runtime::Runtime;

/// A client that calls its bodies JSON, as the daemons ask it to.
pub fn json_client(client: ClientBuilder) -> Client {
    let json = (header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    let client = client.default_headers(HeaderMap::from_iter([json]));
    client.timeout(Duration::from_secs(30)).build().expect("a client")
}

/// A client that keeps its connections, and waits for each answer.
pub struct Caller(Runtime, Client);

impl Caller {
    /// One for any address.
    pub fn new() -> Self {
        Self::by(tls::http_client(None))
    }

    /// One for a daemon's socket, as its operators have; of a URL the path counts.
    pub fn of(target: &Target) -> Self {
        Self::by(target.reached_by(tls::http_client(None)))
    }

    fn by(client: ClientBuilder) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self(runtime.expect("a runtime"), json_client(client))
    }

    /// One request; status 0 when nobody answers.
    pub fn call(&self, request: impl FnOnce(&Client) -> RequestBuilder) -> (u16, String) {
        self.0.block_on(async {
            match request(&self.1).send().await {
                Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
                Err(error) => (0, error.to_string()),
            }
        })
    }

    /// The answer to a GET; status 0 when nobody answers.
    pub fn get(&self, url: &str) -> (u16, String) {
        self.call(|client| client.get(url))
    }

    pub fn post(&self, url: &str, body: &Value) -> (u16, String) {
        self.send("POST", url, body)
    }

    pub fn send(&self, method: &str, url: &str, body: &Value) -> (u16, String) {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        self.call(|client| {
            let request = client.request(method, url);
            if body.is_null() { request } else { request.json(body) }
        })
    }
}

impl Default for Caller {
    fn default() -> Self {
        Self::new()
    }
}
