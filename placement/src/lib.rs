//! Where the next VM goes: constraints filter, preferences rank.
