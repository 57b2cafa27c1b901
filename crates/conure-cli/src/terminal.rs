//! The terminal that progress bars are drawn on.

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::io;

/// Columns that stay free at the right. A bar leaves the cursor at its end; what the terminal itself writes there, `^C`,
/// must not go to the next line, where it would keep the bar's line from being cleared.
const FREE: u16 = 4;

/// Draws of a bar a second, at most.
const RATE: u8 = 20;

/// A bar of this length and looks on standard error; none where nobody would see it.
pub fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let term = Term::buffered_stderr();
    if !term.is_term() {
        return ProgressBar::hidden();
    }
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(Narrow(term)), RATE);
    let bar = ProgressBar::with_draw_target(length, target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A terminal that seems narrower than it is.
#[derive(Debug)]
struct Narrow(Term);

impl TermLike for Narrow {
    fn width(&self) -> u16 {
        self.0.size().1.saturating_sub(FREE).max(1)
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.0.write_line(s)
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.0.write_str(s)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}
