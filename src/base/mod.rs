//! The lowest layer: small tools that know nothing of Kubernetes.
//!
//! * Owns: keyed back-off, rates, permits that go back early, coalescing dirty sets, queues of keys that wait for
//!   requests, atomic files, files that are read again when they change, named tasks with one shutdown, contained panics, places for quick work on files, URLs that hold
//!   credentials, durations and quoted text as Go spells them, YAML and JSON as trees with places.
//! * Woken by its callers; publishes nothing of its own; must never name a pod or a container.
//! * Answers to the parts of `k8s.io/client-go/util/flowcontrol` and `k8s.io/apimachinery` that a
//!   kubelet leans on.

pub mod metrics;
pub mod otel;
pub mod atomic_file;
pub mod backoff;
mod chain;
mod dirty;
pub mod document;
mod early_release;
mod encoding;
mod own_files;
mod path_authority;
mod connections;
mod go_duration;
mod go_quote;
mod http1;
pub mod panics;
mod rate;
mod reload;
mod single_flight;
mod strings;
mod tasks;
mod url;
pub mod x509;
mod work_queue;

pub use chain::chain;
pub use connections::connections;
pub use dirty::DirtySet;
pub use early_release::{EarlyReleasePermit, EarlyReleaseSemaphore};
pub use encoding::{hex, percent_decoded};
pub use go_duration::{GoDuration, ParseDurationError};
pub use go_quote::{go_quote, is_printable, push_go_escaped};
pub use http1::Http1;
pub use own_files::with_own_files;
pub use rate::TokenBucket;
pub use reload::{FileVersion, Reloaded};
pub use single_flight::{Flight, SingleFlight};
pub use strings::Strings;
pub use tasks::{ScopedTask, TaskEnd, Tasks, spawn, spawn_scoped, wait_until};
pub use url::SecretUrl;
pub use work_queue::WorkQueue;
