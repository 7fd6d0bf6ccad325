//! The report in words: sizes, moments, lifetimes and the sentences of a summary.

use super::figures::{Figures, Share};
use super::model;
use super::recording::{OwnerKind, Recording};
use crate::table::counted;

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 block`, `1,200 blocks`.
pub fn many(count: usize, what: &str) -> String {
    if count < 1000 {
        return counted(count, what);
    }
    format!("{} {what}s", grouped(count as u64))
}

/// Bytes with the unit that suits them, as the script of the page writes them: `1.85 GiB`, `16 MiB`.
pub fn people(bytes: u64) -> String {
    if bytes < 1024 {
        return counted(bytes as usize, "byte");
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "";
    for name in units {
        value /= 1024.0;
        unit = name;
        if value < 1024.0 {
            break;
        }
    }
    let text = if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    };
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {unit}")
}

/// A power of two as a size: `256 B`, `4 KiB`.
pub fn power(size: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = size.checked_ilog2().map_or(0, |log| log as usize / 10);
    let unit = unit.min(units.len() - 1);
    format!("{} {}", size >> (10 * unit), units.get(unit).unwrap_or(&""))
}

/// The sizes from a power of two on and below the next.
pub fn class_name(from: u64) -> String {
    match from.checked_mul(2) {
        _ if from == 0 => "0 B".to_owned(),
        Some(to) => format!("{} to {}", power(from), power(to)),
        None => format!("{} or more", power(from)),
    }
}

/// Microseconds with the unit that suits them.
pub fn duration(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        1_000_000..120_000_000 => format!("{:.2} s", micros as f64 / 1e6),
        _ => format!("{:.1} min", micros as f64 / 6e7),
    }
}

/// How much more `whole` is than `part`: `3.2% more`.
pub fn above(whole: u64, part: u64) -> String {
    if part == 0 {
        return "no comparison".to_owned();
    }
    let percent = (whole as f64 / part as f64 - 1.0) * 100.0;
    if percent < 0.05 {
        "0.0% more".to_owned()
    } else {
        format!("{percent:.1}% more")
    }
}

/// When a moment was: the call, and the time if it is known.
pub fn moment(recording: &Recording, moment: u32) -> String {
    let call = if moment == 0 {
        "before the first call".to_owned()
    } else {
        format!(
            "at call {} of {}",
            grouped(moment.into()),
            grouped(recording.last.into())
        )
    };
    match recording.time(moment).filter(|_| moment > 0) {
        Some(time) => format!("{call}, {} after the first", duration(time)),
        None => call,
    }
}

/// The largest shares, in words: `80.0% in blocks of 1 MiB to 2 MiB`.
fn largest(shares: &[Share], whole: u64, before: &str) -> String {
    let part = |share: &Share| {
        let percent = crate::table::percent(share.bytes, whole);
        format!(
            "{percent} {before}{} ({})",
            share.name,
            many(share.blocks, "block")
        )
    };
    // What does not show in the first digits is left to the tables.
    let shown = shares.iter().take(3).enumerate();
    let shown = shown.filter(|(place, s)| *place == 0 || s.bytes >= whole / 100);
    let parts: Vec<_> = shown.map(|(_, share)| part(share)).collect();
    parts.join(", ")
}

/// The summary: each paragraph answers the question before it.
pub fn summary(recording: &Recording, figures: &Figures) -> Vec<(&'static str, String)> {
    let peak = figures.peak;
    let mut answers = Vec::new();
    let calls = if recording.last == 0 {
        format!("The snapshot shows {} in use", people(peak))
    } else {
        format!(
            "At most {} were live at one time. {} asked for {} in all, on {}",
            people(peak),
            many(figures.allocations, "allocation"),
            people(figures.turnover),
            counted(recording.streams.len(), "stream"),
        )
    };
    answers.push(("How much?", format!("{calls}.")));
    if recording.last > 0 {
        let mut text = format!(
            "The peak was first reached {}.",
            moment(recording, figures.peak_at)
        );
        if figures.frees > 0 {
            text += &format!(
                " Half of the freed blocks lived for at most {}, nine tenths for at most {}.",
                many(figures.median_life as usize, "call"),
                many(figures.long_life as usize, "call"),
            );
        }
        answers.push(("When?", text));
    }
    answers.push(("Who?", who(recording, figures)));
    answers.push(("Why not less?", why(recording, figures)));
    if recording.last > 0 {
        answers.push(("What stays?", stays(recording, figures)));
    }
    answers
}

fn who(recording: &Recording, figures: &Figures) -> String {
    let peak = figures.peak;
    let mut text = format!(
        "{} {} live at the peak. By size: {}.",
        many(figures.holders.len(), "block"),
        if figures.holders.len() == 1 {
            "was"
        } else {
            "were"
        },
        largest(&figures.by_class, peak, "in blocks of ")
    );
    if recording.streams.len() > 1 {
        text += &format!(" By stream: {}.", largest(&figures.by_stream, peak, "on "));
    }
    match recording.owner_kind {
        OwnerKind::Thread if recording.owners.len() == 1 => {
            text += &format!(
                " All calls come from thread {}.",
                figures.by_owner.first().map_or("", |o| &o.name)
            );
        }
        OwnerKind::Thread => {
            text += &format!(
                " By thread: {}.",
                largest(&figures.by_owner, peak, "from thread ")
            );
        }
        OwnerKind::Place => {
            text += &format!(
                " By place in the program: {}.",
                largest(&figures.by_owner, peak, "")
            );
        }
    }
    text
}

fn why(recording: &Recording, figures: &Figures) -> String {
    let peak = figures.peak;
    let mut text = format!(
        "No allocator can do with less than the {} that are live at the peak. ",
        people(peak)
    );
    if figures.peak_reserved > 0 {
        text += &format!(
            "The program reserved up to {}, {}. ",
            people(figures.peak_reserved),
            above(figures.peak_reserved, peak)
        );
    }
    text += &format!(
        "An exact best-fit pool that grows by at least {} and ignores streams (a plain model) reserves {}, {}",
        power(model::GROWTH),
        people(figures.modelled_peak),
        above(figures.modelled_peak, peak)
    );
    match figures
        .modelled
        .last_growth
        .filter(|growth| growth.free > 0)
    {
        Some(growth) => {
            text += &format!(
                ": it grew last {}, for {}, with {} free in pieces of at most {}.",
                moment(recording, growth.moment),
                people(growth.wanted),
                people(growth.free),
                people(growth.largest_hole)
            );
        }
        None => text.push('.'),
    }
    if recording.source == "allocation log" {
        text += &format!(
            " The addresses of all blocks cover {}.",
            people(figures.addresses)
        );
    }
    text
}

fn stays(recording: &Recording, figures: &Figures) -> String {
    let kept = &figures.kept;
    if kept.blocks == 0 {
        return "Nothing: every block was freed.".to_owned();
    }
    let mut text = format!(
        "{} with {} {} never freed in the recording",
        many(kept.blocks, "block"),
        people(kept.bytes),
        if kept.blocks == 1 { "was" } else { "were" }
    );
    let largest = figures
        .kept_largest
        .and_then(|index| recording.blocks.get(index as usize));
    if let Some(block) = largest {
        text += &format!(
            "; the largest has {}, allocated {}",
            people(block.size),
            moment(recording, block.start)
        );
    }
    text + ". That may be a leak, or what was in use when the recording ended."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(many(1, "block"), "1 block");
        assert_eq!(many(1000, "block"), "1,000 blocks");
        assert_eq!(people(1), "1 byte");
        assert_eq!(people(1536), "1.5 KiB");
        assert_eq!(people(16 << 20), "16 MiB");
        assert_eq!(people(1_990_000_000), "1.85 GiB");
        assert_eq!(people(u64::MAX), "16 EiB");
        assert_eq!(power(1), "1 B");
        assert_eq!(class_name(1 << 9), "512 B to 1 KiB");
        assert_eq!(class_name(1 << 63), "8 EiB or more");
        assert_eq!(duration(999), "999 µs");
        assert_eq!(duration(1_500_000), "1.50 s");
        assert_eq!(above(150, 100), "50.0% more");
        assert_eq!(above(1, 0), "no comparison");
    }
}
