//! The page: one HTML file with its style, its script and its data.

use std::fmt::Write;

use super::chart::Chart;
use super::figures::Figures;
use super::frame::escaped;
use super::input::Replay;
use super::recording::Recording;
use super::tables::{bin_bars, holders, segments, share_bars, table};
use super::words::{self, class_name, grouped, people};
use crate::error::{Failure, Result};

const STYLE: &str = include_str!("page/style.css");
const CHARTS: &str = include_str!("page/charts.js");
const VIEW: &str = include_str!("page/view.js");
const INPUT: &str = include_str!("page/input.js");
const SECTION: &str = include_str!("page/section.html");
/// Nothing may be fetched, and nothing is.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

/// A recording with all that is known of it.
pub struct Section {
    pub recording: Recording,
    pub figures: Figures,
    pub chart: Chart,
    /// The time line as a picture, for readers without scripts.
    pub picture: String,
}

pub fn page(sections: &[Section], replays: &[Replay]) -> Result<String> {
    let names: Vec<_> = sections.iter().map(|s| s.recording.name.as_str()).collect();
    let title = match names.as_slice() {
        [] => "replays".to_owned(),
        [name] => (*name).to_owned(),
        [name, rest @ ..] => format!("{name} and {} more", rest.len()),
    };
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Memory report: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Memory report</h1>\n",
        escaped(&title)
    );
    if sections.len() > 1 {
        comparison(&mut text, sections);
    }
    for (number, section) in sections.iter().enumerate() {
        write_section(&mut text, number, section);
    }
    if !replays.is_empty() {
        write_replays(&mut text, replays);
    }
    let charts: Vec<&Chart> = sections.iter().map(|section| &section.chart).collect();
    let data = serde_json::to_string(&charts).map_err(Failure::message)?;
    // Within a script `<` could end it; JSON has it in strings only.
    let data = data.replace('<', "\\u003c");
    let _ = write!(
        text,
        "</main>\n<footer>Made by <code>memmgr report</code> {}.</footer>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n{CHARTS}{VIEW}{INPUT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    Ok(text)
}

fn comparison(text: &mut String, sections: &[Section]) {
    text.push_str("<section class=\"card\"><h2>Comparison</h2>\n");
    let rows = sections.iter().map(|section| {
        let (recording, figures) = (&section.recording, &section.figures);
        let reserved = match figures.peak_reserved {
            0 => "not recorded".to_owned(),
            bytes => people(bytes),
        };
        vec![
            recording.name.clone(),
            grouped(recording.last.into()),
            people(figures.peak),
            reserved,
            people(figures.modelled_peak),
            words::above(figures.modelled_peak, figures.peak),
            format!("{} calls", grouped(figures.median_life.into())),
            people(figures.kept.bytes),
        ]
    });
    let heads = [
        "recording",
        "calls",
        "peak live",
        "peak reserved",
        "best-fit model",
        "over live",
        "median life",
        "never freed",
    ];
    table(text, "All recordings side by side", &heads, rows);
    text.push_str("<nav aria-label=\"Recordings\"><ul>");
    for (number, section) in sections.iter().enumerate() {
        let name = escaped(&section.recording.name);
        let _ = write!(text, "<li><a href=\"#recording-{number}\">{name}</a></li>");
    }
    text.push_str("</ul></nav></section>\n");
}

/// A large figure with what it is; `data-value` is the exact number.
fn tile(text: &mut String, name: &str, value: u64, shown: &str, what: &str) {
    let _ = writeln!(
        text,
        "<div class=\"tile\"><strong data-figure=\"{name}\" data-value=\"{value}\">{}</strong><span>{}</span></div>",
        escaped(shown),
        escaped(what)
    );
}

