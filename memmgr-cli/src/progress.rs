//! The progress bar: on standard error, and only where that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

const STYLE: &str = "{msg:<20} [{bar:30}] {percent:>3}% {eta}";
const SPINNER: &str = "{spinner} {msg} {elapsed}";

/// A bar of this many steps.
pub fn bar(steps: usize) -> ProgressBar {
    // The target hides the bar where standard error is not a terminal.
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    // It also goes away when an error ends the work, so that the message has a line of its own.
    let bar = bar.with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(STYLE) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// What shows that work goes on whose length is not known.
pub fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.enable_steady_tick(Duration::from_millis(500));
    let bar = bar.with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(SPINNER) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_is_understood() {
        assert!(ProgressStyle::with_template(STYLE).is_ok());
        assert!(ProgressStyle::with_template(SPINNER).is_ok());
    }
}
