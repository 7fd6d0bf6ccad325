//! The page: one HTML file with its style, its script and its data.

use std::fmt::Write;

use super::chart::Chart;
use super::figures::{Bin, Figures, Share};
use super::input::Replay;
use super::recording::Recording;
use super::svg::escaped;
use super::words::{self, class_name, duration, grouped, many, people};
use crate::error::{Failure, Result};
use crate::table::percent;

const STYLE: &str = include_str!("page/style.css");
const CHARTS: &str = include_str!("page/charts.js");
const VIEW: &str = include_str!("page/view.js");
const INPUT: &str = include_str!("page/input.js");
const SECTION: &str = include_str!("page/section.html");
/// Nothing may be fetched, and nothing is.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

/// Rows of a table of largest holders.
const MOST_HOLDERS: usize = 15;
/// Rows of a table of shares.
const MOST_SHARES: usize = 16;

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

/// A table that scrolls by itself where it is wider than the page.
fn table(
    text: &mut String,
    caption: &str,
    heads: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) {
    let label = escaped(caption);
    let _ = write!(
        text,
        "<h3>{label}</h3>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\"><table><thead><tr>"
    );
    for head in heads {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escaped(head));
    }
    text.push_str("</tr></thead><tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = if column == 0 {
                write!(text, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(text, "<td>{cell}</td>")
            };
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
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

fn holders(text: &mut String, recording: &Recording, figures: &Figures) {
    let rows = figures
        .holders
        .iter()
        .take(MOST_HOLDERS)
        .filter_map(|&index| {
            let block = recording.blocks.get(index as usize)?;
            let name =
                |names: &[String], at: u32| names.get(at as usize).cloned().unwrap_or_default();
            let born = if block.start == 0 {
                "before".to_owned()
            } else {
                grouped(block.start.into())
            };
            let freed = if block.end > recording.last {
                "never".to_owned()
            } else {
                grouped(block.end.into())
            };
            let age = match (recording.time(block.start), recording.time(figures.peak_at)) {
                (Some(from), Some(to)) if block.start > 0 => duration(to.saturating_sub(from)),
                _ => "–".to_owned(),
            };
            Some(vec![
                format!("{:#x}", block.address),
                people(block.size),
                percent(block.size, figures.peak),
                born,
                freed,
                age,
                name(&recording.streams, block.stream),
                name(&recording.owners, block.owner),
            ])
        });
    let caption = format!(
        "The largest of {} live at the peak",
        many(figures.holders.len(), "block")
    );
    let owner = recording.owner_kind.word();
    let heads = [
        "address",
        "size",
        "share",
        "allocated at call",
        "freed at call",
        "age",
        "stream",
        owner,
    ];
    table(text, &caption, &heads, rows);
}

/// One bar for each row; the numbers are text, the bar only shows them again.
fn bars(text: &mut String, caption: &str, rows: impl Iterator<Item = (String, f64, String)>) {
    let _ = writeln!(
        text,
        "<table class=\"bars\"><caption>{}</caption><tbody>",
        escaped(caption)
    );
    for (name, part, says) in rows {
        let _ = writeln!(
            text,
            "<tr><th scope=\"row\">{}</th><td><span class=\"bar\" style=\"width:{:.1}%\"></span></td><td>{}</td></tr>",
            escaped(&name),
            part * 100.0,
            escaped(&says)
        );
    }
    text.push_str("</tbody></table>\n");
}

fn part(of: u64, most: u64) -> f64 {
    if most == 0 {
        0.0
    } else {
        of as f64 / most as f64
    }
}

fn share_bars(text: &mut String, caption: &str, shares: &[Share]) {
    let most = shares.first().map_or(0, |share| share.bytes);
    let row = |share: &Share| {
        let says = format!(
            "{} in {}",
            people(share.bytes),
            grouped(share.blocks as u64)
        );
        (share.name.clone(), part(share.bytes, most), says)
    };
    let (shown, rest) = shares.split_at(shares.len().min(MOST_SHARES));
    let other = Share {
        name: format!("{} others", rest.len()),
        blocks: rest.iter().map(|share| share.blocks).sum(),
        bytes: rest
            .iter()
            .fold(0, |sum, share| sum.saturating_add(share.bytes)),
    };
    let other = (!rest.is_empty()).then_some(other);
    bars(text, caption, shown.iter().chain(&other).map(row));
}

fn bin_bars(text: &mut String, caption: &str, bins: &[Bin], name: impl Fn(u64) -> String) {
    let most = bins.iter().map(|bin| bin.blocks).max().unwrap_or(0);
    // Several empty bars in a row are one line.
    let runs = bins.chunk_by(|one, next| one.blocks == 0 && next.blocks == 0);
    let rows = runs.filter_map(|run| {
        let bin = run.first()?;
        Some(match run.len() {
            1 => {
                let says = format!("{}, {}", many(bin.blocks, "block"), people(bin.bytes));
                (name(bin.from), part(bin.blocks as u64, most as u64), says)
            }
            empty => (format!("{empty} bins between"), 0.0, "no block".to_owned()),
        })
    });
    bars(text, caption, rows);
}

fn segments(text: &mut String, recording: &Recording) {
    let mut largest: Vec<_> = recording.segments.iter().collect();
    largest.sort_by_key(|segment| std::cmp::Reverse(segment.size));
    let rows = largest.iter().take(MOST_HOLDERS).map(|segment| {
        let idle = segment.size.saturating_sub(segment.used);
        let kind = segment.kind.clone();
        vec![
            format!("{:#x}", segment.address),
            kind,
            people(segment.size),
            people(segment.used),
            people(idle),
            people(segment.largest_hole),
        ]
    });
    let caption = format!(
        "The largest of {} at the end",
        many(largest.len(), "segment")
    );
    table(
        text,
        &caption,
        &["address", "kind", "size", "in use", "idle", "longest hole"],
        rows,
    );
}

fn write_replays(text: &mut String, replays: &[Replay]) {
    text.push_str("<section class=\"card\"><h2>Replays</h2>\n<p>As <code>memmgr replay</code> measured them.</p>\n");
    let rows = replays.iter().map(|replay| {
        vec![
            replay.trace.clone(),
            replay.mode.clone(),
            replay.backend.clone(),
            grouped(replay.events),
            format!("{:.1}", replay.ns_per_op[0]),
            format!("{:.1}", replay.ns_per_op[1]),
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
        "2nd pass ns/op",
        "peak live",
        "peak reserved",
        "over live",
        "waits",
        "failures",
    ];
    table(text, "Replays, one row per trace and mode", &heads, rows);
    text.push_str("</section>\n");
}
