//! The links in the documents of the tree: whether the relative ones lead to files.

use crate::shell::{Result, root, run_quietly, say};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Checks the relative links of every document.
pub fn check() -> Result {
    let documents = documents(&root())?;
    let mut dead = Vec::new();
    let mut links = 0;
    for document in &documents {
        let shown = document.display();
        let file = root().join(document);
        let text = fs::read_to_string(&file).map_err(|e| format!("{shown}: {e}"))?;
        for (line, target) in relative_links(&text) {
            links += 1;
            let to = file.with_file_name("").join(&target);
            if !to.exists() {
                dead.push(format!("{shown}:{line}: `{target}` leads to no file"));
            }
        }
    }
    if !dead.is_empty() {
        return Err(dead.join("\n"));
    }
    let count = documents.len();
    say(format!("{links} links in {count} documents lead to files"));
    Ok(())
}

/// The documents that git knows or would add; without git, all but those in hidden folders and in `target`.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-co", "--exclude-standard", "-z", "*.md"]);
    let mut found = Vec::new();
    match run_quietly(git.current_dir(root)) {
        Ok(names) => found.extend(
            names
                .split('\0')
                .filter(|name| !name.is_empty())
                .map(PathBuf::from)
                .filter(|name| root.join(name).is_file()),
        ),
        Err(_) => walk(root, Path::new(""), &mut found)?,
    }
    Ok(found)
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (
            folder.join(entry.file_name()),
            entry.file_type().map_err(failed)?,
        );
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            walk(root, &path, found)?;
        } else if kind.is_file() && name.ends_with(".md") {
            found.push(path);
        }
    }
    Ok(())
}

/// The targets of a document's relative links, without their fragments, each with its line. Code has no links.
fn relative_links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence = None;
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|m| start.starts_with(m));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(_), _) if fence == mark => fence = None,
            (None, None) => {
                let targets = targets(&without_code(line));
                found.extend(targets.into_iter().map(|target| (number + 1, target)));
            }
            _ => {}
        }
    }
    found
}

/// The line without what stands between backquotes.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    let kept = parts.iter().enumerate().filter(|(i, _)| {
        // An odd part is code, unless nothing closes it.
        i % 2 == 0 || *i == last
    });
    kept.map(|(_, part)| *part).collect::<Vec<_>>().join("``")
}

/// `](target)` and `[name]: target` of a line, as far as they are relative.
fn targets(line: &str) -> Vec<String> {
    let mut raw: Vec<&str> = line
        .split("](")
        .skip(1)
        .map(|rest| match rest.strip_prefix('<') {
            Some(rest) => rest.split('>').next().unwrap_or_default(),
            None => rest.split([')', ' ']).next().unwrap_or_default(),
        })
        .collect();
    let definition = line.trim_start().strip_prefix('[');
    if let Some((_, target)) = definition.and_then(|rest| rest.split_once("]: ")) {
        let target = target.split_whitespace().next().unwrap_or_default();
        raw.push(target.trim_matches(['<', '>']));
    }
    raw.into_iter()
        .filter(|target| !has_scheme(target))
        .filter_map(|target| target.split(['#', '?']).next())
        .filter(|target| !target.is_empty())
        .map(|target| target.replace("%20", " "))
        .collect()
}

/// Whether a target begins as `https:` and `mailto:` do.
fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found_and_others_left_out() {
        let text = "\
See [a](docs/a.md), ![b](<b c.png> \"title\") and [c](../c.md#part).
[web](https://example.com/x.md) [mail](mailto:a@b.c) [here](#here)
`[code](no.md)` and [`d`](d.md)
```md
[fenced](no.md)
```
[e]: e%20f.md \"title\"
";
        let found = relative_links(text);
        let found: Vec<_> = found.iter().map(|(n, t)| (*n, t.as_str())).collect();
        assert_eq!(
            found,
            [
                (1, "docs/a.md"),
                (1, "b c.png"),
                (1, "../c.md"),
                (3, "d.md"),
                (7, "e f.md")
            ]
        );
    }

    #[test]
    fn documents_are_found_without_git() {
        let mut found = Vec::new();
        walk(&root(), Path::new(""), &mut found).expect("readable");
        assert!(found.contains(&PathBuf::from("README.md")), "{found:?}");
        assert!(found.contains(&PathBuf::from("docs/design.md")));
    }
}
