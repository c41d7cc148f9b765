//! The daemons' TOML files.

use ballast_agent::config::{AgentConfig, ConfigFile};
use ballast_chassis::config::ChassisConfig;
use ballast_place::config::PlaceConfig;

use super::says_something;

pub fn agent_config(bytes: &[u8]) {
    file::<AgentConfig>(bytes);
}

pub fn chassis_config(bytes: &[u8]) {
    file::<ChassisConfig>(bytes);
}

pub fn place_config(bytes: &[u8]) {
    file::<PlaceConfig>(bytes);
}

/// Every problem names the file; a good file says who the daemon is.
fn file<T: ConfigFile>(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match T::parse("f.toml", text) {
        Ok(config) => {
            says_something(config.role());
            config.warnings().iter().for_each(says_something);
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("f.toml:"), "{said:?}");
        }
    }
}
