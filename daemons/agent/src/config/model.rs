//! `[model]`: the watts of this server, for estimates in reports.

use ballast_types::PowerModel;

use ballast_runtime::config::allowed::number;
use ballast_runtime::config::reader::Section;

pub(super) fn read(root: &mut Section<'_, '_>) -> PowerModel {
    let mut section = root.section("model", "What this server draws, for estimates in reports.");
    let paper = PowerModel::PAPER;
    let mut curve =
        |key, default, help| section.key(key, help).or(default, number("a number of watts", 0.001..=1e6));
    let model = PowerModel {
        idle_w: curve("idle_w", paper.idle_w, "Idle, at the highest frequency."),
        full_w: curve("full_w", paper.full_w, "Busy, at the highest frequency."),
        half_idle_w: curve("half_frequency_idle_w", paper.half_idle_w, "Idle, at half of it."),
        half_full_w: curve("half_frequency_full_w", paper.half_full_w, "Busy, at half of it."),
    };

    let idle = format!("above idle_w = {}: full load draws more than idle", model.idle_w);
    let half_idle = format!("above half_frequency_idle_w = {}", model.half_idle_w);
    let at_most_idle = format!("at most idle_w = {}", model.idle_w);
    let gains = model.full_w - model.idle_w;
    let less = format!("less than {gains} above half_frequency_idle_w, as full_w is above idle_w");
    for (key, is_wrong, allowed) in [
        ("full_w", model.full_w <= model.idle_w, idle),
        ("half_frequency_full_w", model.half_full_w <= model.half_idle_w, half_idle),
        ("half_frequency_idle_w", model.half_idle_w > model.idle_w, at_most_idle),
        ("half_frequency_full_w", gains > 0.0 && model.half_full_w - model.half_idle_w >= gains, less),
    ] {
        if is_wrong {
            section.refuse_key(key, allowed);
        }
    }
    debug_assert!(model.check().is_ok() || section.given(), "the defaults are a model");
    section.finish();

    model
}

#[cfg(test)]
mod tests {
    use crate::config::{AgentConfig, ConfigFile as _};

    #[test]
    fn watts_that_no_server_draws_are_refused_by_key() {
        for (keys, says) in [
            ("full_w = 100", "model.full_w = 100: above idle_w = 112: full load"),
            (
                "half_frequency_full_w = 111",
                "model.half_frequency_full_w = 111: above half_frequency_idle_w = 111",
            ),
            ("half_frequency_idle_w = 113", "model.half_frequency_idle_w = 113: at most idle_w = 112"),
            ("half_frequency_full_w = 309", "model.half_frequency_full_w = 309: less than 198 above"),
            ("idle_w = 0", "model.idle_w = 0: a number of watts, 0.001 to 1000000"),
        ] {
            let text = format!("server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n[model]\n{keys}\n");
            let said = AgentConfig::parse("agent.toml", &text).unwrap_err().to_string();
            assert!(said.starts_with("agent.toml:5: ") && said.contains(says), "{keys}: {said}");
        }
    }
}
