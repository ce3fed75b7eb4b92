//! Filters apply while they are typed; outputs are followed, and searched.

use duly::{NewTask, RunStatus};
use rusqlite::named_params;
use serde_json::json;

use crate::fixtures::wait_for_status;
use crate::page_browser::driver::{Scheme, Screen};
use crate::page_browser::{browser, live};

#[test]
fn a_filter_applies_while_it_is_typed_and_the_field_keeps_the_focus() {
    let Some((_turn, browser)) = browser() else { return };
    let (_db, _scheduler, client, home) = live();
    // More than a page: the links to further ones go, and come back.
    (0..60)
        .for_each(|number| _ = client.add(NewTask::manual(format!("many-{number}")).handler("work")).expect("a task"));
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/?order=name"));
    browser.run("window.__same = 1");
    let typed = |text: &str| {
        browser.run(&format!(
            "const field = document.querySelector('.filter [name=name]');
             field.focus(), field.value = '{text}', field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ))
    };
    let row = |name: &str| format!("document.querySelector(\"main a[href='/tasks/{name}']\")");
    typed("dig");
    browser.wait_until(&format!("{} && !{} && !document.querySelector('.paging')", row("digest"), row("bystander")));
    assert_eq!(
        browser.run("return [location.search, document.activeElement.name, document.activeElement.value].join()"),
        "?name=dig,name,dig"
    );
    // What another program adds is shown although the field has the focus.
    client.add(NewTask::manual("a-second-digest").handler("work")).expect("a task");
    browser.wait_until(&row("a-second-digest"));
    assert_eq!(browser.run("return document.getElementById('note')"), json!(null));
    // So is the switch of the zone, which stands in the footer.
    browser.run("window.__zones = document.querySelector('.zones select'), window.__zones.focus()");
    client.add(NewTask::manual("a-third-digest").handler("work")).expect("a task");
    browser.wait_until(&row("a-third-digest"));
    assert_eq!(browser.run("return document.activeElement === window.__zones && window.__zones.isConnected"), true);
    typed("");
    browser.wait_until(&format!("{} && document.querySelector('.paging')", row("bystander")));
    assert_eq!(browser.run("return window.__same"), 1, "the page was not loaded again");
}

#[test]
fn an_output_is_shown_from_its_end_and_stays_where_it_was_scrolled_to() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    let run = client.trigger("digest").expect("a run");
    wait_for_status(&client, "digest", RunStatus::Succeeded);
    let print = |lines: usize| {
        db.plain()
            .execute(
                "UPDATE task_runs SET output = :output WHERE id = :run",
                named_params! {
                    ":output": (0..lines).map(|line| format!("line {line}\n")).collect::<String>(), ":run": run,
                },
            )
            .expect("an output");
        browser
            .wait_until(&format!("document.querySelector('.output pre')?.textContent.includes('line {}')", lines - 1));
    };
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/runs/{run}"));
    print(1000);
    let is_at_end = "const pre = document.querySelector('.output pre'); return pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4";
    browser.open(&format!("{home}/runs/{run}"));
    assert_eq!(browser.run(is_at_end), true);
    print(1100);
    assert_eq!(browser.run(is_at_end), true, "it is followed");
    browser.run("document.querySelector('.output pre').scrollTop = 40");
    print(1200);
    assert_eq!(browser.run("return document.querySelector('.output pre').scrollTop"), 40);
    browser.run(
        "document.querySelector('.output > summary').click(), document.querySelector('.output > summary').click()",
    );
    browser.wait_until(&format!("(() => {{ {is_at_end} }})()"));
}

#[test]
fn outputs_of_older_attempts_open_if_a_line_is_looked_for() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    let run = client.trigger("digest").expect("a run");
    wait_for_status(&client, "digest", RunStatus::Succeeded);
    db.execute(&format!(
        "UPDATE task_runs SET output = 'needle', attempt = 2 WHERE id = {run};
         INSERT INTO task_attempts (run_id, attempt, locked_by, outcome, output, started_at, finished_at, duration_ms)
         SELECT id, 1, 'one', 'failed', 'a needle', started_at, started_at, 0 FROM task_runs WHERE id = {run}"
    ));
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/runs/{run}"));
    let open = "[...document.querySelectorAll('.output')].map((details) => details.open).join()";
    browser.wait_until(&format!("{open} === 'true,false'"));
    browser.run(
        "const field = document.querySelector('.filter [name=find]');
         field.focus(), field.value = 'needle', field.dispatchEvent(new Event('input', { bubbles: true }))",
    );
    browser.wait_until(&format!("{open} === 'true,true'"));
    // A refresh leaves open and closed what the reader has opened and closed.
    browser.run("document.querySelector('.output').open = false");
    db.execute(&format!("UPDATE task_runs SET output = 'two needles' WHERE id = {run}"));
    browser.wait_until(&format!(
        "document.querySelector('.output').textContent.includes('two needles') && {open} === 'false,true'"
    ));
}
