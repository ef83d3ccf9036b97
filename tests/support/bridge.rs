//! A TCP port in front of a socket in the file system, for clients that know only ports.

use std::path::PathBuf;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinHandle;

/// It ends with this.
pub struct Bridge {
    pub port: u16,
    task: JoinHandle<()>,
}

impl Bridge {
    pub async fn to(socket: PathBuf) -> Bridge {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let socket = socket.clone();
                tokio::spawn(async move {
                    if let Ok(mut server) = UnixStream::connect(socket).await {
                        // Either side may break off.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Bridge { port, task }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.task.abort();
    }
}
