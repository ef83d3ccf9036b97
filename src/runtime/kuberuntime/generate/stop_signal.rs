//! Stop signals between the API's names and the runtime's. Pure.

use crate::cri::v1::Signal;
use crate::model::validation::signals::LINUX;
use k8s_openapi::api::core::v1::Container;

/// The signal that ends the container; the runtime's own choice (the image's, or SIGTERM) unless the
/// container names one.
pub fn stop_signal(container: &Container) -> Signal {
    let lifecycle = container.lifecycle.as_ref();
    lifecycle
        .and_then(|lifecycle| lifecycle.stop_signal.as_deref())
        .and_then(|name| Signal::from_str_name(&runtime_name(name)))
        .unwrap_or(Signal::RuntimeDefault)
}

/// The API's name of a signal by the runtime's number; `None` for a runtime that does not report it.
pub fn signal_name(number: i32) -> Option<&'static str> {
    let signal = Signal::try_from(number).ok()?;
    let name = signal.as_str_name();
    LINUX.into_iter().find(|known| runtime_name(known) == name)
}

fn runtime_name(name: &str) -> String {
    name.replace('+', "PLUS").replace('-', "MINUS")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_signal_of_the_api_is_one_of_the_runtime_and_back() {
        for name in LINUX {
            let container: Container =
                serde_json::from_value(json!({"name": "c", "lifecycle": {"stopSignal": name}}))
                    .unwrap();
            let signal = stop_signal(&container);
            assert_ne!(signal, Signal::RuntimeDefault, "{name}");
            assert_eq!(signal_name(signal.into()), Some(name));
        }
        assert_eq!(stop_signal(&Container::default()), Signal::RuntimeDefault);
        assert_eq!(signal_name(0), None);
        assert_eq!(signal_name(1000), None);
        assert_eq!(signal_name(Signal::Sigrtminplus1.into()), Some("SIGRTMIN+1"));
    }
}
