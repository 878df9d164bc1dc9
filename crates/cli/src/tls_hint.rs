//! A hint for clients that use plain text with a broker that speaks TLS: such a broker is silent, and does not say why.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest wait for the broker's answer.
const LIMIT: Duration = Duration::from_secs(5);
/// A record of TLS 1.2 with a ClientHello of no bytes, which every TLS server answers with an alert. To a Kafka broker it is a
/// frame that is too long, which none answers.
const HELLO: [u8; 9] = [0x16, 3, 3, 0, 4, 1, 0, 0, 0];
/// The content types of TLS records with which a server may answer.
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
/// The major version of TLS.
const MAJOR: u8 = 3;

/// Advice about a broker that speaks TLS.
pub(crate) const HINT: &str = "the broker speaks TLS: use --command-config with security.protocol=SSL, or SASL_SSL if it also asks who you are";

/// Returns true if a server at this address answers in TLS.
pub(crate) async fn speaks_tls(address: &str) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(&HELLO).await.ok()?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await.ok()?;
        Some(matches!(answer, [ALERT | HANDSHAKE, MAJOR]))
    };
    tokio::time::timeout(LIMIT, asked).await.ok().flatten().unwrap_or(false)
}
