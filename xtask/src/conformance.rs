//! `cargo xtask conformance`: the tables of what a runtime must answer, kept in step with what the simulator and a GPU said.
//!
//! `docs/conformance.md` has a row for each fact of the suite, with the verdict of both machines. `docs/simulator.md` names,
//! for each promise, the tests that keep it and the facts by which a GPU has confirmed it.

use crate::{
    shell::{Result, root, run_lines, say},
    test,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Run the conformance suite on the simulator and write the tables of the documents
///
/// The column of the simulator is made anew. That of the GPU is kept, or taken from a file: what
/// `MEMMGR_TABLE=1 tests/conformance table --exact --nocapture` of the bundle printed there.
#[derive(clap::Args)]
pub struct Arguments {
    /// Change nothing; fail if the documents are not what they should be
    #[arg(long)]
    check: bool,
    /// Take the GPU's verdicts from this file
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    gpu: Option<PathBuf>,
}

const TABLE: &str = "docs/conformance.md";
const PROMISES: &str = "docs/simulator.md";
const HEAD: &str = "| promise | test (in `tests/tests/conformance`) | from | simulated | GPU |";
const PROMISES_HEAD: &str =
    "| promise | test (in `cudart-sim/tests`) | from | confirmed on a GPU by |";
const NOT_YET_RUN: &str = "not yet run";
const NOT_YET: &str = "not yet: ";

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let mut printed = String::new();
    let mut suite = test::of_one("conformance");
    suite.args(["--quiet", "table", "--", "--exact", "--nocapture"]);
    let ran = run_lines(suite.env("MEMMGR_TABLE", "1"), |line| {
        printed.push_str(line);
        printed.push('\n');
    });
    let rows = verdicts(&printed, "simulated")?;
    let gpu = match &arguments.gpu {
        Some(file) => verdicts(&read(file)?, "GPU")?,
        None => Vec::new(),
    };
    let (old_table, old_promises) = (read(&root().join(TABLE))?, read(&root().join(PROMISES))?);
    let (table, confirmed) = with_verdicts(&old_table, &rows, &gpu)?;
    let promises = with_confirmations(&old_promises, &confirmed)?;
    missing_tests(&promises)?;
    let mut stale = Vec::new();
    for (name, old, new) in [
        (TABLE, old_table, table),
        (PROMISES, old_promises, promises),
    ] {
        if old == new {
            continue;
        }
        stale.push(name);
        if !arguments.check {
            let path = root().join(name);
            fs::write(&path, new).map_err(|e| format!("{name}: {e}"))?;
            say(format!("conformance: wrote {name}"));
        }
    }
    // A fact that does not hold is in the table now, and a failure all the same.
    ran?;
    if arguments.check && !stale.is_empty() {
        return Err(format!(
            "not what the suite says: {}. `cargo xtask conformance` writes it",
            stale.join(", ")
        ));
    }
    let unconfirmed = confirmed.values().filter(|cell| *cell == NOT_YET_RUN);
    say(format!(
        "conformance: {} facts on the simulator, {} not yet run on a GPU",
        rows.len(),
        unconfirmed.count()
    ));
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim_end().strip_prefix("| ")?.strip_suffix(" |")?;
    Some(inner.split(" | ").collect())
}

/// One fact, as the suite prints it.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    promise: String,
    test: String,
    from: String,
    verdict: String,
}

/// The rows that the suite has printed on a machine.
fn verdicts(printed: &str, machine: &str) -> Result<Vec<Row>> {
    if !printed.contains(&format!("| from | {machine} |")) {
        return Err(format!("there is no table with the column `{machine}`"));
    }
    let rows = printed.lines().filter_map(|line| match cells(line)?[..] {
        [promise, test, from, verdict] if test.starts_with('`') => Some(Row {
            promise: promise.to_owned(),
            test: test.to_owned(),
            from: from.to_owned(),
            verdict: verdict.to_owned(),
        }),
        _ => None,
    });
    Ok(rows.collect())
}

