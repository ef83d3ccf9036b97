//! Typed identifiers; cheap to clone.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a text without validation.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self(Arc::from(""))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(text)
            }
        }
    };
}

id! {
    /// `metadata.uid` of a pod: a UUID with dashes for an API pod; for a static pod 32 hexadecimal digits, unless its
    /// manifest sets one.
    PodUid
}
id! {
    /// The runtime's container ID, without the `containerd://` prefix that users see.
    ContainerId
}
id! {
    /// The runtime's sandbox ID.
    SandboxId
}

impl ContainerId {
    /// The ID in `containerd://…`, as container statuses of the API show it; `None` if there is none.
    pub fn of_status(shown: &str) -> Option<Self> {
        let (_, id) = shown.split_once("://")?;
        (!id.is_empty()).then(|| Self::from(id))
    }
}

id! {
    /// `<name>_<namespace>`, which identifies a static pod across edits of its manifest.
    PodFullName
}

/// A pod in log messages, `<namespace>/<name>` as klog prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLogName<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl fmt::Display for PodLogName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodFullName {
    /// Joins name and namespace as upstream's `BuildPodFullName` does.
    pub fn of(name: &str, namespace: &str) -> Self {
        Self::new(format!("{name}_{namespace}"))
    }

    /// `<namespace>/<name>`, for log messages.
    pub fn log_name(&self) -> PodLogName<'_> {
        let (name, namespace) = self.as_str().split_once('_').unwrap_or((self.as_str(), ""));
        PodLogName { namespace, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_pods_as_klog_writes_them() {
        let name = PodFullName::of("web-0", "default");
        assert_eq!(name.log_name().to_string(), "default/web-0");
    }
}
