//! `[[server]]`: the servers of the chassis.

use ballast_chassis_core::{Mode, Server};
use ballast_types::{ServerId, Watts};

use ballast_runtime::config::allowed::{Allowed, ID, choice, text, watts, whole};
use ballast_runtime::config::reader::Section;
use ballast_runtime::config::{BmcAddress, Listen, listen::SOCKET};

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub id: ServerId,
    /// Where its agent serves.
    pub url: String,
    pub idle: Watts,
    /// How it is capped without its own software, if it can be.
    pub cap: Option<CapPath>,
    /// The lowest such cap.
    pub cap_floor: Watts,
}

/// How a server is capped without its own software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapPath {
    /// By the slot controller whose `powerN_label` this is.
    Slot(String),
    /// By its BMC.
    Redfish(BmcAddress),
}

impl ServerConfig {
    /// Every `[[server]]`, for the daemon and for its controller; agents beyond loopback need `tls`.
    pub(super) fn read_all(root: &mut Section<'_, '_>, tls: bool) -> (Vec<Self>, Vec<Server>) {
        let (mut servers, mut for_controller) = (vec![], vec![]);
        for section in root.sections("server", "A server of the chassis, and its agent.") {
            if let Some((server, core)) = Self::read(section, &servers, tls) {
                servers.push(server);
                for_controller.push(core);
            }
        }
        (servers, for_controller)
    }

    fn read(mut section: Section<'_, '_>, others: &[Self], tls: bool) -> Option<(Self, Server)> {
        let id = section
            .key("id", "The server, as its `agent.toml` names it.")
            .required(Allowed::text(ID, |text| ServerId::new(text).ok()));
        let modes = [Mode::Managed, Mode::Maintenance, Mode::Unmanaged];
        let mode = section
            .key("mode", "What is expected of its agent: answers; silence, which is no alarm; there is none.")
            .or(Mode::Managed, choice(["managed", "maintenance", "unmanaged"].into_iter().zip(modes)));
        let url = read_url(&mut section);
        let idle = section.key("idle_w", "What the server draws idle.").required(watts());
        let cap = read_cap_path(&mut section);
        let cap_floor = section
            .key("slot_floor_w", "The lowest hardware cap that the server is given.")
            .or(Watts::from_whole(150), watts());
        let help = "Where not all low-priority work gets what it lacks, this server gets so many times its \
                    usual part; 1 unless set.";
        let weight = section.key("weight", help).optional(whole("a whole number", 1..=1_000_000));
        let help = "What the server gets before any server gets more; `idle_w` unless set, and never less.";
        let min = section.key("min_w", help).optional(watts());
        let help = "What the server draws at most. Where every server has it, `[trip_curve]` is checked at \
                    their sum and `shared_w`, and at 1.5 times the budget otherwise.";
        let max = section.key("max_w", help).optional(watts());

        // No server can be held under what it draws idle.
        let min_w = min.max(idle);
        if let (Some(min), Some(max)) = (min_w, max)
            && max <= min
        {
            let least = min.as_f64();
            section.refuse_key("max_w", format_args!("above {least} W, the higher of min_w and idle_w"));
        }
        if !tls && url.as_ref().is_some_and(|url| url.starts_with("https")) {
            section.refuse_key("url", "only with [tls]: cert, key and ca");
        }
        if others.iter().any(|other| Some(&other.id) == id.as_ref()) {
            section.refuse_key("id", "every server has an id of its own");
        }
        if others.iter().any(|other| Some(&other.url) == url.as_ref()) {
            section.refuse_key("url", "every server has an agent of its own");
        }
        if cap.is_some() && others.iter().any(|other| other.cap == cap) {
            let key = if matches!(cap, Some(CapPath::Slot(_))) { "slot" } else { "redfish" };
            section.refuse_key(key, "every server has one of its own");
        }
        section.finish();

        let floor = cap.is_some().then_some(cap_floor);
        let core = |id| Server { mode, weight, min_w, max_w: max, ..Server::new(id, floor) };
        let core = id.clone().map(core);
        Some((Self { id: id?, url: url?, idle: idle?, cap, cap_floor }, core?))
    }
}

/// An address: the alert's way must not depend on a name server.
fn read_url(section: &mut Section<'_, '_>) -> Option<String> {
    let is_url = |url: &str| url.starts_with("https:") || url.starts_with(SOCKET);
    let address = move |url: &str| (is_url(url) && Listen::parse(url).is_some()).then(|| url.to_owned());
    let words = "https://address:port, or unix:/path of the agent's socket on this host: agents take no \
                 alerts by plain HTTP";
    let allowed = Allowed::text(words, address);
    section.key("url", "Where its agent serves.").required(allowed)
}

fn read_cap_path(section: &mut Section<'_, '_>) -> Option<CapPath> {
    let help = "The `powerN_label` of the slot controller that caps the server; or `redfish`. Without either \
                there is no hardware cap.";
    let slot = section.key("slot", help).optional(text("the label of the server's slot controller"));
    let bmc = BmcAddress::read(section, false);
    if slot.is_some() && bmc.is_some() {
        section.refuse_key("redfish", "a server has a slot or a BMC, not both");
    }
    slot.map(CapPath::Slot).or(bmc.map(CapPath::Redfish))
}
