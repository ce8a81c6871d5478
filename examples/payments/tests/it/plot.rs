// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws the panels of a board as lines over time, in plain SVG.

use std::fmt::Write as _;

const COLUMNS: usize = 3;
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 190.0;
/// The part of a panel that contains the lines.
const PLOT: (f64, f64, f64, f64) = (48.0, 30.0, 270.0, 92.0);
const COLOURS: [&str; 8] =
    ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563"];
/// How many entries fit into the legend of a panel.
const ENTRIES: usize = 8;

/// One panel.
pub(crate) struct Panel {
    pub(crate) title: String,
    /// The unit, by Grafana's name.
    pub(crate) unit: String,
    /// Each line's name, and its points: seconds since 1970, and the value.
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Draws all panels over the same time range, from the first point in any of them to `end`.
pub(crate) fn draw(panels: &[Panel], end: f64) -> String {
    let points = panels.iter().flat_map(|panel| &panel.lines).flat_map(|(_, points)| points);
    let time = (points.map(|(time, _)| *time).fold(end - 1.0, f64::min), end);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * panels.len().div_ceil(COLUMNS) as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 \
         {width} {height}\" font-family=\"sans-serif\" font-size=\"10\" fill=\"#111827\">\n<rect \
         width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (at, panel) in panels.iter().enumerate() {
        let (x, y) = ((at % COLUMNS) as f64 * WIDTH, (at / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_panel(&mut svg, panel, time);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel, (start, end): (f64, f64)) {
    let (left, top, width, height) = PLOT;
    let _ = writeln!(
        svg,
        "<text x=\"12\" y=\"18\" font-size=\"12\" font-weight=\"bold\">{}</text>",
        escape(&panel.title)
    );
    if let [(_, points)] = &panel.lines[..]
        && let [(_, value)] = points[..]
    {
        let _ = writeln!(
            svg,
            "<text x=\"165\" y=\"95\" font-size=\"34\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
            COLOURS[0],
            figure(value, &panel.unit)
        );
        return;
    }
    let values = panel.lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
    let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    for part in [0.0, 0.5, 1.0] {
        let y = top + height * (1.0 - part);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#e5e7eb\"/><text x=\"{}\" \
             y=\"{}\" text-anchor=\"end\" fill=\"#6b7280\">{}</text>",
            left + width,
            left - 5.0,
            y + 3.0,
            figure(most * part, &panel.unit)
        );
    }
    for (at, (name, points)) in panel.lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut path = String::new();
        let mut before = None;
        for (time, value) in points.iter().filter(|(_, value)| value.is_finite()) {
            // Leave a gap between points that are far apart in time, for example while the server
            // is down.
            let is_next = before.is_some_and(|before| time - before < 1.5);
            let x = left + (time - start) / (end - start) * width;
            let y = top + height * (1.0 - value / most);
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_next { 'L' } else { 'M' });
            before = Some(*time);
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
             stroke-linecap=\"round\"/>"
        );
        if at < ENTRIES {
            let (x, y) = (14.0 + (at % 2) as f64 * 155.0, 140.0 + (at / 2) as f64 * 13.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"8\" height=\"8\" fill=\"{colour}\"/><text \
                 x=\"{}\" y=\"{y}\">{}</text>",
                y - 8.0,
                x + 12.0,
                escape(name)
            );
        }
    }
}

/// Returns a value with at most three significant digits, and its unit.
fn figure(value: f64, unit: &str) -> String {
    let (value, unit) = match unit {
        "s" if value > 0.0 && value < 1.0 => (value * 1_000.0, " ms"),
        "s" => (value, " s"),
        "reqps" => (value, "/s"),
        "percentunit" => (value * 100.0, " %"),
        _ => (value, ""),
    };
    match value {
        0.0 => format!("0{unit}"),
        value if value < 10.0 => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
