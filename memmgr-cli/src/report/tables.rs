//! The tables of a page; a histogram is one too, so that its numbers are text.

use std::fmt::Write;

use super::figures::{Bin, Figures, Share};
use super::frame::escaped;
use super::recording::Recording;
use super::words::{duration, grouped, many, people};
use crate::table::percent;

/// Rows of a table of largest holders.
const MOST_HOLDERS: usize = 15;
/// Rows of a table of shares.
const MOST_SHARES: usize = 16;

/// A table that scrolls by itself where it is wider than the page.
pub fn table(
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

pub fn holders(text: &mut String, recording: &Recording, figures: &Figures) {
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

pub fn share_bars(text: &mut String, caption: &str, shares: &[Share]) {
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

pub fn bin_bars(text: &mut String, caption: &str, bins: &[Bin], name: impl Fn(u64) -> String) {
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

pub fn segments(text: &mut String, recording: &Recording) {
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
