//! `memmgr report`: a page about recorded allocations: how much, when, who, and why not less.
//!
//! An input is read by its content ([`input`]) into recordings ([`recording`]); [`figures`] and [`model`]
//! find out about them; [`words`], [`chart`] and [`svg`] say and draw it, and [`html`] puts it on one page
//! that needs no network. Nothing is written before all inputs have been understood. No device is used.

mod chart;
mod figures;
mod frame;
mod history;
mod html;
mod input;
mod log;
mod machine;
mod model;
mod output;
mod pickle;
mod plain;
mod recording;
mod snapshot;
mod svg;
mod tables;
mod words;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use crate::error::{Failure, Result};
use crate::options::ReportOptions;
use crate::progress;
use crate::replay::warn;
use crate::table::{counted, wrapped};
use chart::Budget;
use html::Section;
use input::{Input, Replay};
use output::Target;
use recording::Recording;
use svg::Picture;
use words::people;

pub fn run(options: &ReportOptions, out: &mut impl Write) -> Result<()> {
    let page = Target::prepare(&options.output, &options.inputs)?;
    if let Some(folder) = &options.svg
        && folder.exists()
        && !folder.is_dir()
    {
        let folder = folder.display();
        return Err(Failure::message(format!(
            "cannot write to {folder}: it is no folder"
        )));
    }
    let above = options.svg.as_deref().and_then(Path::parent);
    if let Some(above) = above.filter(|above| !above.as_os_str().is_empty() && !above.is_dir()) {
        let above = above.display();
        return Err(Failure::message(format!(
            "cannot write to {above}: there is no such folder"
        )));
    }
    let bar = progress::bar(0);
    let (recordings, replays) = load(&options.inputs, &bar)?;
    if let Some(name) = options.svg.as_ref().filter(|_| recordings.is_empty()) {
        let name = name.display();
        return Err(Failure::message(format!(
            "nothing to draw in {name}: --svg needs an allocation log or a memory snapshot"
        )));
    }
    let (sections, pictures) = build(recordings, options.svg.is_some(), &bar);
    let text = html::page(&sections, &replays)?;
    bar.finish_and_clear();
    let pictures = match &options.svg {
        None => Vec::new(),
        Some(folder) => {
            if !folder.is_dir() {
                // As for the page, the folder above is not made: a slip of the pen would make one.
                fs::create_dir(folder).map_err(|error| {
                    Failure::message(format!(
                        "cannot make the folder {}: {error}",
                        folder.display()
                    ))
                })?;
            }
            let prepared = pictures.into_iter().map(|picture| {
                let target = Target::prepare(&folder.join(&picture.file), &options.inputs)?;
                Ok((target, picture.text))
            });
            prepared.collect::<Result<Vec<_>>>()?
        }
    };
    let drawn = pictures.len();
    for (target, picture) in pictures {
        target.write(picture.as_bytes())?;
    }
    page.write(text.as_bytes())?;
    say(&sections, &replays, out)?;
    if let Some(folder) = &options.svg {
        writeln!(out, "{}: {}", folder.display(), counted(drawn, "picture"))?;
    }
    let length = people(text.len() as u64);
    if crate::json::is_stdout(&options.output) {
        writeln!(out, "standard output: {length}")?;
    } else {
        let path = options.output.display();
        writeln!(out, "{path}: {length}, to be opened in a browser")?;
    }
    Ok(())
}

/// One line, or two, for each recording.
fn say(sections: &[Section], replays: &[Replay], out: &mut impl Write) -> Result<()> {
    for section in sections {
        let (recording, figures) = (&section.recording, &section.figures);
        let text = format!(
            "{}: peak live {} {}; a best-fit model reserves {}",
            recording.name.escape_debug(),
            people(figures.peak),
            words::moment(recording, figures.peak_at),
            people(figures.modelled_peak)
        );
        writeln!(out, "{}", wrapped(&text))?;
    }
    if !replays.is_empty() {
        writeln!(out, "{}", counted(replays.len(), "replay"))?;
    }
    Ok(())
}

/// The file's name for each path; its whole path where others have the same name.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short = |path: &Path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let all: Vec<String> = paths.iter().map(|path| short(path)).collect();
    let named = paths.iter().map(|path| {
        let name = short(path);
        let same = all.iter().filter(|other| **other == name).count();
        if same > 1 {
            path.display().to_string()
        } else {
            name
        }
    });
    named.collect()
}

fn load(paths: &[PathBuf], bar: &ProgressBar) -> Result<(Vec<Recording>, Vec<Replay>)> {
    let mut recordings = Vec::new();
    let mut replays = Vec::new();
    for (path, name) in paths.iter().zip(names(paths)) {
        bar.set_message(name.clone());
        let input = input::open(path, &name, bar)
            .map_err(|reason| Failure::message(format!("{}: {reason}", path.display())))?;
        match input {
            Input::Recordings(more) => {
                for warning in more.iter().filter_map(|one| one.warning.as_ref()) {
                    bar.suspend(|| warn(path, warning));
                }
                recordings.extend(more);
            }
            Input::Replays(more) => replays.extend(more),
        }
    }
    Ok((recordings, replays))
}

/// Computes and draws all that is shown.
fn build(
    recordings: Vec<Recording>,
    draw: bool,
    bar: &ProgressBar,
) -> (Vec<Section>, Vec<Picture>) {
    let budget = Budget::of(&recordings);
    let mut stems = HashSet::new();
    let mut pictures = Vec::new();
    let mut sections = Vec::new();
    for recording in recordings {
        bar.set_message(recording.name.clone());
        bar.inc_length(recording.blocks.len() as u64 * 2);
        let (figures, series) = figures::of(&recording, |calls| bar.inc(calls));
        if draw {
            let stem = stem(&recording.name, &mut stems);
            pictures.extend(svg::pictures(&stem, &recording, &figures, &series));
        }
        let chart = chart::of(&recording, &figures, &series, budget);
        let picture = svg::timeline(&recording, &figures, &series);
        sections.push(Section {
            recording,
            figures,
            chart,
            picture,
        });
    }
    (sections, pictures)
}

/// A name for files that no other recording has: letters, digits, `-`, `_` and `.` of the recording's.
fn stem(name: &str, taken: &mut HashSet<String>) -> String {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let name = name
        .strip_suffix(".csv")
        .or(name.strip_suffix(".pickle"))
        .unwrap_or(name);
    let safe = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' => letter,
        _ => '-',
    };
    let plain: String = name.chars().take(80).map(safe).collect();
    let plain = plain.trim_matches(['-', '.']);
    let plain = if plain.is_empty() { "recording" } else { plain };
    let mut stem = plain.to_owned();
    let mut number = 2_usize;
    while !taken.insert(stem.clone()) {
        stem = format!("{plain}-{number}");
        number = number.saturating_add(1);
    }
    stem
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_of_their_own() {
        let mut taken = HashSet::new();
        let mut stem = |name| stem(name, &mut taken);
        assert_eq!(stem("gpt2.csv.gz"), "gpt2");
        assert_eq!(stem("gpt2.csv"), "gpt2-2");
        assert_eq!(stem("../../etc/x"), "etc-x");
        assert_eq!(stem("?"), "recording");
        assert_eq!(stem("a.pickle, device 1"), "a.pickle--device-1");
    }
}
