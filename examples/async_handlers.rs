//! Async handlers: a thousand mails at once on a few threads. `cargo run --features tokio --example async_handlers`

use std::time::Duration;

use duly::{AsyncClient, BoxError, Context, NewTask, RunFilter, Scheduler};

/// Takes the role of a mail server that answers slowly.
async fn send(address: &str) -> Result<String, BoxError> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(format!("accepted for {address}"))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), BoxError> {
    let home = tempfile::tempdir()?;
    // Within a runtime `start` uses it; elsewhere, set it with `runtime`.
    let scheduler = Scheduler::builder(home.path().join("mails.db"))
        .workers(1)
        .async_handler("mail", |run: Context| async move {
            let address: String = run.payload()?;
            // Sent once, however often the run is retried.
            run.effect_async("send", || send(&address)).await
        })
        .start()?;
    let client = AsyncClient::from(scheduler.client().clone());
    let mail = |number: u32| {
        let name = format!("mail:{number}");
        NewTask::once_in(name, Duration::ZERO).handler("mail").payload(format!("user-{number}@example.org"))
    };
    client.add_all((0..1000).map(mail)).await?;
    loop {
        let runs = client.runs(&RunFilter::newest(1000)).await?;
        let sent = runs.iter().filter(|run| run.status.is_final()).count();
        println!("{sent} of 1000 mails are sent");
        if sent == 1000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    scheduler.shutdown_async(Duration::from_secs(10)).await?;
    Ok(())
}
