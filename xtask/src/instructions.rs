//! `cargo xtask instructions`: how many instructions an operation of the manager takes, counted by valgrind, beside a
//! recorded budget. Unlike times, these figures do not depend on what else a machine does.

use crate::{
    model::build_folder,
    shell::{Result, cargo, cargo_messages, has, root, run_quietly, say, shown},
    toolchain,
};
use serde_json::{Map, Value, json};
use std::{env, fs, path::Path, process::Command};

/// Count the instructions of an operation, and compare them with the recorded budget
///
/// Runs `memmgr bench` on the simulated runtime under valgrind's callgrind, which counts in single passes of its loops. What
/// the loops themselves take is subtracted. Fails where a figure is more than 5 % above xtask/instructions.json, or grows with
/// the number of blocks.
#[derive(clap::Args)]
pub struct Arguments {
    /// Record the figures of now as the budget
    #[arg(long)]
    update: bool,
}

/// What a figure may exceed its budget by: compilers differ a little.
const TOLERANCE: f64 = 1.05;
/// A figure so far below its budget is worth recording.
const SLACK: f64 = 0.9;
/// The function whose calls are counted.
const FUNCTION: &str = "memmgr_bench_counted";
/// The two cases that differ in the number of blocks alone, and by how much an operation may grow between them: no less is
/// recorded.
const FEW: &str = "random n=1000 max=1MiB";
const MANY: &str = "random n=100000 max=1MiB";
const GROWTH: f64 = 1.15;

/// Why the instructions cannot be counted here, if they cannot.
pub fn impossible() -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("the budget is that of x86-64 Linux".to_string());
    }
    toolchain::ensure_valgrind().err()
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    if let Some(reason) = impossible() {
        return Err(reason);
    }
    let figures = figures(&count(&build()?)?)?;
    let path = root().join("xtask/instructions.json");
    if arguments.update {
        let text = recorded(&figures)?;
        fs::write(&path, text).map_err(|e| format!("{}: {e}", shown(&path)))?;
        say(format!("instructions: {} was written", shown(&path)));
    }
    let text = fs::read_to_string(&path).map_err(|e| {
        format!(
            "{}: {e}; cargo xtask instructions --update makes it",
            shown(&path)
        )
    })?;
    let budget = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", shown(&path)))?;
    compare(&figures, &budget)
}

fn build() -> Result<std::path::PathBuf> {
    say("instructions: building the program");
    let words = [
        "build",
        "--quiet",
        "--release",
        "-p",
        "memmgr-cli",
        "--features",
        "sim",
    ];
    cargo_messages(&mut cargo(words))?
        .iter()
        .filter(|message| message["target"]["name"] == "memmgr")
        .find_map(|message| message["executable"].as_str().map(Into::into))
        .ok_or_else(|| "cargo built no program `memmgr`".to_string())
}

/// One pass that was counted.
struct Counted {
    case: String,
    subject: String,
    /// Instructions per operation, the loop included.
    instructions: f64,
}

/// Runs the program under callgrind, which writes one file for each call of the function.
fn count(program: &Path) -> Result<Vec<Counted>> {
    let folder = build_folder("instructions");
    let failed = |e: std::io::Error| format!("{}: {e}", shown(&folder));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let output = folder.join("out");
    // Addresses are always the same then, where the system allows it.
    let fixed = has("setarch") && run_quietly(Command::new("setarch").args(["-R", "true"])).is_ok();
    let mut command = if fixed {
        let mut command = Command::new("setarch");
        command.args(["-R", "valgrind"]);
        command
    } else {
        Command::new("valgrind")
    };
    command
        .args(["-q", "--tool=callgrind"])
        .arg(format!("--toggle-collect={FUNCTION}"))
        .arg(format!("--dump-after={FUNCTION}"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .args(["bench", "--counted"]);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CUDART_SIM_") || text.starts_with("MEMMGR_") {
            command.env_remove(&name);
        }
    }
    command
        .env("CUDART_SIM_TIME", "off")
        .env("CUDART_SIM_CHECK", "off")
        // More addresses than this valgrind does not have.
        .env("CUDART_SIM_MEMORY", "24G");
    say("instructions: counting: this takes less than a minute");
    let printed = run_quietly(&mut command)?;
    let passes: Vec<Value> = printed
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .ok_or_else(|| format!("`memmgr bench --counted` did not say what it did:\n{printed}"))?;
    let counted = passes.iter().zip(1..).map(|(pass, part)| {
        let text = |name: &str| pass[name].as_str().unwrap_or_default().to_string();
        let operations = pass["operations"].as_f64().filter(|n| *n > 0.0);
        let operations = operations.ok_or("a pass without operations was counted")?;
        Ok(Counted {
            case: text("case"),
            subject: text("subject"),
            instructions: total(&output.with_extension(part.to_string()))? / operations,
        })
    });
    counted.collect()
}

/// The instructions in one file of callgrind's.
fn total(file: &Path) -> Result<f64> {
    let text = fs::read_to_string(file).map_err(|e| {
        format!(
            "callgrind did not write {}: {e}; does {FUNCTION} still exist?",
            shown(file)
        )
    })?;
    total_in(&text).ok_or_else(|| format!("{} holds no total", shown(file)))
}

fn total_in(text: &str) -> Option<f64> {
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"))?;
    total.trim().parse().ok().filter(|total| *total > 0.0)
}

/// The instructions of the allocators themselves.
struct Figure {
    case: String,
    ours: f64,
    btree: f64,
}

