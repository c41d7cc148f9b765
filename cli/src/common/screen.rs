//! A terminal that is drawn on, put back when dropped.

use std::time::Duration;

use anyhow::Context;
use ratatui::crossterm::event::{self as keys, Event, KeyCode, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

/// The terminal in its raw mode, with nothing else on it.
pub(crate) struct Screen(DefaultTerminal);

impl Screen {
    pub(crate) fn open() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).context("cannot draw on this terminal")
    }

    pub(crate) fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.0.draw(view)?;
        Ok(())
    }

    /// The next key that was pressed, if one was. In a terminal that is drawn on, Ctrl-C is a key; Ctrl-C and
    /// Escape read as `q`.
    pub(crate) fn key() -> anyhow::Result<Option<KeyCode>> {
        while keys::poll(Duration::ZERO)? {
            if let Event::Key(key) = keys::read()? {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                return Ok(Some(match key.code {
                    KeyCode::Esc => KeyCode::Char('q'),
                    KeyCode::Char('c') if control => KeyCode::Char('q'),
                    code => code,
                }));
            }
        }
        Ok(None)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
