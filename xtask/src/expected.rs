//! Compares what a program printed with the lines that were expected, in which placeholders stand for times, ids and pointers.
//!
//! A line of an expectation is a comment (`# …`), or what one line of output must be, to the byte. Placeholders in it:
//!
//! | | stands for |
//! | --- | --- |
//! | `<number>` | any number, with or without a fraction |
//! | `<ms:waits 100>` | the milliseconds of a call that waits for a stall of 100: at least three quarters of that |
//! | `<ms:returns 100>` | the milliseconds of a call that does not wait for it: less than half of that |
//! | `<id:NAME>` | a number: the same wherever the name is the same, another where it is another |
//! | `<id:NAME above OTHER>` | as that, and greater than `OTHER`, which came before |
//! | `<pointer>`, `<pointer:NAME>` | a hexadecimal number with `0x`; with a name as an id |

use std::{collections::BTreeMap, fmt};

/// One line that is not as expected.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The line's number in what was printed, from 1.
    pub line: usize,
    /// What was expected; none if nothing more was.
    pub expected: Option<String>,
    /// What was printed; none if there was nothing more.
    pub printed: Option<String>,
    /// What is wrong.
    pub why: String,
    /// Only a time is out of its bounds: on a busy machine, not for ever.
    pub only_time: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_end = |line: &Option<String>| line.clone().unwrap_or_else(|| "(nothing)".to_owned());
        writeln!(f, "line {}: {}", self.line, self.why)?;
        writeln!(f, "  expected: {}", or_end(&self.expected))?;
        write!(f, "  printed:  {}", or_end(&self.printed))
    }
}

/// The lines of an expectation that stand for output.
pub fn lines(expected: &str) -> impl Iterator<Item = &str> {
    expected.lines().filter(|line| !line.starts_with('#'))
}

/// Everything in which the output is not as expected, line by line.
pub fn compare(expected: &str, printed: &str) -> Vec<Difference> {
    let mut names = Names::default();
    let (mut expected, mut printed) = (lines(expected), printed.lines());
    let mut differences = Vec::new();
    for line in 1.. {
        let (e, p) = (expected.next(), printed.next());
        let outcome = match (e, p) {
            (None, None) => break,
            (Some(e), Some(p)) => names.line(e, p),
            (Some(_), None) => Err(Wrong::text("a line is missing")),
            (None, Some(_)) => Err(Wrong::text("a line too many")),
        };
        if let Err(wrong) = outcome {
            differences.push(Difference {
                line,
                expected: e.map(str::to_owned),
                printed: p.map(str::to_owned),
                why: wrong.why,
                only_time: wrong.only_time,
            });
        }
    }
    differences
}

/// Why a line does not match.
struct Wrong {
    why: String,
    only_time: bool,
}

impl Wrong {
    fn text(why: impl Into<String>) -> Wrong {
        Wrong {
            why: why.into(),
            only_time: false,
        }
    }
}

/// What stands for what so far.
#[derive(Default)]
struct Names(BTreeMap<String, u64>);

impl Names {
    fn line(&mut self, expected: &str, printed: &str) -> Result<(), Wrong> {
        let (mut e, mut p) = (expected, printed);
        // A time out of its bounds counts only if everything else is right.
        let mut late = None;
        loop {
            let literal = e.find('<').unwrap_or(e.len());
            let (text, rest) = e.split_at(literal);
            p = p
                .strip_prefix(text)
                .ok_or_else(|| Wrong::text(format!("`{}` is not there", text.trim())))?;
            if rest.is_empty() {
                break;
            }
            let (name, behind) = rest
                .strip_prefix('<')
                .and_then(|rest| rest.split_once('>'))
                .ok_or_else(|| Wrong::text("the expectation has a `<` without its `>`"))?;
            let (value, left) = number(p, name.starts_with("pointer"))
                .ok_or_else(|| Wrong::text(format!("there is no number for <{name}>")))?;
            match self.placeholder(name, value) {
                Err(wrong) if wrong.only_time => late = late.or(Some(wrong)),
                other => other?,
            }
            (e, p) = (behind, left);
        }
        if !p.is_empty() {
            return Err(Wrong::text(format!("goes on with `{p}`")));
        }
        late.map_or(Ok(()), Err)
    }

