//! How many programs the ordering checker is tried with by hand, by subject: with a mistake that it has to find, and
//! without. `docs/simulator.md` has the table; `cargo test -p cudart-sim --test ordering_counts -- --nocapture` prints it.

const SOURCES: [&str; 5] = [
    include_str!("ordering_clean.rs"),
    include_str!("ordering_races.rs"),
    include_str!("ordering_rules.rs"),
    include_str!("ordering_reports.rs"),
    include_str!("ordering_mapped.rs"),
];

struct Program {
    kind: String,
    body: String,
}

/// All programs of the `programs!` blocks.
fn programs() -> Vec<Program> {
    let mut found: Vec<Program> = Vec::new();
    for source in SOURCES {
        let mut kind = String::new();
        let mut inside: Option<&str> = None;
        for line in source.lines() {
            let text = line.trim_start();
            let indent = &line[..line.len() - text.len()];
            if let Some(rest) = text.strip_prefix("programs! { ") {
                kind = rest.trim_end_matches(':').to_owned();
            } else if inside == Some(indent) && text == "}" {
                inside = None;
            } else if inside.is_some() {
                let last = found.last_mut().expect("inside of one");
                last.body += line;
                last.body += "\n";
            } else if !indent.is_empty() && text.starts_with("fn ") && text.ends_with("() {") {
                inside = Some(indent);
                found.push(Program {
                    kind: kind.clone(),
                    body: String::new(),
                });
            }
        }
    }
    found
}

impl Program {
    fn has(&self, any: &[&str]) -> bool {
        any.iter().any(|word| self.body.contains(word))
    }

    fn count(&self, word: &str) -> usize {
        self.body.matches(word).count()
    }

    fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&&*self.kind)
    }

    fn clean(&self) -> bool {
        self.kind == "clean"
    }

    fn reports(&self) -> bool {
        self.has(&["take(", "on_allocate(", "on_free("])
    }

    fn maps(&self) -> bool {
        self.has(&["Mapped::new", "reserve("])
    }
}

type Subject = (&'static str, fn(&Program) -> bool);

const SUBJECTS: [Subject; 15] = [
    ("the legacy default stream", |p| {
        p.has(&[
            "LEGACY",
            "sync(null_mut())",
            "wait(null_mut()",
            "K, null_mut())",
        ])
    }),
    ("per-thread default streams", |p| p.has(&["PER_THREAD"])),
    ("blocking streams", |p| p.has(&["blocking_stream()"])),
    ("non-blocking streams", |p| {
        p.has(&["two()"]) || p.count("stream()") > p.count("blocking_stream()")
    }),
    ("two waits or more among three streams or more", |p| {
        p.count("behind(") + p.count("wait(") >= 2
            && 2 * p.count("two()") + p.count("stream()") >= 3
    }),
    ("waits of the host: stream, event, device, queries", |p| {
        p.has(&["sync(", "Synchronize(", "Query("])
    }),
    ("copies of pageable memory", |p| {
        p.has(&["host = ", "host) ="])
    }),
    ("2-D copies and fills", |p| p.has(&["2D"])),
    (
        "memory freed that a copy, a fill or a kernel uses",
        |p| match p.clean() {
            true => p.has(&["cudaFree"]),
            false => p.is(&["FreedInUse"]),
        },
    ),
    ("memory used before its allocation", |p| match p.clean() {
        true => p.has(&["malloc_async(", "take("]),
        false => p.is(&["UsedBeforeAllocation"]),
    }),
    (
        "reported blocks: reuse by another stream or by the host",
        |p| p.reports() && p.is(&["clean", "ReusedInUse", "FreedInUse"]),
    ),
    ("reported blocks: use after their free", |p| {
        match p.clean() {
            true => p.has(&["give(", "on_free("]),
            false => p.is(&["UsedAfterFree"]),
        }
    }),
    (
        "reported blocks: past their ends, or where none is",
        |p| match p.clean() {
            true => p.has(&["segment(4"]),
            false => p.is(&["NotAllocated", "Overlap"]),
        },
    ),
    ("mapped memory: moved, or at two addresses", Program::maps),
    ("graphs", |p| p.has(&["launch_graph(", "graph("])),
];

#[test]
fn the_documentation_says_how_many_programs_are_tried() {
    let programs = programs();
    let count = |subject: &dyn Fn(&Program) -> bool| {
        let (clean, wrong): (Vec<&Program>, Vec<&Program>) = programs
            .iter()
            .filter(|p| subject(p))
            .partition(|p| p.clean());
        (wrong.len(), clean.len())
    };
    let mut rows = Vec::new();
    for (name, subject) in SUBJECTS {
        let (wrong, clean) = count(&subject);
        assert!(wrong > 0 && clean > 0, "{name}: {wrong}, {clean}");
        rows.push(format!("| {name} | {wrong} | {clean} |"));
    }
    let (wrong, clean) = count(&|_| true);
    assert!(wrong >= 25 && clean >= 25);
    rows.push(format!(
        "| all programs (one counts under each of its subjects) | {wrong} | {clean} |"
    ));
    println!("{}", rows.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulator.md");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("not compared: this is not the whole repository");
        return;
    };
    for row in rows {
        assert!(text.contains(&row), "docs/simulator.md lacks: {row}");
    }
}
