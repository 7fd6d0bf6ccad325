//! Text tables and numbers for people: what the subcommands print on standard output.

use std::fmt;

/// Columns of a terminal.
const WIDTH: usize = 80;

/// A table with right-aligned columns after a left-aligned first one. A heading may have two lines.
pub struct Table {
    headings: Vec<[String; 2]>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with one column per heading; `\n` in a heading starts its second line.
    pub fn new(headings: &[&str]) -> Self {
        let headings = headings
            .iter()
            .map(|heading| match heading.split_once('\n') {
                Some((above, below)) => [above.to_owned(), below.to_owned()],
                None => [String::new(), (*heading).to_owned()],
            })
            .collect();
        Self {
            headings,
            rows: Vec::new(),
        }
    }

    /// Adds a row; what it has beyond the headings is not shown.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn width(&self, column: usize) -> usize {
        let heading = self.headings[column]
            .iter()
            .map(|text| text.chars().count());
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let cells = cells.map(|cell| cell.chars().count());
        heading.chain(cells).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.headings.len()).map(|c| self.width(c)).collect();
        // Two spaces between columns where the line still fits a terminal, else one.
        let wide = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) <= WIDTH;
        let gap = if wide { "  " } else { " " };
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (column, (cell, &width)) in cells.zip(&widths).enumerate() {
                if column == 0 {
                    text += &format!("{cell:<width$}");
                } else {
                    text += &format!("{gap}{cell:>width$}");
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        for level in 0..2 {
            if self
                .headings
                .iter()
                .any(|heading| !heading[level].is_empty())
            {
                line(&mut self.headings.iter().map(|heading| heading[level].as_str()))?;
            }
        }
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// Bytes as MiB with one decimal, without the unit.
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Bytes with the unit that suits them: `16.0 MiB`, `1.9 GiB`.
pub fn people(bytes: u64) -> String {
    match bytes {
        0..1024 => counted(bytes as usize, "byte"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{} MiB", mib(bytes)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// The text in lines that fit a terminal; all but the first are indented. A longer word stays whole.
pub fn wrapped(text: &str) -> String {
    wrapped_below(text, 0, 2)
}

/// As [`wrapped`], where the first line begins in the column `width`, and all others in the column `indent`.
pub fn wrapped_below(text: &str, mut width: usize, indent: usize) -> String {
    let mut lines = String::new();
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if !lines.is_empty() && width + 1 + len > WIDTH {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            width = indent;
        } else if !lines.is_empty() {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += len;
    }
    lines
}

/// A share as a percentage; a dash where there is nothing to share.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "–".to_owned()
    } else {
        format!("{:.1}%", part as f64 * 100.0 / whole as f64)
    }
}

/// `1 stream`, `4 streams`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// CUDA's version number as people write it: 13000 is 13.0.
pub fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["mode", "first\nns/op", "n"]);
        table.row(vec!["pool".into(), "12.5".into(), "100000".into()]);
        table.row(vec!["cuda-pool".into(), "12345.0".into(), "7".into()]);
        assert_eq!(
            table.to_string(),
            "             first\n\
             mode         ns/op       n\n\
             pool          12.5  100000\n\
             cuda-pool  12345.0       7\n"
        );
    }

    #[test]
    fn a_table_too_wide_for_a_terminal_is_drawn_closer() {
        let mut table = Table::new(&["a", "b", "c"]);
        table.row(vec!["x".repeat(30), "y".repeat(30), "z".repeat(18)]);
        let text = table.to_string();
        assert_eq!(text.lines().last().map(|l| l.chars().count()), Some(80));
    }

    #[test]
    fn long_lines_are_broken_at_spaces() {
        assert_eq!(wrapped("short line"), "short line");
        assert_eq!(wrapped(""), "");
        let text = "word ".repeat(40);
        let broken = wrapped(&text);
        assert!(broken.lines().all(|line| line.len() <= 80), "{broken}");
        assert!(
            broken.lines().skip(1).all(|line| line.starts_with("  w")),
            "{broken}"
        );
        assert_eq!(broken.split_whitespace().count(), 40);
        let long = "x".repeat(90);
        assert_eq!(wrapped(&format!("a {long}")), format!("a\n  {long}"));
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(mib(0), "0.0");
        assert_eq!(mib(1_572_864), "1.5");
        assert_eq!(mib(u64::MAX), "17592186044416.0");
        assert_eq!(people(1), "1 byte");
        assert_eq!(people(1536), "1.5 KiB");
        assert_eq!(people(16 << 20), "16.0 MiB");
        assert_eq!(people(24 << 30), "24.0 GiB");
        assert_eq!(percent(1, 3), "33.3%");
        assert_eq!(percent(0, 0), "–");
        assert_eq!(counted(1, "stream"), "1 stream");
        assert_eq!(counted(0, "stream"), "0 streams");
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12090), "12.9");
    }
}
