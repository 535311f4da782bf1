//! Questions that Kubernetes is asked until it is as it should be.

use std::time::Duration;

use ichor_kube::{Client, Error};
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::fleet::Fleet;

const PAUSE: Duration = Duration::from_millis(300);

/// Asks until there is an answer that is no text of what is still missing; an API that is away for a moment is asked
/// again. Fails with the last text.
pub async fn patiently<T>(
    fleet: &Fleet,
    limit: Duration,
    ask: impl AsyncFn(&Client) -> Result<Result<T, String>, Error>,
) -> Result<T, Failure> {
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
            return Err(Failure::new(last));
        }
        sleep(PAUSE).await;
    }
}