/// What stands before the table, its rows, and what comes after it.
fn split_table<'a>(document: &'a str, head: &str) -> Result<(&'a str, Vec<&'a str>, &'a str)> {
    let absent = || format!("there is no table that begins with {head}");
    let (before, rest) = document.split_once(head).ok_or_else(absent)?;
    let rest = rest.strip_prefix('\n').unwrap_or(rest);
    let rows: Vec<&str> = rest
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    let len: usize = rows.iter().map(|row| row.len() + 1).sum();
    let after = rest.get(len..).unwrap_or_default();
    Ok((before, rows.into_iter().skip(1).collect(), after))
}

/// The document with the simulator's rows, each with the GPU's verdict: a new one, the one that was there, or none yet. Also
/// the GPU's verdicts by test.
fn with_verdicts(
    document: &str,
    rows: &[Row],
    gpu: &[Row],
) -> Result<(String, BTreeMap<String, String>)> {
    let (before, old, after) = split_table(document, HEAD)?;
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for line in old {
        if let Some([_, test, _, _, verdict]) = cells(line).as_deref() {
            known.insert(test, verdict);
        }
    }
    for row in gpu {
        let verdict = known.entry(&row.test).or_insert(NOT_YET_RUN);
        // One machine may lack what another had, two devices for example.
        if !(row.verdict.starts_with("not tried") && *verdict == "ok") {
            *verdict = &row.verdict;
        }
    }
    let mut table = format!("{before}{HEAD}\n| --- | --- | --- | --- | --- |\n");
    let mut confirmed = BTreeMap::new();
    for row in rows {
        let verdict = known.get(row.test.as_str()).unwrap_or(&NOT_YET_RUN);
        let Row {
            promise,
            test,
            from,
            verdict: simulated,
        } = row;
        table.push_str(&format!(
            "| {promise} | {test} | {from} | {simulated} | {verdict} |\n"
        ));
        confirmed.insert(row.test.clone(), (*verdict).to_owned());
    }
    Ok((table + after, confirmed))
}

/// The promises of the simulator, each with the facts that a GPU has confirmed, and those that it has not yet.
fn with_confirmations(document: &str, confirmed: &BTreeMap<String, String>) -> Result<String> {
    let (before, rows, after) = split_table(document, PROMISES_HEAD)?;
    let mut table = format!("{before}{PROMISES_HEAD}\n| --- | --- | --- | --- |\n");
    for line in rows {
        let cells = cells(line).unwrap_or_default();
        let [promise, tests, from, facts] = cells[..] else {
            return Err(format!("not four cells: {line}"));
        };
        // What stands behind the names, in parentheses, is for the reader.
        let (names, note) = match facts.find(" (") {
            Some(at) => facts.split_at(at),
            None => (facts, ""),
        };
        if !names.trim_start_matches(NOT_YET).starts_with('`') {
            table.push_str(&format!("{line}\n"));
            continue;
        }
        let (mut passed, mut open) = (Vec::new(), Vec::new());
        for name in names.split('`').skip(1).step_by(2) {
            let verdict = confirmed
                .get(&format!("`{name}`"))
                .ok_or_else(|| format!("there is no fact `{name}`: {line}"))?;
            let list = if verdict == "ok" {
                &mut passed
            } else {
                &mut open
            };
            list.push(format!("`{name}`"));
        }
        let mut parts = Vec::new();
        if !passed.is_empty() {
            parts.push(passed.join(", "));
        }
        if !open.is_empty() {
            parts.push(NOT_YET.to_owned() + &open.join(", "));
        }
        let parts = parts.join("; ");
        table.push_str(&format!(
            "| {promise} | {tests} | {from} | {parts}{note} |\n"
        ));
    }
    Ok(table + after)
}

