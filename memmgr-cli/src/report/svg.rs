//! The charts as pictures for papers: plain SVG without scripts, in colours that print.

use std::fmt::Write;

use super::chart::{Regions, largest, sampled};
use super::figures::{Bin, Figures, Series};
use super::frame::{BOTTOM, Frame, HEIGHT, LEFT, RIGHT, WIDTH, escaped};
use super::recording::Recording;
use super::words::{class_name, duration, grouped, many, people, power};

/// More points and blocks than this cannot be told apart in print.
const MOST_POINTS: usize = 1500;
const MOST_BLOCKS: usize = 6000;

/// Colours of sizes, small to large.
const RAMP: [&str; 7] = [
    "#fde0a5", "#f9b573", "#ee8a62", "#d5605f", "#ac3f6b", "#7a2a70", "#431a5e",
];

/// A picture with its file's name.
pub struct Picture {
    pub file: String,
    pub text: String,
}

/// All pictures of a recording; `stem` begins their files' names.
pub fn pictures(
    stem: &str,
    recording: &Recording,
    figures: &Figures,
    series: &Series,
) -> Vec<Picture> {
    let named = |what: &str, text| Picture {
        file: format!("{stem}-{what}.svg"),
        text,
    };
    let mut all = Vec::new();
    if recording.last > 0 {
        all.push(named("timeline", timeline(recording, figures, series)));
        all.push(named("fragmentation", fragmentation(recording, series)));
        all.push(named(
            "lifetimes",
            bars(
                &format!("{}: lifetimes", recording.name),
                "calls from allocation to free",
                &figures.lifetimes,
                grouped,
            ),
        ));
    }
    all.push(named("map", map(recording)));
    all.push(named(
        "sizes",
        bars(
            &format!("{}: sizes", recording.name),
            "block size, from",
            &figures.sizes,
            power,
        ),
    ));
    all
}

fn at(values: &[u64], moment: u32) -> u64 {
    values.get(moment as usize).copied().unwrap_or(0)
}

fn calls(value: f64) -> String {
    grouped(value as u64)
}

fn bytes(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else {
        people(value as u64)
    }
}

/// What the axis of moments says of time.
fn below(recording: &Recording) -> String {
    match recording.times.last() {
        Some(&time) => format!("calls, over {}", duration(time)),
        None => "calls".to_owned(),
    }
}

fn reserved_word(recording: &Recording) -> &'static str {
    if recording.reserved.is_empty() {
        "best-fit model"
    } else {
        "reserved"
    }
}

pub fn timeline(recording: &Recording, figures: &Figures, series: &Series) -> String {
    let most = series
        .reserved
        .iter()
        .copied()
        .max()
        .unwrap_or(0)
        .max(figures.peak);
    let word = reserved_word(recording);
    let says = format!(
        "Live bytes over {} calls, at most {}, and {word}",
        recording.last,
        people(figures.peak)
    );
    let title = format!("{}: live bytes and {word}", recording.name);
    let mut frame = Frame::new(&title, &says, recording.last.into(), most as f64);
    frame.axes(&below(recording), true, calls, bytes);
    let moments = sampled(&series.live, MOST_POINTS);
    let live = frame.path(
        moments
            .iter()
            .map(|&moment| (moment, at(&series.live, moment))),
    );
    let (left, right, zero) = (frame.x(0.0), frame.x(frame.most.0), frame.y(0.0));
    let _ = writeln!(
        frame.text,
        "<path d=\"{live}H{right:.1}V{zero:.1}H{left:.1}Z\" fill=\"#2a6fb0\" fill-opacity=\".45\"/>"
    );
    let _ = writeln!(
        frame.text,
        "<path d=\"{live}\" fill=\"none\" stroke=\"#2a6fb0\"/>"
    );
    let moments = sampled(&series.reserved, MOST_POINTS);
    let reserved = frame.path(
        moments
            .iter()
            .map(|&moment| (moment, at(&series.reserved, moment))),
    );
    let _ = writeln!(
        frame.text,
        "<path d=\"{reserved}\" fill=\"none\" stroke=\"#b3470f\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\"/>"
    );
    let (x, y) = (
        frame.x(figures.peak_at.into()),
        frame.y(figures.peak as f64),
    );
    let _ = writeln!(
        frame.text,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#fff\" stroke=\"#111\" stroke-width=\"1.5\"/>"
    );
    let anchor = if x > WIDTH / 2.0 { "end" } else { "start" };
    let beside = if x > WIDTH / 2.0 { -8.0 } else { 8.0 };
    frame.label(
        x + beside,
        y + 16.0,
        anchor,
        &format!("peak {}", people(figures.peak)),
    );
    frame.finish()
}

