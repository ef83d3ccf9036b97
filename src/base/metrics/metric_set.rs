//! Families with labels, and the table from which the families of one owner are registered.

use super::Metrics;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Metric;

/// The series of one family: a metric for each combination of label values. Clones share them.
#[derive(Clone, Debug)]
pub struct MetricVec<M, const N: usize> {
    labels: &'static [&'static str; N],
    family: Family<[(&'static str, String); N], M>,
}

impl<M: Clone, const N: usize> MetricVec<M, N>
where
    Family<[(&'static str, String); N], M>: Metric,
{
    /// Registers a family with these labels, whose metrics `new` makes.
    pub fn register(
        metrics: &Metrics,
        [name, help]: [&'static str; 2],
        labels: &'static [&'static str; N],
        new: fn() -> M,
    ) -> Self {
        let family = Family::new_with_constructor(new);
        Self { labels, family: metrics.register(name, help, family) }
    }

    /// The metric with these values, in the order of the labels. It is shown from now on.
    pub fn with(&self, values: [&str; N]) -> M {
        self.family.get_or_create_owned(&self.series(values))
    }

    /// Removes the metric with these values.
    pub fn remove(&self, values: [&str; N]) {
        self.family.remove(&self.series(values));
    }

    fn series(&self, values: [&str; N]) -> [(&'static str, String); N] {
        let mut values = values.into_iter().map(str::to_owned);
        self.labels.map(|label| (label, values.next().unwrap_or_default()))
    }
}

/// Declares a struct of handles to the families that one owner writes, in the order in which they are shown, and
/// `register`, which registers them. What the owner has beside them follows `and`, and begins with its default.
///
/// ```ignore
/// metric_set! {
///     /// Clones share the metrics.
///     pub struct CallMetrics {
///         running: Gauge = "calls_running", "Number of running calls";
///         errors: Counter["method", "code"] = "call_errors_total", "Number of failed calls";
///         duration: Histogram(DEFAULT_BUCKETS)["method"] = "call_seconds", "Duration of calls";
///     } and {
///         last: Arc<Mutex<Option<Instant>>>;
///     }
/// }
/// ```
macro_rules! metric_set {
    ($(#[$meta:meta])* $vis:vis struct $set:ident {
        $($(#[$doc:meta])* $shown:vis $field:ident: $kind:ident $(($buckets:expr))? $([$($label:literal),+])?
            = $name:literal, $help:literal;)+
    } $(and { $($(#[$note:meta])* $other:ident: $type:ty;)+ })?) => {
        $(#[$meta])*
        #[derive(Clone)]
        $vis struct $set {
            $($(#[$doc])* $shown $field: metric_set!(@type $kind $([$($label),+])?),)+
            $($($(#[$note])* $other: $type,)+)?
        }

        impl $set {
            /// Registers the families.
            $vis fn register(metrics: &$crate::base::metrics::Metrics) -> Self {
                Self {
                    $($field: metric_set!(@register metrics, $name, $help, ($kind $($buckets)?) $([$($label),+])?),)+
                    $($($other: Default::default(),)+)?
                }
            }
        }
    };
    (@type $kind:ident) => { $crate::base::metrics::$kind };
    (@type $kind:ident [$($label:literal),+]) => {
        $crate::base::metrics::MetricVec<$crate::base::metrics::$kind, { [$($label),+].len() }>
    };
    (@register $metrics:ident, $name:literal, $help:literal, $new:tt) => {
        $metrics.register($name, $help, metric_set!(@new $new))
    };
    (@register $metrics:ident, $name:literal, $help:literal, $new:tt [$($label:literal),+]) => {
        $crate::base::metrics::MetricVec::register(
            $metrics, [$name, $help], &[$($label),+], || metric_set!(@new $new))
    };
    (@new ($kind:ident)) => { $crate::base::metrics::$kind::default() };
    (@new ($kind:ident $buckets:expr)) => { $crate::base::metrics::$kind::new($buckets) };
}

pub(crate) use metric_set;