    fn placeholder(&mut self, name: &str, text: &str) -> Result<(), Wrong> {
        let unknown = || Wrong::text(format!("<{name}> is no placeholder"));
        let (kind, argument) = name.split_once(':').unwrap_or((name, ""));
        match (kind, argument) {
            ("number" | "pointer", "") => Ok(()),
            ("ms", shape) => {
                let (shape, stall) = shape.split_once(' ').ok_or_else(unknown)?;
                let stall: f64 = stall.parse().map_err(|_| unknown())?;
                let time: f64 = text.parse().map_err(|_| unknown())?;
                let (right, bound) = match shape {
                    "waits" => (time >= stall * 0.75, format!("at least {}", stall * 0.75)),
                    "returns" => (time < stall * 0.5, format!("less than {}", stall * 0.5)),
                    _ => return Err(unknown()),
                };
                let wrong = || Wrong {
                    why: format!("{time} ms, and {bound} was expected"),
                    only_time: true,
                };
                if right { Ok(()) } else { Err(wrong()) }
            }
            ("id" | "pointer", relation) => {
                let (own, above) = relation
                    .split_once(" above ")
                    .map_or((relation, None), |(own, above)| (own, Some(above)));
                let hex = text.strip_prefix("0x");
                let value = match hex {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => text.parse(),
                };
                let value =
                    value.map_err(|_| Wrong::text(format!("`{text}` is no whole number")))?;
                self.relate(kind, own, value)?;
                if let Some(above) = above {
                    let other = self.0.get(&format!("{kind}:{above}")).ok_or_else(unknown)?;
                    if value <= *other {
                        return Err(Wrong::text(format!("{own} is not above {above} ({other})")));
                    }
                }
                Ok(())
            }
            _ => Err(unknown()),
        }
    }

    /// The same name, the same value; another name, another value.
    fn relate(&mut self, kind: &str, name: &str, value: u64) -> Result<(), Wrong> {
        let key = format!("{kind}:{name}");
        let kin = |other: &str| other.split(':').next() == Some(kind);
        match self.0.get(&key) {
            Some(known) if *known != value => {
                Err(Wrong::text(format!("{name} was {known} before")))
            }
            Some(_) => Ok(()),
            None => {
                let equal = self.0.iter().find(|(k, v)| kin(k) && **v == value);
                if let Some((other, _)) = equal {
                    return Err(Wrong::text(format!("{name} is equal to {other}")));
                }
                self.0.insert(key, value);
                Ok(())
            }
        }
    }
}