fn write_section(text: &mut String, number: usize, section: &Section) {
    let Section {
        recording, figures, ..
    } = section;
    let name = escaped(&recording.name);
    let mut top = String::new();
    tile(
        &mut top,
        "peak-live",
        figures.peak,
        &people(figures.peak),
        "peak live",
    );
    if figures.peak_reserved > 0 {
        tile(
            &mut top,
            "peak-reserved",
            figures.peak_reserved,
            &people(figures.peak_reserved),
            "peak reserved",
        );
    }
    let above = words::above(figures.modelled_peak, figures.peak);
    tile(
        &mut top,
        "modelled",
        figures.modelled_peak,
        &people(figures.modelled_peak),
        &format!("best-fit model, {above}"),
    );
    if recording.last > 0 {
        let count = figures.allocations as u64;
        tile(
            &mut top,
            "allocations",
            count,
            &grouped(count),
            "allocations",
        );
        tile(
            &mut top,
            "kept",
            figures.kept.bytes,
            &people(figures.kept.bytes),
            "never freed",
        );
    }
    let mut summary = String::new();
    for (question, answer) in words::summary(recording, figures) {
        let _ = writeln!(summary, "<dt>{question}</dt><dd>{}</dd>", escaped(&answer));
    }
    for note in &recording.notes {
        let _ = writeln!(summary, "<dt>Note</dt><dd>{}</dd>", escaped(note));
    }
    let mut tables = String::new();
    holders(&mut tables, recording, figures);
    let mut shares = String::new();
    share_bars(&mut shares, "At the peak, by size", &figures.by_class);
    if recording.streams.len() > 1 {
        share_bars(&mut shares, "At the peak, by stream", &figures.by_stream);
    }
    if recording.owners.len() > 1 {
        let caption = format!("At the peak, by {}", recording.owner_kind.word());
        share_bars(&mut shares, &caption, &figures.by_owner);
    }
    let mut histograms = String::new();
    bin_bars(
        &mut histograms,
        "Sizes of all blocks",
        &figures.sizes,
        class_name,
    );
    if !figures.lifetimes.is_empty() {
        let name = |from: u64| match from {
            0 | 1 => format!("{from} call{}", if from == 1 { "" } else { "s" }),
            _ => format!(
                "{} to {} calls",
                grouped(from),
                grouped(from.saturating_mul(2) - 1)
            ),
        };
        bin_bars(
            &mut histograms,
            "Lifetimes of freed blocks",
            &figures.lifetimes,
            name,
        );
    }
    if !recording.segments.is_empty() {
        segments(&mut histograms, recording);
    }
    let charts = if recording.last > 0 { "" } else { "still" };
    let number = number.to_string();
    let reserved = if figures.peak_reserved > 0 {
        "reserved"
    } else {
        "best-fit model"
    };
    let marks = [
        ("{{number}}", number.as_str()),
        ("{{charts}}", charts),
        ("{{reserved}}", reserved),
        ("{{source}}", recording.source),
        ("{{tiles}}", &top),
        ("{{picture}}", &section.picture),
        ("{{shares}}", &shares),
        ("{{histograms}}", &histograms),
        ("{{name}}", &name),
        ("{{summary}}", &summary),
        ("{{holders}}", &tables),
    ];
    // In one pass, so that a mark within what comes from an input means nothing.
    let mut left = SECTION;
    while let Some(at) = left.find("{{") {
        let (before, after) = left.split_at(at);
        text.push_str(before);
        let found = marks
            .iter()
            .find_map(|(mark, with)| Some((after.strip_prefix(mark)?, with)));
        left = match found {
            Some((after, with)) => {
                text.push_str(with);
                after
            }
            None => after.trim_start_matches('{'),
        };
    }
    text.push_str(left);
}

fn write_replays(text: &mut String, replays: &[Replay]) {
    text.push_str("<section class=\"card\"><h2>Replays</h2>\n<p>As <code>memmgr replay</code> measured them.</p>\n");
    let time = |ns: Option<&f64>| ns.map_or_else(String::new, |ns| format!("{ns:.1}"));
    let rows = replays.iter().map(|replay| {
        vec![
            replay.trace.clone(),
            replay.mode.clone(),
            replay.backend.clone(),
            grouped(replay.events),
            time(replay.ns_per_op.first()),
            time(replay.ns_per_op.last()),
            people(replay.peak_live_bytes),
            people(replay.peak_reserved_bytes),
            words::above(replay.peak_reserved_bytes, replay.peak_live_bytes),
            grouped(replay.waits),
            grouped(replay.failures),
        ]
    });
    let heads = [
        "trace",
        "mode",
        "backend",
        "events",
        "1st pass ns/op",
        "last pass ns/op",
        "peak live",
        "peak reserved",
        "over live",
        "waits",
        "failures",
    ];
    table(text, "Replays, one row per trace and mode", &heads, rows);
    text.push_str("</section>\n");
}
