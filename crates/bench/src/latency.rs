//! The parts of a histogram that are kept: the percentiles that tables show, and a curve to draw.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// (percentile, the end of its key).
const PERCENTILES: [(f64, &str); 6] =
    [(50.0, "p50"), (90.0, "p90"), (99.0, "p99"), (99.9, "p999"), (99.99, "p9999"), (100.0, "max")];
/// Points of a curve for each tenfold nearness to 100 %.
const POINTS_PER_DECADE: u32 = 8;
/// Decades beyond the first percentile: 0 %, 90 %, 99 %, 99.9 %, 99.99 %.
const DECADES: u32 = 4;

/// An empty histogram of nanoseconds up to ten minutes, with three digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are constants that fit")
}

/// Adds `PREFIX_p50_us` and so on, from nanoseconds; nothing of an empty histogram.
pub(crate) fn add_figures(figures: &mut BTreeMap<String, f64>, prefix: &str, histogram: &Histogram<u64>) {
    if histogram.is_empty() {
        return;
    }
    for (percentile, name) in PERCENTILES {
        figures.insert(format!("{prefix}_{name}_us"), micros(histogram, percentile));
    }
}

/// (percentile, microseconds) at points that are equally far apart on a logarithmic axis of what lies beyond them; as
/// far as there are records for it.
pub(crate) fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let points = (0..=POINTS_PER_DECADE * DECADES).map(|point| {
        let beyond = 10f64.powf(-f64::from(point) / f64::from(POINTS_PER_DECADE));
        ((1e6 * (1.0 - beyond)).round() / 1e4, beyond)
    });
    let known = points.take_while(|(_, beyond)| histogram.len() as f64 * beyond >= 1.0);
    known.map(|(percentile, _)| (percentile, micros(histogram, percentile))).collect()
}

fn micros(histogram: &Histogram<u64>, percentile: f64) -> f64 {
    histogram.value_at_percentile(percentile) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand() -> Histogram<u64> {
        let mut histogram = new_histogram();
        (1..=1_000u64).for_each(|value| histogram.record(value * 1_000).unwrap());
        histogram
    }

    #[test]
    fn figures_are_microseconds_by_percentile() {
        let mut figures = BTreeMap::new();
        add_figures(&mut figures, "ack", &thousand());
        assert_eq!(figures.len(), 6);
        assert!((figures["ack_p50_us"] - 500.0).abs() < 1.0);
        assert!((figures["ack_p999_us"] - 999.0).abs() < 2.0);
        assert!((figures["ack_max_us"] - 1_000.0).abs() < 2.0);
        let mut none = BTreeMap::new();
        add_figures(&mut none, "ack", &new_histogram());
        assert!(none.is_empty());
    }

    #[test]
    fn a_curve_ends_where_there_are_no_records() {
        let curve = curve(&thousand());
        assert_eq!(curve.len(), 3 * POINTS_PER_DECADE as usize + 1);
        assert!(curve.is_sorted_by(|left, right| left.0 < right.0 && left.1 <= right.1));
        assert!((curve.last().unwrap().0 - 99.9).abs() < 1e-9);
    }
}
