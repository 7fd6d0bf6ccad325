//! What all pictures have: size, title, axes, lines.

use std::fmt::Write;

pub const WIDTH: f64 = 720.0;
pub const HEIGHT: f64 = 300.0;
/// Space around the drawing for axes and the title.
pub const LEFT: f64 = 76.0;
pub const RIGHT: f64 = 16.0;
pub const TOP: f64 = 34.0;
pub const BOTTOM: f64 = 40.0;
/// Text in XML and HTML, whatever it holds.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Neither XML nor people have a use for these.
            control if control.is_control() => safe.push('\u{fffd}'),
            // Those that XML does not know.
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// A picture that is being drawn.
pub struct Frame {
    pub text: String,
    /// What the right and the upper end of the axes stand for.
    pub most: (f64, f64),
}

impl Frame {
    pub fn new(title: &str, says: &str, most_x: f64, most_y: f64) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{}</title>\n<desc>{}</desc>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
            escaped(title),
            escaped(says)
        );
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>",
            escaped(title)
        );
        Self {
            text,
            most: (most_x.max(1.0), most_y.max(1.0)),
        }
    }

    pub fn x(&self, value: f64) -> f64 {
        LEFT + value / self.most.0 * (WIDTH - LEFT - RIGHT)
    }

    pub fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.most.1 * (HEIGHT - TOP - BOTTOM)
    }

    pub fn label(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333\">{text}</text>"
        );
    }

    /// Axes with marks at round values; for bytes (`binary`) these are powers of two.
    pub fn axes(
        &mut self,
        below: &str,
        binary: bool,
        x_name: impl Fn(f64) -> String,
        y_name: impl Fn(f64) -> String,
    ) {
        for value in marks(self.most.1, binary) {
            let y = self.y(value);
            let _ = writeln!(
                self.text,
                "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#999\" stroke-opacity=\".35\"/>",
                WIDTH - RIGHT
            );
            self.label(LEFT - 6.0, y + 4.0, "end", &y_name(value));
        }
        for value in marks(self.most.0, false) {
            let x = self.x(value);
            let anchor = if x > WIDTH - RIGHT - 24.0 {
                "end"
            } else {
                "middle"
            };
            self.label(x, HEIGHT - BOTTOM + 16.0, anchor, &x_name(value));
        }
        self.label((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 7.0, "middle", below);
    }

    /// A line with steps through (moment, value).
    pub fn path(&self, points: impl Iterator<Item = (u32, u64)>) -> String {
        let mut path = String::new();
        for (moment, value) in points {
            let (x, y) = (self.x(f64::from(moment)), self.y(value as f64));
            let _ = if path.is_empty() {
                write!(path, "M{x:.1} {y:.1}")
            } else {
                write!(path, "H{x:.1}V{y:.1}")
            };
        }
        path
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Round values up to `most`, four to nine of them.
fn marks(most: f64, binary: bool) -> Vec<f64> {
    let raw = most / 5.0;
    let step = if binary {
        raw.log2().ceil().exp2()
    } else {
        let ten = 10_f64.powf(raw.log10().floor());
        let round = [1.0, 2.0, 5.0, 10.0].map(|n| n * ten);
        round.into_iter().find(|step| *step >= raw).unwrap_or(raw)
    };
    let step = step.max(1.0);
    let values = (0..12).map(|n| f64::from(n) * step);
    values.take_while(|value| *value <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round() {
        assert_eq!(marks(8406.0, false), [0.0, 2000.0, 4000.0, 6000.0, 8000.0]);
        assert_eq!(marks(1.0, false), [0.0, 1.0]);
        assert_eq!(marks(2048.0, true), [0.0, 512.0, 1024.0, 1536.0, 2048.0]);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escaped("</script>\"'&\u{1}"),
            "&lt;/script&gt;&quot;&#39;&amp;\u{fffd}"
        );
    }
}