/// Fails if a promise names a test that does not exist. `…` stands for the rest of a name.
fn missing_tests(document: &str) -> Result {
    let (_, rows, _) = split_table(document, PROMISES_HEAD)?;
    for line in rows {
        let cells = cells(line).unwrap_or_default();
        let mut file = String::new();
        let named = cells.get(1).copied().unwrap_or_default().split('`');
        for name in named.skip(1).step_by(2) {
            let (module, test) = match name.split_once("::") {
                Some((module, test)) => (module, test),
                None if name.starts_with('…') => ("", name),
                None => (name, ""),
            };
            if !module.is_empty() {
                file = read(&root().join(format!("cudart-sim/tests/{module}.rs")))?;
            }
            let there = match (test.strip_prefix('…'), test.strip_suffix('…')) {
                (Some(part), _) => file.contains(part.trim_matches('…')),
                (_, Some(start)) => file.contains(&format!("fn {start}")),
                _ if test.is_empty() => true,
                _ => file.contains(&format!("fn {test}(")),
            };
            if !there {
                return Err(format!("there is no test `{name}`: {line}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, verdict: &str) -> Row {
        Row {
            promise: format!("It {test}s"),
            test: format!("`{test}`"),
            from: "H200".to_owned(),
            verdict: verdict.to_owned(),
        }
    }

    #[test]
    fn rows_are_read_from_what_the_suite_prints_on_the_machine_that_is_meant() {
        let printed = "running 1 test\ntest table ... | promise | test | from | GPU |\n| --- | --- | --- | --- |\n\
                       | It a::bs | `a::b` | H200 | ok |\n\ntest result: ok.\n";
        assert_eq!(verdicts(printed, "GPU"), Ok(vec![row("a::b", "ok")]));
        assert!(verdicts(printed, "simulated").is_err());
    }

    #[test]
    fn the_verdict_of_a_gpu_is_kept_replaced_or_not_there_yet() {
        let old = format!(
            "Text.\n\n{HEAD}\n| --- | --- | --- | --- | --- |\n\
             | old words | `keeps` | H200 | ok | ok |\n| x | `fail` | H200 | ok | ok |\n| x | `gone` | H200 | ok | ok |\n\nMore.\n"
        );
        let rows = [row("fail", "ok"), row("keeps", "ok"), row("new", "failed")];
        let (new, confirmed) =
            with_verdicts(&old, &rows, &[row("fail", "failed: 1")]).unwrap_or_default();
        let want = format!(
            "Text.\n\n{HEAD}\n| --- | --- | --- | --- | --- |\n| It fails | `fail` | H200 | ok | failed: 1 |\n\
             | It keepss | `keeps` | H200 | ok | ok |\n| It news | `new` | H200 | failed | not yet run |\n\nMore.\n"
        );
        assert_eq!(new, want);
        assert_eq!(
            confirmed.get("`new`").map(String::as_str),
            Some(NOT_YET_RUN)
        );
        let lacks = [row("keeps", "not tried: why")];
        let lesser = with_verdicts(&new, &rows, &lacks).unwrap_or_default();
        assert_eq!(lesser.0, want, "a machine that could not try it");
        let again = with_verdicts(&new, &rows, &[]).unwrap_or_default();
        assert_eq!(again.0, want, "nothing changes by itself");
    }

    #[test]
    fn a_promise_says_which_of_its_facts_a_gpu_has_not_confirmed_yet() {
        let confirmed: BTreeMap<String, String> = [("`a`", "ok"), ("`b`", NOT_YET_RUN)]
            .map(|(test, verdict)| (test.to_owned(), verdict.to_owned()))
            .into();
        let table = |cells: [&str; 3]| {
            let rows = cells.map(|cell| format!("| p | `t` | H200 | {cell} |\n"));
            format!(
                "{PROMISES_HEAD}\n| --- | --- | --- | --- |\n{}",
                rows.concat()
            )
        };
        let before = table(["not yet: `a` (some)", "`b`, `a`", "never"]);
        let after = table(["`a` (some)", "`a`; not yet: `b`", "never"]);
        assert_eq!(with_confirmations(&before, &confirmed), Ok(after.clone()));
        assert_eq!(with_confirmations(&after, &confirmed), Ok(after));
        assert!(with_confirmations(&table(["`c`", "", ""]), &confirmed).is_err());
    }
}
