//! Draws a chart of lines as SVG and as PNG, with the font that is built in: no library of the system is needed.

use std::fs;
use std::path::Path;
use std::sync::Once;

use anyhow::{Context, Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::register_font;

use crate::broker::System;

const SIZE: (u32, u32) = (960, 540);
const FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-ASCII.ttf");
const FAMILY: &str = "sans-serif";
const TITLE_SIZE: u32 = 20;
const LABEL_SIZE: u32 = 14;
/// Nearer to 100 % than this no percentile is drawn.
const BEYOND_MIN: f64 = 1e-6;

/// The quantity and scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Percentiles, equally far apart for each tenfold nearness to 100 %.
    Percentile,
    /// Microseconds, logarithmic.
    Latency,
    /// Messages per second, from 0.
    Rate,
    /// MiB, logarithmic.
    Memory,
    /// Seconds.
    Seconds,
}

/// The line of one system.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) system: System,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over two axes.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(super) title: String,
    pub(super) x: Unit,
    pub(super) y: Unit,
    pub(super) lines: Vec<Line>,
}

impl Unit {
    fn title(self) -> &'static str {
        match self {
            Self::Percentile => "percentile",
            Self::Latency => "latency (logarithmic)",
            Self::Rate => "messages/s",
            Self::Memory => "MiB (logarithmic)",
            Self::Seconds => "seconds",
        }
    }

    fn is_logarithmic(self) -> bool {
        matches!(self, Self::Latency | Self::Memory)
    }

    /// Returns the place of a value on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Percentile => -(1.0 - value / 100.0).max(BEYOND_MIN).log10(),
            // A logarithm needs a value above 0.
            Self::Latency | Self::Memory => value.max(0.01),
            Self::Rate | Self::Seconds => value,
        }
    }

    /// Returns the label of a place.
    fn label(self, place: f64) -> String {
        match self {
            Self::Percentile if (place - place.round()).abs() > 1e-9 => String::new(),
            Self::Percentile => percentile_label(place.round() as usize),
            Self::Latency if place >= 1e6 => format!("{} s", place / 1e6),
            Self::Latency if place >= 1e3 => format!("{} ms", place / 1e3),
            Self::Latency => format!("{place} us"),
            Self::Rate if place >= 1e3 => format!("{} k", place / 1e3),
            Self::Rate | Self::Memory | Self::Seconds => format!("{place}"),
        }
    }
}

/// "0 %", "90 %", "99 %", "99.9 %" and so on, by the number of nines.
fn percentile_label(nines: usize) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more - 2)),
    }
}

fn colour(system: System) -> RGBColor {
    match system {
        System::KafkaSecured => RGBColor(0xfd, 0x8d, 0x3c),
        System::MainstemSecured => RGBColor(0x41, 0xab, 0x5d),
        System::Kafka => RGBColor(0xd9, 0x48, 0x01),
        System::Mainstem => RGBColor(0x08, 0x51, 0x9c),
        System::MainstemSame => RGBColor(0x31, 0x82, 0xbd),
        System::MainstemSplit => RGBColor(0x75, 0x6b, 0xb1),
        System::Probe => RGBColor(0x63, 0x63, 0x63),
        System::Chronicle => RGBColor(0x8c, 0x51, 0x0a),
        System::Queue => RGBColor(0x08, 0x51, 0x9c),
    }
}

impl Chart {
    /// Writes `NAME.svg` into a folder.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<()> {
        let svg = folder.join(format!("{name}.svg"));
        fs::write(&svg, self.svg()?).with_context(|| format!("{} cannot be written", svg.display()))
    }

    fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, SIZE).into_drawing_area())?;
        Ok(text)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, plotters::coord::Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        register_built_in_font();
        let (low, high) = self.y_range();
        let drawn = if self.y.is_logarithmic() {
            self.draw_over(area, (low..high).log_scale())
        } else {
            self.draw_over(area, low..high)
        };
        drawn.map_err(|error| anyhow!("a plot cannot be drawn: {error}"))
    }

    fn draw_over<B: DrawingBackend, Y>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        y_range: Y,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FAMILY, TITLE_SIZE))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(self.x_range(), y_range)?;
        let (x_label, y_label) = (|place: &f64| self.x.label(*place), |place: &f64| self.y.label(*place));
        chart
            .configure_mesh()
            .x_desc(self.x.title())
            .y_desc(self.y.title())
            .x_label_formatter(&x_label)
            .y_label_formatter(&y_label)
            .label_style((FAMILY, LABEL_SIZE))
            .light_line_style(BLACK.mix(0.06))
            .bold_line_style(BLACK.mix(0.15))
            .draw()?;
        for line in &self.lines {
            let colour = colour(line.system);
            let points = line.points.iter().map(|&(x, y)| (self.x.place(x), self.y.place(y)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(line.system.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font((FAMILY, LABEL_SIZE))
            .draw()?;
        area.present()
    }

    fn x_range(&self) -> std::ops::Range<f64> {
        let places = self.points().map(|(x, _)| self.x.place(x));
        let (low, high) = ends(places);
        low..high.max(low + 1.0)
    }

    /// Returns the range of the vertical axis, with some space above; from 0 unless it is logarithmic.
    fn y_range(&self) -> (f64, f64) {
        let (low, high) = ends(self.points().map(|(_, y)| self.y.place(y)));
        if self.y.is_logarithmic() { (low / 1.5, high * 1.5) } else { (0.0, (high * 1.1).max(1.0)) }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flat_map(|line| line.points.iter().copied())
    }
}

/// The lowest and the highest; (0, 1) of nothing.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })
        .unwrap_or((0.0, 1.0))
}

fn register_built_in_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let registered = register_font(FAMILY, FontStyle::Normal, FONT);
        assert!(registered.is_ok(), "the built-in font is one");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: Unit, y: Unit) -> Chart {
        let points = |factor: f64| (0..40).map(move |at| (f64::from(at) * 2.5, factor * f64::from(at * at)));
        let lines = [(System::Kafka, 50.0), (System::Mainstem, 1.0)];
        let lines = lines.map(|(system, factor)| Line { system, points: points(factor).collect() });
        Chart { title: "a title".to_owned(), x, y, lines: lines.into() }
    }

    #[test]
    fn plots_are_drawn_with_every_unit() {
        let folder = tempfile::tempdir().unwrap();
        for (x, y) in
            [(Unit::Percentile, Unit::Latency), (Unit::Seconds, Unit::Rate), (Unit::Seconds, Unit::Memory)]
        {
            chart(x, y).write(folder.path(), "chart").unwrap();
            let svg = fs::read_to_string(folder.path().join("chart.svg")).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for word in ["a title", "kafka", "mainstem", x.title(), y.title()] {
                assert!(svg.contains(word), "{word} is not in the SVG of {y:?}");
            }
        }
    }

    #[test]
    fn labels_are_round_and_have_units() {
        assert_eq!([0, 1, 2, 3, 4].map(percentile_label), ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert_eq!(Unit::Percentile.label(0.5), "");
        assert_eq!(Unit::Percentile.label(Unit::Percentile.place(99.0).round()), "99 %");
        assert_eq!(Unit::Latency.label(20_000.0), "20 ms");
        assert_eq!(Unit::Latency.label(70.0), "70 us");
        assert_eq!(Unit::Rate.label(40_000.0), "40 k");
        assert!(Unit::Percentile.place(100.0).is_finite());
    }
}
