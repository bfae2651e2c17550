//! Tells people what goes on: one line per event, and on a terminal a last line that is kept up to
//! date. Elsewhere that one is a plain line now and then. Nobody reading is no reason to stop.

use std::io::Write;
use std::time::Duration;

/// What the lines may look like.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// A terminal: the last line may be redrawn.
    pub terminal: bool,
    /// Colors may be used.
    pub color: bool,
}

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// Done by the demo.
    Act,
    /// Gone from rotation, or about to.
    Bad,
    /// Tried in vain.
    Warn,
    /// Back.
    Good,
    /// Everything else.
    Plain,
}

impl Tone {
    const fn color(self) -> &'static str {
        match self {
            Self::Act => "\x1b[1m",
            Self::Bad => "\x1b[31m",
            Self::Warn => "\x1b[33m",
            Self::Good => "\x1b[32m",
            Self::Plain => "",
        }
    }
}

/// Writes the lines.
pub struct Narrator<'a> {
    out: &'a mut dyn Write,
    style: Style,
    status_shown: bool,
}

impl std::fmt::Debug for Narrator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Narrator")
            .field("style", &self.style)
            .finish_non_exhaustive()
    }
}

impl<'a> Narrator<'a> {
    /// Writes to `out`.
    pub fn new(out: &'a mut dyn Write, style: Style) -> Self {
        Self {
            out,
            style,
            status_shown: false,
        }
    }

    /// A line of text as it is.
    pub(super) fn say(&mut self, text: &str) {
        self.clear_status();
        self.write(&format!("{text}\n"));
    }

    /// What happened, so long after the start.
    pub(super) fn tell(&mut self, after: Duration, tone: Tone, what: &str, text: &str) {
        self.clear_status();
        let (on, off) = match tone.color() {
            "" => ("", ""),
            color if self.style.color => (color, "\x1b[0m"),
            _ => ("", ""),
        };
        let line = format!(
            "{:>6.1}s  {on}{what:<10}{off} {text}\n",
            after.as_secs_f64()
        );
        self.write(&line);
    }

    /// How it stands; on a terminal in place of the last such line.
    pub(super) fn status(&mut self, after: Duration, text: &str) {
        if !self.style.terminal {
            self.tell(after, Tone::Plain, "", text);
            return;
        }
        self.clear_status();
        self.write(&format!("{:>6.1}s  {text}", after.as_secs_f64()));
        self.status_shown = true;
    }

    /// Whether a status can be redrawn at any time.
    pub(super) const fn is_live(&self) -> bool {
        self.style.terminal
    }

    /// Takes the status line away.
    pub(super) fn clear_status(&mut self) {
        if std::mem::take(&mut self.status_shown) {
            self.write("\r\x1b[K");
        }
    }

    fn write(&mut self, text: &str) {
        let written = self.out.write_all(text.as_bytes());
        let _closed = written.and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(terminal: bool, color: bool) -> String {
        let mut out = Vec::new();
        let mut narrator = Narrator::new(&mut out, Style { terminal, color });
        narrator.status(Duration::from_secs(1), "all well");
        narrator.tell(Duration::from_millis(2340), Tone::Bad, "ejected", "B");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_last_line_is_redrawn_on_a_terminal_only() {
        let plain = told(false, false);
        assert_eq!(plain.lines().count(), 2);
        assert!(
            !plain.contains('\x1b') && !plain.contains('\r'),
            "{plain:?}"
        );
        let live = told(true, false);
        assert!(
            live.contains("all well\r\x1b[K   2.3s  ejected"),
            "{live:?}"
        );
        assert!(told(true, true).contains("\x1b[31mejected"));
    }
}