/// Subtracts what the loop takes with an allocator that does nothing.
fn figures(counted: &[Counted]) -> Result<Vec<Figure>> {
    let of = |case: &str, subject: &str| {
        counted
            .iter()
            .find(|pass| pass.case == case && pass.subject == subject)
            .map(|pass| pass.instructions)
            .ok_or_else(|| format!("{case}: {subject} was not counted"))
    };
    let ours = counted.iter().filter(|pass| pass.subject == "memmgr");
    let figures: Vec<Figure> = ours
        .map(|pass| {
            let driver = of(&pass.case, "null")?;
            Ok(Figure {
                case: pass.case.clone(),
                ours: pass.instructions - driver,
                btree: of(&pass.case, "btree")? - driver,
            })
        })
        .collect::<Result<_>>()?;
    if figures.is_empty() {
        return Err("nothing was counted".to_string());
    }
    Ok(figures)
}

/// How much an operation grows with the number of blocks.
fn growth(figures: &[Figure]) -> Result<f64> {
    let of = |case: &str| {
        let figure = figures.iter().find(|figure| figure.case == case);
        figure
            .map(|figure| figure.ours)
            .ok_or_else(|| format!("{case} was not counted"))
    };
    Ok(of(MANY)? / of(FEW)?)
}

/// The file that records these figures.
fn recorded(figures: &[Figure]) -> Result<String> {
    let budget: Map<String, Value> = figures
        .iter()
        .map(|figure| (figure.case.clone(), json!(figure.ours.ceil() as u64)))
        .collect();
    let growth = growth(figures)?;
    let growth = if growth <= GROWTH {
        GROWTH
    } else {
        (growth * TOLERANCE * 100.0).round() / 100.0
    };
    let value = json!({
        "about": "Instructions per operation (per pair in hot and holes), counted by `cargo xtask instructions`, which \
            records them with --update. growth: random with 100,000 blocks over 1,000.",
        "budget": budget,
        "growth": growth,
    });
    let text = serde_json::to_string_pretty(&value).map_err(|e| e.to_string())?;
    Ok(text + "\n")
}

fn compare(figures: &[Figure], recorded: &Value) -> Result {
    let mut wrong = Vec::new();
    let mut slack = false;
    println!("instructions per operation, without the loop's own");
    println!(
        "{:<26} {:>9} {:>9} {:>9}  memmgr ÷ btree",
        "case", "memmgr", "budget", "btree"
    );
    for Figure { case, ours, btree } in figures {
        let budget = recorded["budget"][case].as_f64();
        let shown = budget.map_or_else(|| "none".to_string(), |budget| format!("{budget:.0}"));
        println!(
            "{case:<26} {ours:>9.1} {shown:>9} {btree:>9.1}  {:.2}",
            ours / btree
        );
        match budget {
            None => wrong.push(format!("{case} has no budget")),
            Some(budget) if *ours > budget * TOLERANCE => {
                wrong.push(format!("{case}: {ours:.1} where {budget:.0} are allowed"));
            }
            Some(budget) => slack |= *ours < budget * SLACK,
        }
    }
    let grown = growth(figures)?;
    let allowed = recorded["growth"].as_f64().unwrap_or(GROWTH).max(GROWTH);
    println!("random, n=100000 over n=1000: {grown:.3} (at most {allowed})");
    if grown > allowed {
        wrong.push(format!(
            "an operation with 100,000 blocks takes {grown:.3} times one with 1,000, where {allowed} is allowed"
        ));
    }
    if slack {
        say("instructions: far below the budget: `cargo xtask instructions --update` records it");
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "over the budget of xtask/instructions.json:\n  {}\nIf that is meant, `cargo xtask instructions --update` records \
         the figures of now",
        wrong.join("\n  ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(ours: [f64; 2]) -> Vec<Counted> {
        let pass = |case: &str, subject: &str, instructions| Counted {
            case: case.to_string(),
            subject: subject.to_string(),
            instructions,
        };
        let mut passes = Vec::new();
        for (case, ours) in [FEW, MANY].into_iter().zip(ours) {
            passes.push(pass(case, "memmgr", ours));
            passes.push(pass(case, "null", 10.0));
            passes.push(pass(case, "btree", 60.0));
        }
        passes
    }

    #[test]
    fn the_loop_is_subtracted_and_its_own_record_is_kept() {
        let figures = figures(&passes([110.0, 115.0])).unwrap();
        assert_eq!((figures[0].ours, figures[0].btree), (100.0, 50.0));
        let budget = serde_json::from_str(&recorded(&figures).unwrap()).unwrap();
        assert_eq!(compare(&figures, &budget), Ok(()));
    }

    #[test]
    fn more_instructions_than_the_budget_or_growth_are_refused_with_the_remedy() {
        let before = figures(&passes([110.0, 115.0])).unwrap();
        let budget = serde_json::from_str(&recorded(&before).unwrap()).unwrap();
        for (now, word) in [
            ([116.0, 115.0], "106.0 where 100"),
            ([90.0, 115.0], "1.312 times"),
        ] {
            let error = compare(&figures(&passes(now)).unwrap(), &budget).unwrap_err();
            assert!(error.contains(word), "{error}");
            assert!(error.contains("--update"), "{error}");
        }
        let error = compare(&before, &json!({})).unwrap_err();
        assert!(error.contains("has no budget"), "{error}");
    }

    #[test]
    fn a_pass_that_was_not_counted_is_named() {
        let mut some = passes([1.0, 1.0]);
        some.retain(|pass| pass.subject != "btree");
        assert!(figures(&some).is_err_and(|error| error.contains("btree was not counted")));
        assert!(figures(&[]).is_err());
        assert_eq!(total_in("events: Ir\ntotals: 42\n"), Some(42.0));
        assert_eq!(total_in("totals: 0\n"), None);
    }
}
