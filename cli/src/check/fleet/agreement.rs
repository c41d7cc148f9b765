//! Whether a chassis manager and its agents say the same of each other.

use std::collections::BTreeMap;

use ballast_types::wire::{AgentStatus, ChassisState, ChassisStatus, ServerStatus, Slot};
use ballast_types::{ServerId, Watts};

use super::super::state::State::{Degraded, Missing, Untested, Works};
use super::super::state::{Finding, finding};
use crate::common::answers::Said;

/// What rounding may add up to.
const ROUNDING: Watts = Watts::from_whole(1);

/// Every manager's servers against the agents that were asked, and agents that no manager has.
pub(super) fn all(said: &[&Said]) -> Vec<Finding> {
    let mut agents: BTreeMap<&ServerId, &AgentStatus> = BTreeMap::new();
    let mut managers: Vec<&ChassisStatus> = vec![];
    let mut found = vec![];
    for said in said {
        match said {
            Said::Agent(agent) => {
                let other = agents.insert(&agent.report.server, agent);
                found.extend(
                    other.filter(|other| !is_same(other, agent)).map(|_| twice(&agent.report.server)),
                );
            }
            Said::Chassis(chassis) => managers.push(chassis),
            Said::Place(_) | Said::Error(_) => {}
        }
    }

    for manager in &managers {
        found.extend(manager.servers.iter().map(|it| server(manager, it, agents.get(&it.server).copied())));
        found.push(fallbacks(manager, &agents));
    }
    for (id, agent) in agents {
        if managers.iter().all(|manager| manager.servers.iter().all(|it| it.server != *id)) {
            let found_here = format!("of chassis {}", agent.chassis_id);
            let why = match managers.is_empty() {
                true => "no chassis manager was asked",
                false => "none of the managers that were asked has this server",
            };
            let remedy = "name its manager's URL, too; or add [[server]] there";
            found.push(finding(format!("server.{id}"), Untested, found_here).because(why).remedy(remedy));
        }
    }
    found
}

/// Whether two answers are of one agent, which may be reached in two ways.
fn is_same(one: &AgentStatus, other: &AgentStatus) -> bool {
    (&one.chassis_id, &one.report.boot_id) == (&other.chassis_id, &other.report.boot_id)
}

fn twice(server: &ServerId) -> Finding {
    finding(format!("server.{server}"), Missing, "two agents say that they are this server")
        .because("their manager can reach one of them alone")
        .remedy("give each a server of its own in agent.toml")
}

fn server(manager: &ChassisStatus, server: &ServerStatus, agent: Option<&AgentStatus>) -> Finding {
    let id = format!("server.{}", server.server);
    let chassis = &manager.chassis_id;
    match (server.slot, agent) {
        (Slot::Silent, _) => finding(id, Missing, "its agent does not answer its manager")
            .because(server.last_error.as_deref().unwrap_or("no answer yet"))
            .remedy("url and chassis of its [[server]]; docs/operate/runbook.md#server-silent"),
        (_, Some(agent)) if agent.chassis_id != *chassis => {
            finding(id, Missing, format!("its agent obeys chassis {}", agent.chassis_id))
                .because(format!("chassis {chassis} counts on it"))
                .remedy("chassis in agent.toml, or [[server]] in chassis.toml")
        }
        (Slot::Managed, None) => finding(id, Untested, "answers its manager")
            .because("its agent was not asked here")
            .remedy("name the agent's URL, too"),
        (Slot::Managed, Some(agent)) => obeys(manager, agent, id),
        (Slot::Unknown, _) => {
            finding(id, Untested, "in a state of a newer version").because("this program is older")
        }
        (slot, _) => {
            let word = match slot {
                Slot::Off => "switched off",
                Slot::Maintenance => "in maintenance",
                _ => "without an agent",
            };
            finding(id, Works, format!("{word}; {} are set aside for it", server.reserved_w))
        }
    }
}

/// Whether a managed server's agent obeys this manager.
fn obeys(manager: &ChassisStatus, agent: &AgentStatus, id: String) -> Finding {
    let (obeyed, epoch) = (agent.report.epoch_obeyed, manager.epoch);
    let found = format!("obeys epoch {obeyed} of chassis {}", agent.chassis_id);
    let is_silent = manager.dry_run || manager.state == ChassisState::Fenced;
    if obeyed == epoch || is_silent {
        return finding(id, Works, found);
    }
    finding(id, Degraded, found)
        .because(format!(
            "its manager is in epoch {epoch}: another manager may rule, or one of both was just started"
        ))
        .remedy("ask again; if it stays: docs/operate/runbook.md#server-obeys-another")
}

