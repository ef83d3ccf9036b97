//! The metric of store sizes. Every store removes a pod's entries with the pod, so all sizes are zero on a node without
//! pods; a size that keeps growing is a leak.

use crate::base::metrics::{AtScrape, Metrics};
use parking_lot::RwLock;
use std::sync::Arc;

/// Returns the sizes of one area's stores, by name.
type SizesReader = Box<dyn Fn() -> Vec<(&'static str, usize)> + Send + Sync>;

/// The stores in the metric; cheap to clone.
#[derive(Clone, Default)]
pub struct StoreSizes(Arc<RwLock<Vec<SizesReader>>>);

impl StoreSizes {
    /// Registers the metric, without stores. Sizes are read at every scrape of `metrics`.
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

    /// Adds one store.
    pub fn add(&self, store: &'static str, size: impl Fn() -> usize + Send + Sync + 'static) {
        self.add_all(move || [(store, size())]);
    }

    /// Adds several stores, by name.
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
        assert!(shows("kubelet_store_entries{store=\"some\"} 2.0"), "{}", metrics.text());
        assert!(shows("kubelet_store_entries{store=\"others\"} 7.0"));
        entries.write().clear();
        assert!(shows("kubelet_store_entries{store=\"some\"} 0.0"));
    }
}
