//! The D-Bus system bus, for calls to systemd and logind.

use futures::{Stream, StreamExt as _};
use std::io;
use std::time::Duration;
use tokio::sync::Mutex;
use zbus::{
    Connection, DBusError as _, DynamicType, MatchRule, Message, MessageStream, connection,
};

/// systemd's private socket, used if no bus is running.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The bus cannot be reached, or the connection was lost.
    #[error("failed to connect to dbus: {0}")]
    Connection(#[source] zbus::Error),
    /// The service returned an error.
    #[error("{name}: {message}")]
    Refused {
        /// The name of the D-Bus error, such as `org.freedesktop.systemd1.UnitExists`.
        name: String,
        /// Its message.
        message: String,
    },
    /// The response cannot be decoded.
    #[error("unexpected answer over dbus: {0}")]
    Answer(#[source] zbus::Error),
}

impl BusError {
    /// Whether the service returned this error; the last part of its name is enough.
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name.rsplit('.').next() == Some(wanted))
    }
}

impl From<BusError> for io::Error {
    fn from(error: BusError) -> Self {
        Self::other(error)
    }
}

/// One interface of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusObject {
    pub(super) service: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
}

#[derive(Debug)]
enum BusAddress {
    /// The address in the environment or the default one; without a bus, systemd's private socket.
    System,
    /// This address, where the service itself listens.
    Address(String),
}

/// A connection that is established when it is first used, and again after it was lost.
#[derive(Debug)]
pub struct SystemBus {
    source: BusAddress,
    connection: Mutex<Option<Connection>>,
}

impl SystemBus {
    /// The system bus of this machine; does not connect yet.
    pub fn new() -> Self {
        Self { source: BusAddress::System, connection: Mutex::default() }
    }

    /// A service that listens itself at this address, for tests; does not connect yet.
    pub fn at(address: String) -> Self {
        Self { source: BusAddress::Address(address), connection: Mutex::default() }
    }

    async fn connected(&self) -> Result<Connection, BusError> {
        let mut known = self.connection.lock().await;
        if let Some(connection) = known.as_ref().filter(|known| !known.is_closed()) {
            return Ok(connection.clone());
        }
        let made = self.connect().await.map_err(BusError::Connection)?;
        *known = Some(made.clone());
        Ok(made)
    }

    async fn connect(&self) -> zbus::Result<Connection> {
        let of = |builder: connection::Builder<'static>| builder.method_timeout(CALL_TIMEOUT);
        match &self.source {
            BusAddress::System => {
                let no_bus = match of(connection::Builder::system()).build().await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => error,
                };
                let address = format!("unix:path={PRIVATE_SOCKET}");
                let private = of(connection::Builder::address(address.as_str()).p2p());
                private.build().await.map_err(|_| no_bus)
            }
            BusAddress::Address(address) => {
                of(connection::Builder::address(address.as_str()).p2p()).build().await
            }
        }
    }

    /// Calls a method. If the connection was lost, reconnects once.
    pub(super) async fn call<B: serde::Serialize + DynamicType>(
        &self,
        object: BusObject,
        method: &'static str,
        body: &B,
    ) -> Result<Message, BusError> {
        let connection = self.connected().await?;
        match call_on(&connection, object, method, body).await {
            Err(BusError::Connection(_)) => {
                self.drop_connection(&connection).await;
                call_on(&self.connected().await?, object, method, body).await
            }
            done => done,
        }
    }

    async fn drop_connection(&self, broken: &Connection) {
        let mut known = self.connection.lock().await;
        known.take_if(|known| known.unique_name() == broken.unique_name());
    }

    /// Reads a property.
    pub(super) async fn property<T>(
        &self,
        object: BusObject,
        property: &'static str,
    ) -> Result<T, BusError>
    where
        T: TryFrom<zbus::OwnedVariant>,
        T::Error: Into<zbus::Error>,
    {
        let properties = BusObject { interface: "org.freedesktop.DBus.Properties", ..object };
        let body = (object.interface, property);
        let reply = self.call(properties, "Get", &body).await?;
        let value: zbus::OwnedVariant = answer(&reply)?;
        T::try_from(value).map_err(|error| BusError::Answer(error.into()))
    }

    /// Subscribes to a signal of an object. The stream ends when the connection is lost.
    pub(super) async fn signals(
        &self,
        object: BusObject,
        member: &'static str,
    ) -> Result<impl Stream<Item = Message> + Unpin + Send + use<>, BusError> {
        let connection = self.connected().await?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(object.interface)
            .path(object.path)
            .member(member);
        let rule = rule.build().map_err(BusError::Answer)?;
        let stream = MessageStream::for_match_rule(rule.into_owned(), &connection, None).await;
        let stream = stream.map_err(BusError::Connection)?;
        Ok(Box::pin(stream.filter_map(|message| std::future::ready(message.ok()))))
    }
}

async fn call_on<B: serde::Serialize + DynamicType>(
    connection: &Connection,
    object: BusObject,
    method: &'static str,
    body: &B,
) -> Result<Message, BusError> {
    let BusObject { service, path, interface } = object;
    let destination = connection.is_bus().then_some(service);
    let reply = connection.call_method(destination, path, Some(interface), method, body);
    reply.await.map_err(|error| match error {
        zbus::Error::MethodError(name, text, _) => {
            BusError::Refused { name: name.to_string(), message: text.unwrap_or_default() }
        }
        zbus::Error::FDO(error) => BusError::Refused {
            name: error.name().to_string(),
            message: error.description().unwrap_or_default().to_owned(),
        },
        zbus::Error::InputOutput(error) if error.kind() == io::ErrorKind::TimedOut => {
            BusError::Answer(zbus::Error::InputOutput(error))
        }
        error => BusError::Connection(error),
    })
}

/// Decodes the body of a message.
pub(super) fn answer<T>(message: &Message) -> Result<T, BusError>
where
    T: for<'a> serde::Deserialize<'a> + zbus::wire::Type,
{
    message.body().deserialize().map_err(BusError::Answer)
}

impl Default for SystemBus {
    fn default() -> Self {
        Self::new()
    }
}
