//! The tasks that follow from the end of a run of a new task.

use crate::model::new_task::NewTask;

impl NewTask {
    /// Sets the task to run when a run of this task dies, or several: their names, separated by commas. A run of that task is opened at once, with the dead run as
    /// its payload: JSON whose keys are column names of `task_runs`, and `task`. This is how a user is notified. A
    /// `command` keeps its own argv, and receives that payload as the README shows.
    ///
    /// A run opened in this way opens no further run when it dies. If that task does not exist or is invalid,
    /// [`Client::check`](crate::Client::check) says so at once, and an event is emitted for each dead run; if it is paused, the run waits.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask, Origin};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon)
    ///     .handler("digest", |_: &Context| Err::<(), _>("no route to host"))
    ///     .handler("mail", |run: &Context| run.payload::<serde_json::Value>().map(|dead| dead["error"].clone()))
    ///     .start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::manual("alarm").handler("mail"))?;
    /// client.add(NewTask::once("digest", noon).handler("digest").max_attempts(1).on_dead("alarm"))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// let alarm = &client.history("alarm", 1)?[0];
    /// assert_eq!((alarm.origin, alarm.result.as_deref()), (Origin::OnDead, Some(r#""no route to host""#)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_dead(mut self, task: impl Into<String>) -> Self {
        self.rest.on_dead = Some(listed(task));
        self
    }

    /// Sets the task to run when a run of this task has succeeded, or up to four: their names, separated by commas. A run of each is
    /// opened once, in the transaction that stores the success, with the run as its payload: JSON as for [`on_dead`](NewTask::on_dead),
    /// with its `result`. Nothing waits for several runs, and no condition is attached.
    ///
    /// A task that `on_success` and `on_end` lead back to is refused. What SQL writes is not: of a chain of runs the 101st that follows is not opened,
    /// and an event says so.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon)
    ///     .handler("fetch", |_: &Context| Ok::<_, Error>(["one", "two"]))
    ///     .handler("post", |run: &Context| run.payload::<serde_json::Value>().map(|fetched| fetched["result"][1].clone()))
    ///     .start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::manual("post").handler("post"))?;
    /// client.add(NewTask::once("fetch", noon).handler("fetch").on_success("post"))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// assert_eq!(client.history("post", 9)?[0].result.as_deref(), Some(r#""two""#));
    /// // It would fetch and post for ever.
    /// let circle = client.replace(NewTask::manual("post").handler("post").on_success("fetch")).unwrap_err();
    /// assert!(circle.to_string().contains("post -> fetch -> post"), "{circle}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_success(mut self, tasks: impl Into<String>) -> Self {
        self.rest.on_success = Some(listed(tasks));
        self
    }

    /// As [`on_success`](NewTask::on_success), when a run of this task has succeeded, is dead, or was cancelled after an attempt of it had
    /// begun. A run that is skipped or missed, or cancelled before it began, has done nothing: no run follows it. A task that two of these
    /// policies name for one end runs once.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask, Origin};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon)
    ///     .handler("build", |_: &Context| Err::<(), _>("no space left"))
    ///     .handler("clean", |run: &Context| run.payload::<serde_json::Value>().map(|ended| ended["status"].clone()))
    ///     .start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::manual("clean").handler("clean"))?;
    /// client.add(NewTask::once("build", noon).handler("build").max_attempts(1).on_end("clean"))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// let clean = &client.history("clean", 9)?[0];
    /// assert_eq!((clean.origin, clean.result.as_deref()), (Origin::OnEnd, Some(r#""dead""#)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_end(mut self, tasks: impl Into<String>) -> Self {
        self.rest.on_end = Some(listed(tasks));
        self
    }

    /// Sets the task to run when nothing ran: a run of this task expired, or its occurrences were missed and no later one runs in their
    /// place, as under [`Misfire::Skip`](crate::Misfire::Skip). One run is opened for each row of missed occurrences, with `from`, `to`
    /// (RFC 3339) and `count` in its payload; `exact` is false if `count` is the least that it can be.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Misfire, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("work").start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::manual("tell").handler("work"))?;
    /// let hourly = NewTask::cron("hourly", "0 * * * *").handler("work");
    /// client.add(hourly.misfire(Misfire::Skip, std::time::Duration::from_secs(60)).on_missed("tell"))?;
    /// stepper.clock().set_wall("2027-03-14T15:30:00Z".parse()?);
    /// let told = stepper.step()?;
    /// let missed: serde_json::Value = serde_json::from_str(&told[0].payload)?;
    /// assert_eq!((&missed["from"], &missed["count"]), (&"2027-03-14T13:00:00.000Z".into(), &3.into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_missed(mut self, tasks: impl Into<String>) -> Self {
        self.rest.on_missed = Some(listed(tasks));
        self
    }
}

/// Returns the names as they are stored: the same list is the same text.
fn listed(tasks: impl Into<String>) -> String {
    tasks.into().split(',').map(|name| name.trim_matches(' ')).collect::<Vec<_>>().join(", ")
}
