//! The lowest layer: tools that do not depend on Kubernetes.
//!
//! * Owns: the clock, back-off per key, rate limits, locks per key, semaphores with early release, coalescing dirty sets, work
//!   queues, atomic files, values reloaded from files, named tasks with a common shutdown, caught panics, limited
//!   blocking work on files, URLs with credentials, proxies, Go's durations and quoting, enumerations with names, YAML and JSON
//!   as trees with positions.
//! * Woken by its callers; publishes nothing of its own; must never know about pods or containers.
//! * Upstream: the parts of `k8s.io/client-go/util/flowcontrol` and `k8s.io/apimachinery` that a kubelet uses.

pub mod clock;
mod blocking;
pub mod metrics;
pub mod otel;
pub mod atomic_file;
pub mod backoff;
mod error_chain;
mod dirty;
pub mod document;
mod early_release;
mod encoding;
mod file_io;
mod path_authority;
mod go_duration;
mod go_quote;
mod http1;
mod keyed_lock;
mod named_enum;
mod observed;
pub mod panics;
mod rate;
mod connections;
mod reload;
mod single_flight;
mod string_interner;
mod tasks;
mod tls_provider;
mod url;
pub mod proxy;
pub mod x509;
mod work_queue;

pub use blocking::spawn_blocking;
pub use connections::{RequestRate, connections};
pub use dirty::DirtySet;
pub use early_release::{EarlyReleasePermit, EarlyReleaseSemaphore};
pub use encoding::{hex, percent_decoded};
pub use error_chain::error_chain;
pub use file_io::{if_exists, run_file_io};
pub use go_duration::{GO_ZERO_TIME, GoDuration, ParseDurationError};
pub use go_quote::{go_quote, is_printable, push_go_escaped};
pub use http1::Http1;
pub use keyed_lock::KeyedLock;
pub(crate) use named_enum::named_enum;
pub use observed::{ObservedStream, StreamObserver};
pub use rate::TokenBucket;
pub use reload::{FileVersion, Reloaded};
pub use single_flight::{Flight, SingleFlight};
pub use string_interner::StringInterner;
pub use tasks::{ScopedTask, TaskEnd, Tasks, spawn, spawn_scoped, wait_until};
pub use tls_provider::tls_provider;
pub use url::SecretUrl;
pub use work_queue::WorkQueue;
