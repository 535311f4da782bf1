//! Serves an empty, writable state on a Unix socket, for conformance suites of other languages.
//!
//! Usage: `state-server SOCKET`. Takes any type, lets everybody do everything, and ends when its
//! standard input does.

use std::error::Error;

use ichor_cosi::{AllowAll, State, StateOptions, StateService, SystemClock};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: state-server SOCKET")?;
    let options = StateOptions { unregistered_types: true, ..StateOptions::default() };
    let state = State::with_options(SystemClock, options);
    let listener = UnixListener::bind(&path)?;
    Server::builder()
        .add_service(StateService::new(state, AllowAll))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), end_of_input())
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
