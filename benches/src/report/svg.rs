// SPDX-License-Identifier: MIT OR Apache-2.0
//! Horizontal bars in plain SVG, readable on light and dark pages.

use std::fmt::Write as _;

use super::number;

const WIDTH: f64 = 720.0;
const LABELS: f64 = 230.0;
const FIGURES: f64 = 90.0;
const BAR: f64 = 18.0;

/// A group of bars under one scale.
#[derive(Debug, Clone)]
pub struct Plot {
    title: String,
    unit: &'static str,
    bars: Vec<(String, f64)>,
    goal: Option<f64>,
}

impl Plot {
    /// Creates a group without bars.
    pub fn new(title: impl Into<String>, unit: &'static str) -> Self {
        Self { title: title.into(), unit, bars: Vec::new(), goal: None }
    }

    /// Adds a bar. The first bar is ours and has a colour; the others are those that it is compared
    /// with.
    #[must_use]
    pub fn bar(mut self, label: impl Into<String>, value: f64) -> Self {
        self.bars.push((label.into(), value));
        self
    }

    /// Adds a line across the bars at the goal.
    #[must_use]
    pub fn goal(mut self, at: f64) -> Self {
        self.goal = Some(at);
        self
    }
}

/// Draws one picture of all groups.
pub(super) fn draw(title: &str, plots: &[Plot]) -> String {
    let mut body = String::new();
    let mut y = 34.0;
    let _ = writeln!(
        body,
        r#"<text x="12" y="22" font-size="15" font-weight="bold">{}</text>"#,
        escape(title)
    );
    for plot in plots {
        y += 20.0;
        let _ = writeln!(
            body,
            r#"<text x="12" y="{y}" font-weight="bold">{} ({})</text>"#,
            escape(&plot.title),
            escape(plot.unit)
        );
        let top = y + 8.0;
        let most = plot.bars.iter().map(|bar| bar.1).chain(plot.goal).fold(0.0, f64::max);
        let x =
            |value: f64| if most > 0.0 { value / most * (WIDTH - LABELS - FIGURES) } else { 0.0 };
        y = top;
        for (at, (label, value)) in plot.bars.iter().enumerate() {
            let colour = if at == 0 { "#2563eb" } else { "#9ca3af" };
            let _ = writeln!(
                body,
                r#"<text x="{right}" y="{text}" text-anchor="end">{label}</text>
<rect x="{LABELS}" y="{y}" width="{width:.1}" height="{height}" fill="{colour}"/>
<text x="{after:.1}" y="{text}">{figure}</text>"#,
                right = LABELS - 8.0,
                text = y + 13.0,
                label = escape(label),
                width = x(*value),
                height = BAR - 4.0,
                after = LABELS + x(*value) + 6.0,
                figure = number(*value),
            );
            y += BAR;
        }
        if let Some(goal) = plot.goal {
            let at = LABELS + x(goal);
            let _ = writeln!(
                body,
                r##"<line x1="{at:.1}" y1="{top}" x2="{at:.1}" y2="{y}" stroke="#dc2626" stroke-width="2" stroke-dasharray="4 2"/>"##
            );
        }
    }
    y += 16.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12" fill="#111827">
<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>
{body}</svg>
"##
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_share_the_scale_of_the_longest() {
        let svg = draw(
            "a < b",
            &[Plot::new("t", "ns").bar("ours", 50.0).bar("floor", 100.0).goal(100.0)],
        );
        assert!(svg.contains(r#"width="200.0""#) && svg.contains(r#"width="400.0""#), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("stroke-dasharray"));
    }
}
