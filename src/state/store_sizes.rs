//! Sizes of the stores of pods, as a metric. Every store gives up a pod's entries with the pod, so all sizes are zero on
//! a node without pods, and one that grows is a leak.

use crate::base::metrics::{AtScrape, Metrics};
use parking_lot::RwLock;
use std::{fmt, sync::Arc};

/// The sizes of a part's stores, by name.
type SizesReader = Box<dyn Fn() -> Vec<(&'static str, usize)> + Send + Sync>;

/// The stores whose sizes are shown; cheap to clone.
#[derive(Clone, Default)]
pub struct StoreSizes(Arc<RwLock<Vec<SizesReader>>>);

impl StoreSizes {
    /// No stores yet. They are measured at every scrape of `metrics`.
    pub fn new(metrics: &Metrics) -> Self {
        let sizes = Self::default();
        let read = sizes.clone();
        metrics.register(
            "kubelet_store_entries",
            "Number of entries about pods, by store",
            AtScrape::gauge(move || read.samples()),
        );
        sizes
    }

    /// Shows one more store.
    pub fn add(&self, store: &'static str, size: impl Fn() -> usize + Send + Sync + 'static) {
        self.add_all(move || [(store, size())]);
    }

    /// Shows the stores of one more part, by name.
    pub fn add_all<S>(&self, sizes: impl Fn() -> S + Send + Sync + 'static)
    where
        S: IntoIterator<Item = (&'static str, usize)>,
    {
        let sizes = move || sizes().into_iter().collect();
        self.0.write().push(Box::new(sizes));
    }

    fn samples(&self) -> Vec<(Vec<(&'static str, String)>, f64)> {
        let readers = self.0.read();
        let sizes = readers.iter().flat_map(|sizes| sizes());
        #[expect(clippy::cast_precision_loss, reason = "a count of pods or containers")]
        let sample = |(store, size)| (vec![("store", String::from(store))], size as f64);
        sizes.map(sample).collect()
    }
}

impl fmt::Debug for StoreSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSizes").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_measured_at_the_scrape() {
        let metrics = Metrics::new();
        let sizes = StoreSizes::new(&metrics);
        let entries = Arc::new(RwLock::new(vec![1, 2]));
        let counted = entries.clone();
        sizes.add("some", move || counted.read().len());
        sizes.add_all(|| [("others", 7)]);
        let shows = |line: &str| metrics.text().lines().any(|shown| shown == line);
        assert!(
            shows("kubelet_store_entries{store=\"some\"} 2.0"),
            "{}",
            metrics.text()
        );
        assert!(shows("kubelet_store_entries{store=\"others\"} 7.0"));
        entries.write().clear();
        assert!(shows("kubelet_store_entries{store=\"some\"} 0.0"));
    }
}