/// The number at the beginning, and what follows it.
fn number(text: &str, hexadecimal: bool) -> Option<(&str, &str)> {
    let end = |text: &str, of: fn(char) -> bool| text.find(|c| !of(c)).unwrap_or(text.len());
    let digits = |text: &str| end(text, |c| c.is_ascii_digit());
    let len = if hexadecimal {
        let hex = end(text.strip_prefix("0x")?, |c| c.is_ascii_hexdigit());
        (hex > 0).then_some(hex + 2)?
    } else {
        let whole = digits(text);
        let fraction = text.get(whole..)?.strip_prefix('.').map_or(0, digits);
        (whole > 0).then_some(whole + if fraction > 0 { fraction + 1 } else { 0 })?
    };
    text.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::{Difference, compare};

    fn whys(expected: &str, printed: &str) -> Vec<String> {
        let short = |d: Difference| format!("{}: {}", d.line, d.why);
        compare(expected, printed).into_iter().map(short).collect()
    }

    fn holds(expected: &str, printed: &str) -> bool {
        compare(expected, printed).is_empty()
    }

    #[test]
    fn a_line_without_placeholders_is_compared_to_the_byte() {
        assert!(holds("err 0  ok\n", "err 0  ok\n"));
        for printed in [
            "err 0 ok",
            "err 1  ok",
            "err 0  ok ",
            " err 0  ok",
            "",
            "err 0  o",
        ] {
            assert!(!holds("err 0  ok", printed), "{printed}");
        }
    }

    #[test]
    fn comments_are_no_lines_and_lines_must_not_be_too_many_or_too_few() {
        assert!(holds("# why\na\n# why\nb\n", "a\nb\n"));
        assert_eq!(whys("a\nb", "a"), ["2: a line is missing"]);
        assert_eq!(whys("a", "a\n\n"), ["2: a line too many"]);
        let one = compare("a\nb\nc", "a\nB\nc");
        assert_eq!(one.len(), 1);
        let text = one.first().map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("expected: b\n  printed:  B"), "{text}");
    }

    #[test]
    fn a_number_has_digits_and_perhaps_a_fraction() {
        for printed in ["took 7 ms", "took 0.06 ms", "took 1234.5 ms"] {
            assert!(holds("took <number> ms", printed), "{printed}");
        }
        for printed in [
            "took  ms",
            "took x ms",
            "took .5 ms",
            "took 5. ms",
            "took -1 ms",
        ] {
            assert!(!holds("took <number> ms", printed), "{printed}");
        }
    }

    #[test]
    fn a_call_that_waits_takes_three_quarters_of_the_stall_and_one_that_returns_less_than_half() {
        let waits = |time| holds("<ms:waits 100> ms", &format!("{time} ms"));
        assert!(waits("75") && waits("100.2") && waits("3000") && !waits("74.9"));
        let returns = |time| holds("<ms:returns 500> ms", &format!("{time} ms"));
        assert!(returns("0.0") && returns("249.9") && !returns("250") && !returns("500"));
    }

    #[test]
    fn a_line_whose_time_alone_is_wrong_says_so() {
        let only_time = |expected, printed| {
            let found = compare(expected, printed);
            found.iter().map(|d| d.only_time).collect::<Vec<_>>()
        };
        let line = "err 0 <ms:returns 100> ms, then <number>";
        assert_eq!(only_time(line, "err 0 60 ms, then 1"), [true]);
        assert_eq!(only_time(line, "err 1 60 ms, then 1"), [false]);
        assert_eq!(only_time(line, "err 0 60 ms, then x"), [false]);
        assert_eq!(only_time(line, "err 0 60 ms, then 1 more"), [false]);
    }

    #[test]
    fn ids_of_one_name_are_equal_and_of_two_names_are_not() {
        let ids = "<id:a> <id:b> <id:a>\n<id:b>";
        assert!(holds(ids, "17 7 17\n7"));
        assert_eq!(whys(ids, "17 7 18\n7"), ["1: a was 17 before"]);
        assert_eq!(whys(ids, "7 7 7\n8"), ["1: b is equal to id:a"]);
        assert_eq!(whys(ids, "17 7 17\n8"), ["2: b was 7 before"]);
        assert!(!holds("<id:a>", "1.5"));
    }

    #[test]
    fn an_id_can_be_asked_to_be_above_another() {
        assert!(holds("<id:a> <id:b above a>", "17 18"));
        let below = whys("<id:a> <id:b above a>", "17 16");
        assert_eq!(below, ["1: b is not above a (17)"]);
    }

    #[test]
    fn pointers_are_hexadecimal_and_no_relatives_of_ids() {
        assert!(holds(
            "<pointer>, <pointer:p> <pointer:p>",
            "0x1, 0xaF 0xaF"
        ));
        assert!(!holds("<pointer:p> <pointer:q>", "0x10 0x10"));
        assert!(!holds("<pointer>", "10") && !holds("<pointer>", "0x"));
        assert!(holds("<id:a> <pointer:b>", "16 0x10"));
    }

    #[test]
    fn a_placeholder_that_does_not_exist_never_matches() {
        for line in [
            "<nothing>",
            "<ms:sits 100>",
            "<ms:waits>",
            "<id:a above b>",
            "<number",
        ] {
            assert!(!holds(line, "100"), "{line}");
        }
    }
}
