//! BMCs that are reached by Redfish.

use std::path::PathBuf;
use std::time::Duration;

use super::allowed::{Allowed, choice, millis, path, safe_url, text};
use super::reader::Section;
use anyhow::Context as _;
use ballast_bmc::redfish::{Auth, Credentials, Pin, Redfish, Settings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcAddress {
    pub url: String,
    /// Which member of its `Chassis`; `None` takes the only one with power resources.
    pub chassis: Option<String>,
    /// Its certificate, and no other; `None` goes by the authority.
    pub pin: Option<Pin>,
}

#[derive(Clone, Debug)]
pub struct RedfishConfig {
    /// Where `username` and `password` are.
    pub credentials_file: Option<PathBuf>,
    /// The authority that signs their certificates; `None` takes the system's.
    pub ca_file: Option<PathBuf>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How they are told who we are.
    pub auth: Auth,
}

impl BmcAddress {
    /// `redfish`, and `redfish_chassis` which goes with it; `None` without.
    pub fn read(section: &mut Section<'_, '_>, needed: bool) -> Option<Self> {
        let url = section.key("redfish", "The BMC, over the network.").required_if(needed, safe_url(BMC_URL));
        let chassis = section
            .key("redfish_chassis", "Which chassis of the BMC, where several have power.")
            .optional(text("a member of its Redfish Chassis"));
        if chassis.is_some() && !section.has("redfish") {
            section.refuse_key("redfish_chassis", "only with redfish");
        }
        let pin = section
            .key(PIN, "This very certificate, whoever signed it.")
            .optional(Allowed::text("the SHA-256 of a certificate: 64 hexadecimal digits", |text| {
                text.parse().ok()
            }));
        if pin.is_some() && !url.as_ref().is_some_and(|url| url.starts_with("https://")) {
            section.refuse_key(PIN, "only with redfish = \"https://…\"");
        }
        url.map(|url| Self { url, chassis, pin })
    }
}

impl RedfishConfig {
    /// A client for one BMC; it connects at the first call.
    pub fn client(&self, address: &BmcAddress) -> anyhow::Result<Redfish> {
        let file = self.credentials_file.as_deref();
        let file = file.context("redfish.credentials_file is missing")?;
        Ok(Redfish::new(Settings {
            url: address.url.clone(),
            credentials: Credentials::read(file)?,
            credentials_file: Some(file.to_owned()),
            auth: self.auth,
            ca_file: self.ca_file.clone(),
            pin: address.pin,
            timeout: self.timeout,
            chassis: address.chassis.clone(),
        })?)
    }

    /// Reads `[redfish]`; where a BMC is `used`, its credentials are needed.
    pub fn read(root: &mut Section<'_, '_>, used: bool) -> Self {
        let mut section = root.section("redfish", "How BMCs are reached over the network, where one is.");
        let config = Self {
            credentials_file: section
                .key("credentials_file", "TOML with username and password; needed where a BMC is used.")
                .optional(path(CREDENTIALS)),
            ca_file: section
                .key("ca_file", "The authority of the BMCs' certificates; the system's unless set.")
                .optional(path("a PEM file with certificates")),
            timeout: section
                .key("timeout_ms", "How long one request may take.")
                .or(Duration::from_secs(3), millis(100..=30_000)),
            auth: section
                .key("auth", "How a BMC is told who asks.")
                .or(Auth::Session, choice([("session", Auth::Session), ("basic", Auth::Basic)])),
        };

        if used && config.credentials_file.is_none() {
            section.refuse(format_args!("credentials_file is missing: {CREDENTIALS}"));
        }
        section.finish();

        config
    }
}

const PIN: &str = "redfish_certificate_sha256";
const CREDENTIALS: &str = "a file with username and password that only its owner may read";
pub const BMC_URL: &str = "https://host or https://host:port of a BMC";
