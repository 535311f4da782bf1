//! Serves discovery without TLS, for test suites of other languages.
//!
//! Usage: `discovery-server ADDRESS:PORT`. Prints the address it listens on and ends when its standard input does.

use std::error::Error;

use ichor_discovery::Discovery;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: discovery-server ADDRESS:PORT")?;
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    Server::builder()
        .add_service(Discovery::start().server())
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), end_of_input())
        .await?;
    Ok(())
}

/// The parent holds the other end, so a dead parent leaves no server behind.
async fn end_of_input() {
    let (done, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let copied = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        done.send(copied)
    });
    // An error of the channel or the input ends the server as well.
    drop(ended.await);
}
