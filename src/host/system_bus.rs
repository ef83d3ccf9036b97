//! The message bus of the system, over which systemd and logind take orders.

use futures::{Stream, StreamExt as _};
use std::{io, time::Duration};
use tokio::sync::Mutex;
use zbus::{
    Connection, DBusError as _, DynamicType, MatchRule, Message, MessageStream, connection,
};

/// systemd's own socket, for the time when no bus runs.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
/// Within which time a call is answered.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Why a request to the bus failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// There is no bus, or its connection broke.
    #[error("failed to connect to dbus: {0}")]
    Connection(#[source] zbus::Error),
    /// The service answered with an error.
    #[error("{name}: {message}")]
    Refused {
        /// The name of the error, such as `org.freedesktop.systemd1.UnitExists`.
        name: String,
        /// What it says.
        message: String,
    },
    /// The answer is not what it should be.
    #[error("unexpected answer over dbus: {0}")]
    Answer(#[source] zbus::Error),
}

impl BusError {
    /// Whether the service answered with this error; the last part of its name is enough.
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name.rsplit('.').next() == Some(wanted))
    }
}

impl From<BusError> for io::Error {
    fn from(error: BusError) -> Self {
        Self::other(error)
    }
}

/// An object with one interface that is spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusObject {
    pub(super) service: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
}

#[derive(Debug)]
enum BusAddress {
    /// Where the environment says, or at the usual place; without a bus at systemd's own socket.
    System,
    /// At this address, where the service itself answers.
    Address(String),
}

/// A connection that is made when it is needed, and again when it broke.
#[derive(Debug)]
pub struct SystemBus {
    source: BusAddress,
    connection: Mutex<Option<Connection>>,
}

impl SystemBus {
    /// The bus of this machine; nothing is connected yet.
    pub fn new() -> Self {
        Self {
            source: BusAddress::System,
            connection: Mutex::default(),
        }
    }

    /// A bus that is one service, at this address, for tests; nothing is connected yet.
    pub fn at(address: String) -> Self {
        Self {
            source: BusAddress::Address(address),
            connection: Mutex::default(),
        }
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
                of(connection::Builder::address(address.as_str()).p2p())
                    .build()
                    .await
            }
        }
    }

    /// Calls a method. A connection that broke is made again once.
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

    /// The value of a property.
    pub(super) async fn property<T>(
        &self,
        object: BusObject,
        property: &'static str,
    ) -> Result<T, BusError>
    where
        T: TryFrom<zbus::OwnedVariant>,
        T::Error: Into<zbus::Error>,
    {
        let properties = BusObject {
            interface: "org.freedesktop.DBus.Properties",
            ..object
        };
        let body = (object.interface, property);
        let reply = self.call(properties, "Get", &body).await?;
        let value: zbus::OwnedVariant = answer(&reply)?;
        T::try_from(value).map_err(|error| BusError::Answer(error.into()))
    }

    /// Signals of one name from an object, from now on. The stream ends with the connection.
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
        Ok(Box::pin(
            stream.filter_map(|message| std::future::ready(message.ok())),
        ))
    }
}

async fn call_on<B: serde::Serialize + DynamicType>(
    connection: &Connection,
    object: BusObject,
    method: &'static str,
    body: &B,
) -> Result<Message, BusError> {
    let BusObject {
        service,
        path,
        interface,
    } = object;
    let destination = connection.is_bus().then_some(service);
    let reply = connection.call_method(destination, path, Some(interface), method, body);
    reply.await.map_err(|error| match error {
        zbus::Error::MethodError(name, text, _) => BusError::Refused {
            name: name.to_string(),
            message: text.unwrap_or_default(),
        },
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

/// What a message says.
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
