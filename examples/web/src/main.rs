//! A server that accepts mails and sends them later: `cargo run -- web.db 127.0.0.1:8080`
//!
//! * `POST /mails` with `{"id": "order-7", "to": "anna@example.org"}` stores a task; repeating it changes nothing
//! * `GET /mails/order-7` returns the newest run of that task, and `GET /status` the state of the scheduler
//!
//! The answer to `POST` means that the task is committed: the mail is sent even if the process is killed at once.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use duly::{AsyncClient, BoxError, Change, Context, NewTask, Run, Scheduler, Status};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

#[derive(Debug, Deserialize, Serialize)]
struct Mail {
    id: String,
    to: String,
}

/// Takes the role of a mail server.
async fn send(to: &str) -> Result<String, BoxError> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(format!("accepted for {to}"))
}

/// The handler of duly: sends a mail once, however often its run is retried.
async fn deliver(run: Context) -> Result<String, BoxError> {
    let mail: Mail = run.payload()?;
    tokio::select! {
        receipt = run.effect_async("send", || send(&mail.to)) => receipt,
        () = run.cancelled() => Err("asked to stop".into()),
    }
}

async fn accept(State(client): State<AsyncClient>, Json(mail): Json<Mail>) -> Result<StatusCode, Failed> {
    // The name is the idempotency key: of two requests with one id, the second finds the task of the first.
    let task = NewTask::once_in(format!("mail:{}", mail.id), Duration::ZERO).handler("mail").payload(&mail);
    let added = client.add_if_absent(task).await?;
    Ok(if added.change == Change::Created { StatusCode::ACCEPTED } else { StatusCode::OK })
}

async fn look_up(State(client): State<AsyncClient>, Path(id): Path<String>) -> Result<Json<Option<Run>>, Failed> {
    Ok(Json(client.history(&format!("mail:{id}"), 1).await?.pop()))
}

async fn status(State(client): State<AsyncClient>) -> Result<Json<Status>, Failed> {
    Ok(Json(client.status().await?))
}

/// An error of duly as a response.
struct Failed(duly::Error);

impl From<duly::Error> for Failed {
    fn from(error: duly::Error) -> Self {
        Failed(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let code = match self.0 {
            duly::Error::UnknownTask { .. } => StatusCode::NOT_FOUND,
            duly::Error::InvalidTask { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, self.0.to_string()).into_response()
    }
}

/// Resolves at Ctrl-C, and on Unix at SIGTERM.
async fn stop_requested() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut term = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = tokio::signal::ctrl_c().await;
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("expected the name of a database and an address".into());
    };
    let scheduler = Scheduler::builder(file).async_handler("mail", deliver).start()?;
    let app = Router::new()
        .route("/mails", post(accept))
        .route("/mails/{id}", get(look_up))
        .route("/status", get(status))
        .with_state(AsyncClient::from(scheduler.client().clone()));

    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    // First the server, which ends its requests; then the scheduler, which ends its runs. What is queued waits for the next start.
    axum::serve(listener, app).with_graceful_shutdown(stop_requested()).await?;
    let left = scheduler.shutdown_async(Duration::from_secs(10)).await?;
    println!("stopped, {} unfinished", left.unfinished);
    Ok(())
}
