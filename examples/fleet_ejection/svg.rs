//! A plot of lines over seconds, as SVG without scripts or fonts of its own, in colours that can be
//! read on a light and on a dark ground.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 44.0;

/// What one line shows, one value a second.
pub(crate) struct Line {
    name: &'static str,
    class: &'static str,
    values: Vec<f64>,
}

impl Line {
    pub(crate) const fn new(name: &'static str, class: &'static str, values: Vec<f64>) -> Self {
        Self {
            name,
            class,
            values,
        }
    }
}

/// Lines, and levels that are marked.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<(&'static str, f64)>,
}

impl Plot {
    pub(crate) fn draw(&self) -> String {
        let values = self.lines.iter().flat_map(|line| line.values.iter());
        let marks = self.marks.iter().map(|(_, level)| level);
        let highest = values.chain(marks).copied().fold(0.0, f64::max);
        let step = step(highest);
        let top = (highest / step).ceil() * step;
        let longest = self.lines.iter().map(|line| line.values.len()).max();
        let seconds = f64::from(u32::try_from(longest.unwrap_or(0)).unwrap_or(0));
        let x = |second: f64| LEFT + second / seconds * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);

        let mut svg = String::new();
        let mut put = |text: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _written = svg.write_fmt(text);
            svg.push('\n');
        };
        put(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
            self.title
        ));
        put(format_args!("{STYLE}"));
        put(format_args!(
            r#"<text class="title" x="{LEFT}" y="20">{}</text>"#,
            self.title
        ));
        let mut level = 0.0;
        while level <= top + step / 2.0 {
            let (at, right) = (y(level), WIDTH - RIGHT);
            put(format_args!(
                r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#
            ));
            put(format_args!(
                r#"<text class="end" x="{}" y="{:.1}">{}</text>"#,
                LEFT - 6.0,
                at + 4.0,
                number(level)
            ));
            level += step;
        }
        let mut second = 0.0;
        while second <= seconds {
            put(format_args!(
                r#"<text class="middle" x="{:.1}" y="{}">{second}</text>"#,
                x(second),
                HEIGHT - BOTTOM + 16.0
            ));
            second += 20.0;
        }
        put(format_args!(
            r#"<text class="middle" x="{}" y="{}">{}</text>"#,
            LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
            HEIGHT - 8.0,
            self.x
        ));
        put(format_args!(
            r#"<text class="middle" transform="translate(14 {}) rotate(-90)">{}</text>"#,
            TOP + (HEIGHT - TOP - BOTTOM) / 2.0,
            self.y
        ));
        for (name, level) in &self.marks {
            let (at, right) = (y(*level), WIDTH - RIGHT);
            put(format_args!(
                r#"<line class="mark" x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#
            ));
            put(format_args!(
                r#"<text class="end" x="{right}" y="{:.1}">{name}</text>"#,
                at - 4.0
            ));
        }
        for line in &self.lines {
            let mut points = String::new();
            for (second, value) in (0_u32..).zip(&line.values) {
                let (from, to) = (x(f64::from(second)), x(f64::from(second) + 1.0));
                let at = y(*value);
                let _written = write!(points, "{from:.1},{at:.1} {to:.1},{at:.1} ");
            }
            put(format_args!(
                r#"<polyline class="line {}" points="{}"/>"#,
                line.class,
                points.trim_end()
            ));
        }
        for (index, line) in (0_u32..).zip(&self.lines) {
            let from = LEFT + 200.0 * f64::from(index);
            put(format_args!(
                r#"<line class="line {}" x1="{from}" y1="36" x2="{}" y2="36"/>"#,
                line.class,
                from + 24.0
            ));
            put(format_args!(
                r#"<text x="{}" y="40">{}</text>"#,
                from + 30.0,
                line.name
            ));
        }
        put(format_args!("</svg>"));
        svg
    }
}

/// A round distance of grid lines, four to eight of them.
fn step(highest: f64) -> f64 {
    let rough = (highest / 5.0).max(1e-9);
    let unit = 10_f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|n| n * unit >= rough);
    times.unwrap_or(10.0) * unit
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

const STYLE: &str = "<style>
text { font: 12px sans-serif; fill: #333 }
.title { font-weight: bold; font-size: 14px }
.end { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #888; stroke-opacity: 0.3 }
.mark { stroke: #c22; stroke-dasharray: 6 4 }
.line { fill: none; stroke-width: 2 }
.a { stroke: #1668c7 }
.b { stroke: #d9770a; stroke-opacity: 0.75 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  .a { stroke: #6db1ff }
  .b { stroke: #ffb057 }
  .mark { stroke: #ff7b7b }
}
</style>";
