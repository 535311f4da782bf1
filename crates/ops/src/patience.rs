//! Repeats a question to Kubernetes until the answer is the wanted one.

use std::time::Duration;

use ichor_kube::{Client, Error as KubeError};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};
use crate::fleet::Fleet;

const PAUSE: Duration = Duration::from_millis(300);

/// Asks until there is an answer that is not a text of what is still missing; an API that is away for a moment is asked
/// again. Fails with the last text.
pub(crate) async fn patiently<T>(
    fleet: &Fleet,
    limit: Duration,
    ask: impl AsyncFn(&Client) -> std::result::Result<std::result::Result<T, String>, KubeError>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let last = match fleet.kubernetes.client().await {
            Ok(client) => match ask(&client).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(missing)) => missing,
                Err(error) => {
                    fleet.kubernetes.forget().await;
                    ichor_health::kube::text_of(&error)
                }
            },
            Err(error) => error,
        };
        if Instant::now() > end {
            return Err(Error::state(last));
        }
        sleep(PAUSE).await;
    }
}