fn fragmentation(recording: &Recording, series: &Series) -> String {
    let idle: Vec<u64> = series
        .reserved
        .iter()
        .zip(&series.live)
        .map(|(r, l)| r.saturating_sub(*l))
        .collect();
    let most = idle.iter().copied().max().unwrap_or(0);
    let title = format!(
        "{}: {} minus live",
        recording.name,
        reserved_word(recording)
    );
    let says = format!("Bytes that are held and not live, at most {}", people(most));
    let mut frame = Frame::new(&title, &says, recording.last.into(), most as f64);
    frame.axes(&below(recording), true, calls, bytes);
    let moments = sampled(&idle, MOST_POINTS);
    let path = frame.path(moments.iter().map(|&moment| (moment, at(&idle, moment))));
    let (left, right, zero) = (frame.x(0.0), frame.x(frame.most.0), frame.y(0.0));
    let _ = writeln!(
        frame.text,
        "<path d=\"{path}H{right:.1}V{zero:.1}H{left:.1}Z\" fill=\"#b3470f\" fill-opacity=\".4\"/>"
    );
    frame.finish()
}

fn map(recording: &Recording) -> String {
    let regions = Regions::of(&recording.blocks);
    let length = regions.length();
    let title = format!("{}: blocks by address and time", recording.name);
    let shown = largest(&recording.blocks, MOST_BLOCKS);
    let says = format!(
        "{} of {}, on {} of addresses; darker is larger",
        many(shown.len(), "block"),
        grouped(recording.blocks.len() as u64),
        people(length)
    );
    let last = recording.last.max(1);
    let mut frame = Frame::new(&title, &says, last.into(), length as f64);
    // One path for each colour keeps the file short.
    let mut paths = vec![String::new(); RAMP.len()];
    for block in shown {
        let place = regions.place(block.address);
        let (x, y) = (frame.x(block.start.min(last).into()), frame.y(place as f64));
        let width = (frame.x(block.end.min(last).into()) - x).max(0.3);
        let width = if recording.last == 0 {
            WIDTH - LEFT - RIGHT
        } else {
            width
        };
        let height = (y - frame.y(place.saturating_add(block.size) as f64)).max(0.3);
        // From 4 KiB on each colour is four times the one before.
        let step = block.size.checked_ilog2().unwrap_or(0).saturating_sub(10) / 3;
        let step = (step as usize).min(RAMP.len() - 1);
        if let Some(path) = paths.get_mut(step) {
            let _ = write!(path, "M{x:.1} {y:.1}h{width:.1}v-{height:.1}h-{width:.1}z");
        }
    }
    for (path, colour) in paths.iter().zip(RAMP).filter(|(path, _)| !path.is_empty()) {
        let _ = writeln!(frame.text, "<path d=\"{path}\" fill=\"{colour}\"/>");
    }
    let x_name = |value| {
        if recording.last == 0 {
            String::new()
        } else {
            calls(value)
        }
    };
    frame.axes(&below(recording), true, x_name, bytes);
    frame.finish()
}

fn bars(title: &str, below: &str, bins: &[Bin], name: impl Fn(u64) -> String) -> String {
    let most = bins.iter().map(|bin| bin.blocks).max().unwrap_or(0);
    let says = bins
        .iter()
        .map(|bin| format!("{}: {}", name(bin.from), bin.blocks));
    let says = says.collect::<Vec<_>>().join("; ");
    let mut frame = Frame::new(title, &says, bins.len() as f64, most as f64);
    frame.axes(
        below,
        false,
        |_| String::new(),
        |value| grouped(value as u64),
    );
    // Names that would touch are left out.
    let every = bins.len().div_ceil(12).max(1);
    for (place, bin) in bins.iter().enumerate() {
        let (x, to) = (frame.x(place as f64), frame.x(place as f64 + 1.0));
        let (y, zero) = (frame.y(bin.blocks as f64), frame.y(0.0));
        let (width, height) = (to - x - 2.0, zero - y);
        let says = escaped(&format!(
            "{}: {}",
            class_name(bin.from),
            many(bin.blocks, "block")
        ));
        let _ = writeln!(
            frame.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"#2a6fb0\"><title>{says}</title></rect>"
        );
        if place % every == 0 {
            frame.label(
                (x + to) / 2.0,
                HEIGHT - BOTTOM + 16.0,
                "middle",
                &name(bin.from),
            );
        }
    }
    frame.finish()
}
