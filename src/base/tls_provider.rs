//! The cryptography behind TLS, chosen in one place (ADR 12).

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::Arc;

/// What every TLS client and server uses.
pub fn tls_provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
