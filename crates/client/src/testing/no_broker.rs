//! A listener that is no broker: it answers every request as a web server would.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The listener; it ends when it is dropped.
pub(crate) struct NoBroker {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl NoBroker {
    pub(crate) async fn start() -> NoBroker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(refuse(socket));
            }
        });
        NoBroker { address, task }
    }
}

impl Drop for NoBroker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers until the client has gone: its last bytes would not arrive if this end was closed first.
async fn refuse(mut socket: TcpStream) {
    let mut asked = [0; 1024];
    while socket.read(&mut asked).await.is_ok_and(|count| count > 0) {
        // A client that has gone is seen by the next look.
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    }
}
