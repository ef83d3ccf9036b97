//! The cryptography behind TLS, chosen in one place (ADR 12).

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use std::sync::{Arc, LazyLock};

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| default_provider().into());

/// What every TLS client and server uses.
pub fn tls_provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}