/// Without a manager every agent holds its fallback: all of them have to fit.
fn fallbacks(manager: &ChassisStatus, agents: &BTreeMap<&ServerId, &AgentStatus>) -> Finding {
    let id = format!("fallbacks.{}", manager.chassis_id);
    let (mut sum, mut unknown) = (manager.shared_w, vec![]);
    for server in &manager.servers {
        let fallback = agents.get(&server.server).and_then(|agent| agent.fallback_w);
        match (server.slot, fallback) {
            (Slot::Off | Slot::Maintenance | Slot::Unmanaged, _) => sum += server.reserved_w,
            (_, Some(fallback)) => sum += fallback,
            (_, None) => unknown.push(server.server.as_str()),
        }
    }

    let limit = manager.limit_w;
    if !unknown.is_empty() {
        let found = format!("not known of {}", unknown.join(", "));
        return finding(id, Untested, found)
            .because("its agent was not asked here, or no manager has told it any");
    }
    let found = format!("{sum} without a manager, of {limit}");
    match sum > limit + ROUNDING {
        true => finding(id, Degraded, found)
            .because("should the manager end now, its servers may draw more than the limit")
            .remedy("ask again in a minute; if it stays, the budget is below what the servers need"),
        false => finding(id, Works, found),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::common::answers::parse;

    fn chassis() -> Value {
        let server = |id: &str| {
            json!({"server": id, "slot": "managed", "report": null, "report_age_ms": null, "granted_w": null,
                   "reserved_w": 200.0, "hardware_cap_w": null, "last_error": null})
        };
        json!({"role": "chassis", "chassis_id": "c1", "epoch": 4, "state": "normal", "now_ms": 5,
               "power_w": 300.0, "budget_w": 420.0, "limit_w": 420.0, "shared_w": 20.0, "sharable_w": 400.0,
               "alerts": 0, "hardware_caps_ms": 0, "refused_inputs": 0, "alarms": [],
               "dry_run": false, "shares": "even", "sensors": [],
               "servers": [server("s01"), server("s02")]})
    }

    fn agent(id: &str) -> Value {
        let report = json!({"server": id, "boot_id": "00000000-0000-0000-0000-000000000000", "agent_ms": 5,
            "epoch_obeyed": 4, "seq_obeyed": 1, "enforced_seq": 1, "state": "uncapped", "power_w": 150.0,
            "cap_w": null, "sheddable_w": 10.0, "restorable_w": 0.0, "low_cores": 4, "min_khz": null,
            "server_limit": false, "leaving": false, "actuator_failures": 0,
            "dry_run": false, "classes": []});
        json!({"role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
               "report": report,
               "fallback_w": 200.0, "lease_ms": null, "refused_alerts": 0,
               "power_faults": 0, "vms": [], "vm_kills": 0, "last_vm_kills": [], "sensors": [], "alarms": []})
    }

    fn found(said: &[Value]) -> Vec<String> {
        let said: Vec<_> = said.iter().map(|it| parse(it.to_string().as_bytes()).unwrap()).collect();
        let findings = all(&said.iter().collect::<Vec<_>>());
        findings.iter().map(|it| format!("{} {:?}: {}", it.id, it.state, it.found)).collect()
    }

    #[test]
    fn two_agents_of_one_name_are_found_in_either_order() {
        let of = |status: &Value| parse(&serde_json::to_vec(status).unwrap()).unwrap();
        let mut other = agent("s01");
        other["chassis_id"] = "other".into();
        for (first, second, expected) in
            [(agent("s01"), &other, 1), (other.clone(), &agent("s01"), 1), (agent("s01"), &agent("s01"), 0)]
        {
            let found = all(&[&of(&chassis()), &of(&first), &of(second)]);
            let twice = found.iter().filter(|it| it.found.starts_with("two agents")).count();
            assert_eq!(twice, expected);
        }
    }

    #[test]
    fn a_chassis_whose_agents_obey_it_and_fit_under_its_limit_is_in_agreement() {
        let lines = found(&[chassis(), agent("s01"), agent("s02")]);
        assert_eq!(
            lines,
            [
                "server.s01 Works: obeys epoch 4 of chassis c1",
                "server.s02 Works: obeys epoch 4 of chassis c1",
                "fallbacks.c1 Works: 420.0 W without a manager, of 420.0 W",
            ]
        );
    }

    #[test]
    fn what_does_not_agree_is_named() {
        let with = |mut value: Value, path: &str, to: Value| {
            *value.pointer_mut(path).unwrap() = to;
            value
        };
        let s02 = || agent("s02");
        for (chassis, agents, line) in [
            (chassis(), vec![s02()], "server.s01 Untested: answers its manager"),
            (chassis(), vec![s02()], "fallbacks.c1 Untested: not known of s01"),
            (chassis(), vec![agent("s03")], "server.s03 Untested: of chassis c1"),
            (
                with(chassis(), "/servers/0/slot", "silent".into()),
                vec![agent("s01")],
                "server.s01 Missing: its agent does not answer its manager",
            ),
            (
                with(chassis(), "/servers/0/slot", "off".into()),
                vec![],
                "server.s01 Works: switched off; 200.0 W are set aside for it",
            ),
            (
                chassis(),
                vec![with(s02(), "/chassis_id", "c2".into())],
                "server.s02 Missing: its agent obeys chassis c2",
            ),
            (
                chassis(),
                vec![with(s02(), "/report/epoch_obeyed", 5.into())],
                "server.s02 Degraded: obeys epoch 5 of chassis c1",
            ),
            (
                chassis(),
                vec![agent("s01"), with(s02(), "/fallback_w", 202.0.into())],
                "fallbacks.c1 Degraded: 422.0 W without a manager, of 420.0 W",
            ),
        ] {
            let lines = found(&[vec![chassis], agents].concat());
            assert!(lines.iter().any(|it| it == line), "{line}: {lines:#?}");
        }
        assert_eq!(found(&[s02()]), ["server.s02 Untested: of chassis c1"]);
    }
}
