//! What a page in a browser can send to real daemons, without a browser: its headers.

use ballast_testbed::lab::caller::json_client;
use ballast_testbed::lab::place::PlaceLab;
use ballast_testbed::lab::{Lab, steady};
use reqwest::{Client, Method};
use serde_json::{Value, json};

ballast_testbed::wall_time![a_foreign_page_reads_and_changes_nothing, a_foreign_page_places_nothing,];

/// The epoch after that of the manager here: an agent that heard it would obey it.
const EPOCH: u64 = 2;

/// Headers that a browser adds, and the answer's status.
type Page<'a> = (&'a str, &'a [(&'a str, &'a str)], u16);

/// Pages of somebody else. A name server can give any of their names a daemon's address.
const FOREIGN: [Page<'_>; 8] = [
    ("a page elsewhere", &[("origin", "http://evil.example")], 403),
    ("another daemon's page", &[("origin", "http://127.0.0.1:1")], 403),
    ("a page in a sandbox", &[("origin", "null")], 403),
    ("rebinding", &[("host", "evil.example"), ("origin", "http://evil.example")], 403),
    ("rebinding, same origin", &[("host", "evil.example:80"), ("sec-fetch-site", "same-origin")], 403),
    ("another site", &[("sec-fetch-site", "cross-site")], 403),
    ("a neighbour", &[("sec-fetch-site", "same-site")], 403),
    ("a form", &[("content-type", "text/plain")], 415),
];

fn send(
    lab: &Lab,
    method: &Method,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> (u16, String) {
    lab.call(|client: &Client| {
        let request = client.request(method.clone(), url);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        match body {
            Some(body) => request.body(body.to_string()),
            None => request,
        }
    })
}

fn a_foreign_page_reads_and_changes_nothing() {
    let mut lab = Lab::new(steady(1, 600, (0.3, 0.3)), "");
    lab.configure("chassis", "allowed_hosts = [\"monitor.example\"]\n");
    lab.start_all();
    let budget = json!({"budget_w": 300, "force": true});
    let alert = json!({
        "chassis_id": "lab", "epoch": EPOCH, "seq": 1, "level": "cap", "echo_boot_id": null,
        "echo_agent_ms": null, "chassis_power_w": 300, "chassis_limit_w": 300, "cap_w": 120,
        "fallback_w": 120, "valid_for_ms": 2000,
    });

    let vm = json!({"class": "user-facing", "cores": 1});
    let changes = [
        ("chassis", Method::PUT, "/v1/budget", &budget),
        ("s01", Method::POST, "/v1/alert", &alert),
        ("s01", Method::PUT, "/v1/vms/new", &vm),
    ];

    let mut refused = 0;

    for (who, headers, expected) in FOREIGN {
        for (daemon, method, path, body) in &changes {
            let (status, text) = send(&lab, method, &lab.url(daemon, path), headers, Some(body));
            assert_eq!(status, expected, "{who}: {path}: {text}");
            assert!(text.contains("\"error\":"), "{who}: {path}: {text}");
            refused += u64::from(*daemon == "s01");
        }

        if expected == 415 {
            continue;
        }
        for path in ["/v1/status", "/v1/vms", "/v1/events", "/metrics", "/healthz", "/readyz"] {
            let (status, text) = send(&lab, &Method::GET, &lab.url("s01", path), headers, None);
            assert_eq!(status, expected, "{who}: {path}: {text}");
            refused += 1;
        }

        let url = lab.url("chassis", "/v1/budget");
        assert_eq!(send(&lab, &Method::DELETE, &url, headers, None).0, expected, "{who}");
        assert_eq!(send(&lab, &Method::OPTIONS, &url, headers, None).0, expected, "{who}");
    }

    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 600.0);
    let agent = lab.agent("s01").unwrap();
    assert!(agent.report.epoch_obeyed.0 < EPOCH, "the alert was taken");
    assert!(agent.report.cap_w.is_none() && agent.vms.iter().all(|vm| vm.vm.as_str() != "new"));
    let counted = format!("ballast_agent_foreign_requests_total {refused}\n");
    let (_, metrics) = lab.get("s01", "/metrics");
    assert!(metrics.contains(&counted), "{counted}{metrics}");
    let lines = lab.log("s01").matches("only the count is told").count();
    assert!(lines < 20, "{lines} lines for {refused} refusals");

    // Who may goes on: by any name of this machine, by one that the config allows, and the command line.
    let url = lab.url("chassis", "/metrics");
    for host in ["127.0.0.1", "localhost", "localhost:7100", "[::1]:7100", "monitor.example:9090"] {
        let (status, text) = send(&lab, &Method::GET, &url, &[("host", host)], None);
        assert_eq!(status, 200, "{host}: {text}");
    }

    let url = lab.url("s01", "/metrics");
    assert_eq!(send(&lab, &Method::GET, &url, &[("host", "monitor.example")], None).0, 403);
    let (chassis, agent) = (lab.url("chassis", ""), lab.url("s01", ""));
    let status = Lab::ballast(&["status", &chassis, &agent.replace("127.0.0.1", "localhost")]);
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    let (status, text) = lab.order("PUT", "chassis", "/v1/budget", &budget.to_string());
    assert!(matches!(status, 200 | 202), "{text}");
    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 300.0);
    let (status, text) = lab.order("POST", "s01", "/v1/alert", &alert.to_string());
    assert_eq!(status, 200, "{text}");
}

fn a_foreign_page_places_nothing() {
    let lab = PlaceLab::start("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = json_client(ballast_runtime::tls::http_client(None));
    let send = |method: Method, path: &str, headers: &[(&str, &str)], body: &Value| {
        let request = client.request(method, lab.url(path)).body(body.to_string());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        runtime.block_on(async { request.send().await.unwrap().status().as_u16() })
    };

    let host = json!({"chassis": "c1", "cores": 8, "memory_gb": 32});
    let vm = json!({"vm_id": "a", "cores": 1, "memory_gb": 4});
    assert_eq!(lab.call("PUT", "/v1/hosts/s1", &host).0, 204);

    for (who, headers, expected) in FOREIGN {
        for (method, path, body) in [
            (Method::PUT, "/v1/hosts/s2", &host),
            (Method::POST, "/v1/place", &vm),
            (Method::POST, "/v1/score", &vm),
            (Method::POST, "/v1/predict", &vm),
            (Method::PUT, "/v1/vms/a", &vm),
            (Method::POST, "/filter", &vm),
        ] {
            assert_eq!(send(method, path, headers, body), expected, "{who}: {path}");
        }
    }

    let inventory = lab.status().inventory;
    assert_eq!((inventory.hosts, inventory.vms, inventory.placed), (1, 0, 0));
    assert_eq!(send(Method::POST, "/v1/place", &[("host", "localhost")], &vm), 403, "loopback only reads");
    assert_eq!(lab.call("POST", "/v1/place", &vm).0, 200);
}
