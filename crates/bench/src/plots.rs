//! The plots of a cell, and the points in them; `chart.rs` draws.

mod chart;

use crate::broker::System;
use crate::results::Run;
use crate::stats::Spread;

pub(crate) use self::chart::Chart;
use self::chart::{Line, Unit};

/// One kind of plot: the end of its name, its title, and the source of its points.
struct Kind {
    name: &'static str,
    title: &'static str,
    x: Unit,
    y: Unit,
    points: fn(&Run) -> Vec<(f64, f64)>,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "ack",
        title: "latency of acknowledgements",
        x: Unit::Percentile,
        y: Unit::Latency,
        points: |run| run.curves.ack_us.clone(),
    },
    Kind {
        name: "end-to-end",
        title: "latency end to end",
        x: Unit::Percentile,
        y: Unit::Latency,
        points: |run| run.curves.end_to_end_us.clone(),
    },
    Kind {
        name: "throughput",
        title: "throughput from the beginning of the warm-up",
        x: Unit::Seconds,
        y: Unit::Rate,
        points: |run| run.samples.throughput(),
    },
    Kind {
        name: "memory",
        title: "resident memory",
        x: Unit::Seconds,
        y: Unit::Memory,
        points: |run| run.samples.memory(),
    },
];

/// The plots of a workload with a durability, by name; none without points.
pub(crate) fn charts_of(runs: &[Run], workload: &str, durability: &str) -> Vec<(String, Chart)> {
    let runs: Vec<&Run> =
        runs.iter().filter(|run| run.workload == workload && run.durability == durability).collect();
    let charts = KINDS.iter().map(|kind| {
        let lines = System::ALL.into_iter().filter_map(|system| line(&runs, kind, system)).collect();
        let title = format!("{workload}, {durability}: {}", kind.title);
        (format!("{workload}-{durability}-{}", kind.name), Chart { title, x: kind.x, y: kind.y, lines })
    });
    charts.filter(|(_, chart)| !chart.lines.is_empty()).collect()
}

fn line(runs: &[&Run], kind: &Kind, system: System) -> Option<Line> {
    let all: Vec<_> =
        runs.iter().filter(|run| run.system == system.name()).map(|run| (kind.points)(run)).collect();
    let points = medians(&all);
    (points.len() > 1).then_some(Line { system, points })
}

/// Point by point the median of several runs, as far as most of them go.
fn medians(runs: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let runs: Vec<_> = runs.iter().filter(|points| !points.is_empty()).collect();
    let mut medians = Vec::new();
    loop {
        let points: Vec<_> = runs.iter().filter_map(|points| points.get(medians.len())).collect();
        if points.is_empty() || 2 * points.len() < runs.len() {
            return medians;
        }
        let median = |axis: fn(&(f64, f64)) -> f64| Spread::of(points.iter().map(|point| axis(point)));
        let (Some(x), Some(y)) = (median(|point| point.0), median(|point| point.1)) else { return medians };
        medians.push((x.median, y.median));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::results;

    #[test]
    fn the_median_of_curves_ends_where_few_go_on() {
        let runs = [
            vec![(0.0, 1.0), (1.0, 10.0), (2.0, 7.0)],
            vec![(0.0, 3.0), (1.2, 30.0)],
            vec![],
            vec![(0.0, 2.0), (1.1, 20.0)],
        ];
        assert_eq!(medians(&runs), [(0.0, 2.0), (1.1, 20.0)]);
        assert_eq!(medians(&[]), []);
    }

    #[test]
    fn only_what_has_points_is_drawn() {
        let mut runs = results().runs;
        assert_eq!(charts_of(&runs, "small-msg-saturate", "page-cache").len(), 0);
        runs[1].curves.ack_us = vec![(0.0, 5.0), (50.0, 9.0), (99.0, 90.0)];
        runs[1].samples.at_s = vec![0.0, 0.25];
        runs[1].samples.rss_mib = vec![8.0, 9.0];
        let names: Vec<_> =
            charts_of(&runs, "small-msg-saturate", "page-cache").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["small-msg-saturate-page-cache-ack", "small-msg-saturate-page-cache-memory"]);
        assert_eq!(charts_of(&runs, "small-msg-saturate", "fsync").len(), 0);
    }
}
