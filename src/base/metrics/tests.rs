use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{AtScrape, Metrics, metric_set};

type Labels = Vec<(String, String)>;

fn labels(value: &str) -> Labels {
    vec![("operation".to_owned(), value.to_owned())]
}

#[test]
fn a_counter_appears_under_its_full_name_in_every_line() {
    let metrics = Metrics::new();
    let family = metrics.register(
        "kubelet_things_total",
        "Things seen.",
        Family::<Labels, Counter>::default(),
    );
    family.get_or_create(&labels("a")).inc();
    assert_eq!(
        metrics.text(),
        "# HELP kubelet_things_total Things seen.\n# TYPE kubelet_things_total counter\n\
         kubelet_things_total{operation=\"a\"} 1\n"
    );
}

#[test]
fn a_counter_whose_name_has_no_total_keeps_its_name() {
    let metrics = Metrics::new();
    metrics
        .register("kubelet_discarded_events", "Events dropped", Counter::<u64>::default())
        .inc_by(3);
    assert_eq!(
        metrics.text(),
        "# HELP kubelet_discarded_events Events dropped.\n# TYPE kubelet_discarded_events counter\n\
         kubelet_discarded_events 3\n"
    );
}

#[test]
fn histograms_and_gauges_keep_their_lines_and_no_end_marker_is_written() {
    let metrics = Metrics::new();
    metrics.register("took_seconds", "Time", Histogram::new([0.5, 3600.0])).observe(0.7);
    metrics.register("level", "Level", Gauge::<i64>::default()).set(-2);
    let text = metrics.text();
    for line in [
        "# TYPE took_seconds histogram",
        "took_seconds_bucket{le=\"0.5\"} 0",
        "took_seconds_bucket{le=\"3600\"} 1",
        "took_seconds_bucket{le=\"+Inf\"} 1",
        "took_seconds_sum 0.7",
        "took_seconds_count 1",
        "level -2",
    ] {
        assert!(text.lines().any(|found| found == line), "missing {line:?} in\n{text}");
    }
    assert!(!text.contains("EOF"));
}

#[test]
fn bounds_of_buckets_are_written_as_go_writes_them_and_labels_stay() {
    let bounds = [-1.0, 0.0, 0.00001, 0.0001, 0.005, 1.0, 100_000.0, 1e6, 1_048_576.0];
    let metrics = Metrics::new();
    let family = Family::<Labels, _, _>::new_with_constructor(move || Histogram::new(bounds));
    let family = metrics.register("odd_bucket", "Odd", family);
    family.get_or_create(&labels("a,le=\"1.0\"")).observe(0.7);
    let text = metrics.text();
    let before = "odd_bucket_bucket{le=\"";
    let found: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix(before)?.split_once('"')).collect();
    let written: Vec<_> = found.iter().map(|(bound, _)| *bound).collect();
    let as_go =
        ["-1", "0", "1e-05", "0.0001", "0.005", "1", "100000", "1e+06", "1.048576e+06", "+Inf"];
    assert_eq!(written, as_go, "{text}");
    for (_, rest) in found {
        assert!(rest.starts_with(",operation=\"a,le=\\\"1.0\\\"\"} "), "{rest}");
    }
}

#[test]
fn label_values_with_quotes_hashes_and_newlines_stay_one_valid_line() {
    let metrics = Metrics::new();
    let family = metrics.register("odd_total", "Odd", Family::<Labels, Counter>::default());
    family.get_or_create(&labels("a \"b\" # {c}\nd\\")).inc();
    let text = metrics.text();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.ends_with("odd_total{operation=\"a \\\"b\\\" # {c}\\nd\\\\\"} 1\n"), "{text}");
}

#[test]
fn a_second_family_of_one_name_is_not_shown() {
    let metrics = Metrics::new();
    metrics.register("twice_total", "first", Counter::<u64>::default()).inc();
    metrics.register("twice_total", "second", Counter::<u64>::default()).inc_by(5);
    assert_eq!(metrics.text().matches("twice_total ").count(), 3, "{}", metrics.text());
    assert!(!metrics.text().contains("second"));
}

#[test]
fn what_is_looked_up_at_a_scrape_is_shown_with_and_without_labels() {
    let metrics = Metrics::new();
    metrics.register("now", "Now", AtScrape::number(|| 2.5));
    let labelled = || vec![(vec![("a", "x\"".to_owned())], 3.0)];
    metrics.register("so_far_total", "So far", AtScrape::counter(labelled));
    metrics.register("of_each", "Of each", AtScrape::gauge(labelled));
    metrics.register("none", "None", AtScrape::gauge(Vec::new));
    let text = metrics.text();
    for line in [
        "now 2.5",
        "# TYPE so_far_total counter",
        "so_far_total{a=\"x\\\"\"} 3.0",
        "of_each{a=\"x\\\"\"} 3.0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("none")), "{text}");
}

metric_set! {
    struct CallMetrics {
        running: Gauge = "calls_running", "Running calls";
        errors: Counter["method", "code"] = "call_errors_total", "Failed calls";
        duration: Histogram([1.0])["method"] = "call_seconds", "Duration of calls";
        size: Histogram([8.0]) = "call_bytes", "Size of calls";
    } and {
        last: Option<u8>;
    }
}

#[test]
fn the_rows_of_a_set_are_shown_in_their_order_with_their_labels_and_buckets() {
    let metrics = Metrics::new();
    let set = CallMetrics::register(&metrics);
    set.running.set(2);
    for _ in 0..2 {
        set.errors.with(["get", "404"]).inc();
    }
    set.errors.with(["put", "500"]).inc();
    set.errors.remove(["put", "500"]);
    set.duration.with(["get"]).observe(2.0);
    set.size.observe(4.0);
    let expected = "\
# HELP calls_running Running calls.
# TYPE calls_running gauge
calls_running 2
# HELP call_errors_total Failed calls.
# TYPE call_errors_total counter
call_errors_total{method=\"get\",code=\"404\"} 2
# HELP call_seconds Duration of calls.
# TYPE call_seconds histogram
call_seconds_sum{method=\"get\"} 2.0
call_seconds_count{method=\"get\"} 1
call_seconds_bucket{le=\"1\",method=\"get\"} 0
call_seconds_bucket{le=\"+Inf\",method=\"get\"} 1
# HELP call_bytes Size of calls.
# TYPE call_bytes histogram
call_bytes_sum 4.0
call_bytes_count 1
call_bytes_bucket{le=\"8\"} 1
call_bytes_bucket{le=\"+Inf\"} 1
";
    assert_eq!(metrics.text(), expected);
    assert_eq!(set.last, None);
}
