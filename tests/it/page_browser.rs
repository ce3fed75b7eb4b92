//! The status page in a real browser: every page in light and dark, on a wide screen and on a phone, with and without script,
//! by keyboard, and with hostile texts. Pictures of pages with faults are written to `target/screenshots`, with `DULY_CI=1` of all.

mod driver;
mod filters;
mod sample;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duly::page::Page;
use duly::{BoxError, Client, Context, NewTask, RunStatus, Scheduler, Timestamp};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, patience, wait_for_status};
use crate::page_timeline::{runs, served, task};
use driver::{Browser, ENTER, Scheme, Screen, TAB};
use sample::Sample;

/// At most one browser at a time: each takes more than one processor.
static BROWSERS: Mutex<()> = Mutex::new(());

fn browser() -> Option<(MutexGuard<'static, ()>, Browser)> {
    let turn = BROWSERS.lock().unwrap_or_else(PoisonError::into_inner);
    Browser::start().map(|browser| (turn, browser))
}

/// Returns the pages of the sample: the name of a picture, and a path.
fn pages(sample: &Sample) -> Vec<(&'static str, String)> {
    let run = |task, status| format!("/runs/{}", sample.newest_with(task, status));
    let hostile = "a/../../etc/passwd";
    let task = |name: &str| format!("/tasks/{}", encoded(name));
    vec![
        ("tasks", "/".into()),
        ("tasks-failing", "/?order=failing".into()),
        ("agenda", "/agenda?span=week".into()),
        ("task", task("nightly-report")),
        ("task-effects", task("post-carousel")),
        ("task-failing", task("import-orders")),
        ("task-invalid", task("broken-import")),
        ("task-paused", task("legacy-export")),
        ("task-hostile", task(hostile)),
        ("run", run("backup", RunStatus::Succeeded)),
        ("run-running", run("sync-photos", RunStatus::Running)),
        ("run-waiting", run("backup", RunStatus::Queued)),
        ("run-dead", run("import-orders", RunStatus::Dead)),
        ("run-effects", run("post-carousel", RunStatus::Succeeded)),
        ("run-skipped", run("check-inbox", RunStatus::Skipped)),
        ("run-hostile", run(hostile, RunStatus::Dead)),
        ("runs", "/runs".into()),
        ("runs-dead", "/runs?status=dead".into()),
        ("timeline", "/timeline".into()),
        ("schedulers", "/schedulers".into()),
        ("events", "/events".into()),
        ("unknown-task", task("no-such-task")),
        ("unknown-path", "/no/such/path".into()),
    ]
}

/// Encodes a name as a segment of a path.
fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}

/// Runs the functions of `checks.js` that look at the page that is open.
fn layout_faults(browser: &Browser) -> Vec<String> {
    let look = "const look = window.__checks; return [...look.overflow(), ...look.clipped(), ...look.contrast()]";
    let faults = browser.run(&format!("{}\n{look}", include_str!("page_browser/checks.js")));
    faults.as_array().expect("faults").iter().map(|fault| fault.as_str().expect("a line").to_owned()).collect()
}

/// Returns faults of requests and of the console since the last call. `path` may be answered with 404.
fn traffic_faults(browser: &Browser, home: &str, is_missing: bool) -> Vec<String> {
    let mut faults = browser.console();
    faults.retain(|line| !(is_missing && line.contains("status of 404")));
    for (status, address) in browser.requests() {
        if !address.starts_with(home) {
            faults.push(format!("request to {address}"));
        } else if status != "sent" && status != "200" && !(is_missing && status == "404") {
            faults.push(format!("{status} from {address}"));
        }
    }
    faults
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if the page changed"]
fn every_page_is_sound_in_both_schemes_and_widths() {
    let Some((_turn, browser)) = browser() else { return };
    let sample = Sample::start();
    let axe = axe();
    let mut faults = Vec::new();
    let views = [
        (Scheme::Light, Screen::Desk),
        (Scheme::Light, Screen::Phone),
        (Scheme::Dark, Screen::Desk),
        (Scheme::Dark, Screen::Phone),
        (Scheme::Light, Screen::Narrow),
    ];
    for (name, path) in pages(&sample) {
        for (scheme, screen) in views {
            browser.show(scheme, screen);
            browser.open(&sample.address(&path));
            let mut found = traffic_faults(&browser, &sample.address("/"), name.starts_with("unknown"));
            found.extend(layout_faults(&browser));
            if let Some(axe) = axe.as_deref().filter(|_| screen == Screen::Desk) {
                found.extend(accessibility_faults(&browser, axe));
            }
            if browser.run("return typeof window.__hacked") != "undefined" {
                found.push("a hostile text was run as a script".to_owned());
            }
            let view = format!("{name}-{}-{}", scheme.name(), screen.width());
            browser.save_picture(&pictures().join(format!("{view}.png")), None);
            faults.extend(found.iter().map(|fault| format!("{view}: {fault}")));
        }
        if name.ends_with("hostile") {
            let shown =
                format!("return document.body.innerText.includes({})", json!("<script>window.__hacked = 1</script>"));
            if browser.run(&shown) != true {
                faults.push(format!("{name}: the hostile text does not appear as text"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    // The page is read again: of two attempts with outputs of the same length, only the newest is open, as before.
    let (_, dead) = pages(&sample).into_iter().find(|(name, _)| *name == "run-dead").expect("a page");
    browser.open(&sample.address(&dead));
    browser.run("document.querySelector('main').isOld = true");
    let read_again = "dispatchEvent(new Event('pagehide')), dispatchEvent(new Event('pageshow'))";
    browser.wait_until(&format!("{read_again}, !document.querySelector('main').isOld"));
    let outputs = browser.run("return [...document.querySelectorAll('.attempt details')].map(({ open }) => open)");
    assert_eq!(outputs, json!([true, false]));
}

/// The folder of the pictures, which git ignores.
fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots")
}

/// Returns the script of axe-core, which `.ci/run` fetches: the file that `DULY_AXE` names, or that in `target/axe-core`.
fn axe() -> Option<String> {
    let file = std::env::var_os("DULY_AXE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/axe-core/axe.min.js"), PathBuf::from);
    let script = std::fs::read_to_string(&file).ok();
    if script.is_none() {
        println!("skipped: no axe-core at {}; contrast and keyboard are checked all the same", file.display());
    }
    script
}

/// Runs axe-core on the page that is open. Returns its serious findings, and prints the others.
fn accessibility_faults(browser: &Browser, axe: &str) -> Vec<String> {
    browser.run(axe);
    let found = browser.run_async(
        "const done = arguments[arguments.length - 1];
         axe.run({ preload: false, resultTypes: ['violations'] })
             .then((found) => done(found.violations.map(({ id, impact, help, nodes }) =>
                 ({ id, impact, help, nodes: nodes.slice(0, 3).map(({ html }) => html.slice(0, 200)) }))))
             .catch((error) => done([{ impact: 'critical', help: String(error) }]));",
    );
    let (serious, other): (Vec<&Value>, Vec<&Value>) = found
        .as_array()
        .expect("findings")
        .iter()
        .partition(|finding| finding["impact"] == "serious" || finding["impact"] == "critical");
    other.iter().for_each(|finding| println!("axe: {finding}"));
    serious.iter().map(|finding| format!("axe: {finding}")).collect()
}

#[test]
#[ignore = "takes long: .ci/nightly runs it, and .ci/run if the page changed"]
fn the_keyboard_reaches_every_control_and_shows_where_it_is() {
    let Some((_turn, browser)) = browser() else { return };
    let sample = Sample::start();
    let mut faults = Vec::new();
    // Without the script, which replaces the controls when the database changes.
    browser.devtools("Network.setBlockedURLs", &json!({ "urls": ["*/page.js"] }));
    for (name, path) in pages(&sample) {
        // One page of each kind.
        if name.contains('-') && name != "run-dead" {
            continue;
        }
        for (scheme, screen) in [(Scheme::Light, Screen::Desk), (Scheme::Dark, Screen::Phone)] {
            browser.show(scheme, screen);
            browser.open(&sample.address(&path));
            browser.run(include_str!("page_browser/checks.js"));
            // A block of text that scrolls is a stop too.
            let stops = "return __checks.controls().length + document.querySelectorAll('pre').length";
            let stops = browser.run(&format!("__checks.watchFocus(); {stops}")).as_u64().expect("a number");
            browser.press(TAB, usize::try_from(stops).expect("a number") + 1);
            let found = browser.run("return __checks.focus()");
            let found =
                found.as_array().expect("faults").iter().map(|fault| format!("{name}, {}: {fault}", scheme.name()));
            faults.extend(found);
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    // The first stop of the keyboard skips the navigation.
    browser.open(&sample.address("/"));
    browser.press(TAB, 1);
    let target = browser.run("return document.activeElement.getAttribute('href')");
    let target = target.as_str().expect("a link").to_owned();
    assert!(target.starts_with('#'), "{target}");
    browser.press(ENTER, 1);
    browser.wait_until(&format!("location.hash === '{target}'"));
    browser.press(TAB, 1);
    let is_inside = format!("return document.querySelector('{target}').contains(document.activeElement)");
    assert_eq!(browser.run(&is_inside), true, "the next stop is in the main part");
}

/// A scheduler with the handler `work`, which prints a line, and the handler `gate`, which ends when it is cancelled.
fn live() -> (TestDb, Scheduler, Client, String) {
    let db = TestDb::brief();
    let work = |_: &Context| Ok::<_, BoxError>("four of a kind");
    let gate = |run: &Context| {
        while !run.wait_cancelled(Duration::from_secs(60)) {}
        Err::<(), _>(BoxError::from("stopped"))
    };
    let builder =
        Scheduler::builder(db.file()).poll(Duration::from_millis(20)).handler("work", work).handler("gate", gate);
    let builder = builder.handler("fails", |_: &Context| Err::<(), _>(BoxError::from("no disk")));
    let scheduler = builder.page(Page::on("127.0.0.1:0").actions()).start().expect("a scheduler");
    let client = scheduler.client().clone();
    for (name, handler) in [("digest", "work"), ("bystander", "work"), ("watch", "gate")] {
        client.add(NewTask::manual(name).handler(handler)).expect("a task");
    }
    let home = format!("http://{}", scheduler.page_address().expect("an address"));
    (db, scheduler, client, home)
}

#[test]
fn a_click_starts_a_run_and_the_page_follows_without_a_reload() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/tasks/digest"));
    browser.run("window.__same = 1");
    browser.click("form[action$='/digest/trigger'] button");
    let run = wait_for_status(&client, "digest", RunStatus::Succeeded).id;
    let link = format!("document.querySelector(\"a[href='/runs/{run}']\")");
    browser.wait_until(&format!("{link} && document.querySelector('main').innerText.includes('succeeded')"));
    assert_eq!(browser.run("return window.__same"), 1, "the page was not loaded again");
    assert!(client.history("bystander", 9).expect("a history").is_empty());

    // A run that another program asks for, and that ends without this browser.
    browser.open(&format!("{home}/tasks/watch"));
    browser.run("window.__same = 2");
    db.printed(&["trigger", "watch"]);
    browser.wait_until("document.querySelector('main').innerText.includes('running')");
    let run = wait_for_status(&client, "watch", RunStatus::Running).id;
    client.cancel(run).expect("a cancellation");
    browser.wait_until("document.querySelector('main').innerText.includes('cancelled')");
    assert_eq!(browser.run("return window.__same"), 2, "the page was not loaded again");
    assert_eq!(traffic_faults(&browser, &home, false), [""; 0]);
}

#[test]
fn a_page_that_is_not_refreshed_shows_since_when_until_it_is() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, _client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/tasks/digest"));
    // What a server answers that is no page.
    browser.run(
        "window.__fetch = window.fetch;
         window.fetch = async () => new Response('the database is locked', { status: 503 })",
    );
    db.printed(&["trigger", "digest"]);
    browser.wait_for_text("duly answered with status 503. Trying again.");
    let run = "document.querySelector(\"main a[href^='/runs/']\")";
    assert_eq!(browser.run(&format!("return {run}")), Value::Null, "the old page is still shown");
    browser.click("form[action$='/digest/trigger'] button");
    browser.wait_for_text("Not done: duly answered with status 503.");
    let is_stale = "document.documentElement.matches('.stale') && document.title.startsWith('Not live')";
    assert_eq!(browser.run(&format!("return {is_stale}")), true, "its badges are grey");
    // No change announces that the server answers again.
    browser.run("window.fetch = window.__fetch");
    browser.wait_until(&format!("!document.getElementById('note') && {run} && !({is_stale})"));
    browser.wait_for_text("Not done: duly answered with status 503.");
    browser.click("#told button");
    browser.wait_until("!document.getElementById('told')");
    browser.devtools("Network.enable", &json!({}));
    let offline = json!({ "offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
    browser.devtools("Network.emulateNetworkConditions", &offline);
    browser.run("dispatchEvent(new Event('pagehide')), dispatchEvent(new Event('pageshow'))");
    browser.wait_for_text("no connection to duly. Trying again.");
}

#[test]
fn what_is_in_use_is_left_alone_and_everything_else_is_refreshed() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/"));
    browser.run("window.__same = 1, document.querySelector('main input[name=name]').focus()");
    browser
        .run(&format!("document.activeElement.value = 'wat'; {}", since("told", "document.title.startsWith('(1)')")));
    client.add(NewTask::manual("doomed").handler("fails").at_most_once()).expect("a task");
    db.printed(&["trigger", "doomed"]);
    wait_for_status(&client, "doomed", RunStatus::Dead);
    let died = client.history("doomed", 1).expect("a history")[0].finished_at.expect("an end");
    let is_told =
        "document.querySelector('.health').textContent.includes('problem') && document.title.startsWith('(1)')";
    browser.wait_until(&format!("{is_told} && document.querySelector(\"link[rel=icon]\").href.endsWith('problems')"));
    let told = browser.run("return window.__told").as_i64().expect("a time") - died.as_millis();
    assert!(told < soon(), "the death is shown after {told} ms");
    let is_kept = "return document.activeElement.matches('input[name=name]') && document.activeElement.value === 'wat'";
    assert_eq!(browser.run(is_kept), true, "the field that is in use");
    browser.wait_until("document.querySelector(\"main a[href='/tasks/doomed']\")");

    // A selection holds the part that it is in, and the page says so if that part would change.
    browser.open(&format!("{home}/tasks/digest"));
    browser.run("getSelection().selectAllChildren(document.querySelector('main'))");
    db.printed(&["trigger", "digest"]);
    let run = wait_for_status(&client, "digest", RunStatus::Succeeded).id;
    browser.wait_for_text("is not refreshed while text in it is selected");
    browser.run("getSelection().removeAllRanges()");
    browser.wait_until(&format!(
        "document.querySelector(\"main a[href='/runs/{run}']\") && !document.getElementById('note')"
    ));
}

/// A script that stores the time at which a condition first holds.
fn since(name: &str, holds: &str) -> String {
    format!(
        "new MutationObserver(() => {{ if (!window.__{name} && ({holds})) window.__{name} = Date.now(); }})
             .observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});"
    )
}

/// The time in milliseconds within which a page shows what has changed: two seconds, longer on a slow machine.
fn soon() -> i64 {
    (patience() / 30).as_millis() as i64
}

#[cfg(target_os = "linux")]
#[test]
fn a_page_whose_server_is_silent_is_grey_and_is_live_again_when_it_answers() {
    let Some((_turn, browser)) = browser() else { return };
    let db = TestDb::new();
    let (sidecar, address) = crate::page_sidecar::served_by_program(&db, "127.0.0.1:0");
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("http://{address}/"));
    // The stream is open when it has announced a change.
    db.client().add(NewTask::manual("digest").handler("work")).expect("a task");
    browser.wait_until("document.querySelector(\"main a[href='/tasks/digest']\")");
    let is_stale = "document.documentElement.matches('.stale')";
    browser.run(&since("stale", &format!("{is_stale} && document.title.startsWith('Not live')")));
    let frozen = Timestamp::now().as_millis();
    sidecar.signal("STOP");
    browser.wait_until("window.__stale > 0");
    let after = browser.run("return window.__stale").as_i64().expect("a time") - frozen;
    assert!(after < soon(), "the page is grey after {after} ms");
    let colours = "[...document.querySelectorAll('.badge')].map((badge) => getComputedStyle(badge).color)";
    assert_eq!(browser.run(&format!("return new Set({colours}).size")), 1, "no badge has a colour of its own");
    browser.wait_for_text("no sign of life from duly. Trying again.");
    sidecar.signal("CONT");
    browser.wait_until(&format!(
        "!({is_stale}) && !document.getElementById('note') && document.title.startsWith('Tasks')"
    ));
}

#[test]
fn the_title_of_a_window_that_is_not_visible_shows_problems_too() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/"));
    browser.run(
        "Object.defineProperty(document, 'hidden', { value: true }), document.dispatchEvent(new Event('visibilitychange'))",
    );
    client.add(NewTask::manual("doomed").handler("fails").at_most_once()).expect("a task");
    db.printed(&["trigger", "doomed"]);
    wait_for_status(&client, "doomed", RunStatus::Dead);
    browser.wait_until("document.title.startsWith('(1)')");
}

#[test]
fn a_page_without_a_stream_of_changes_is_refreshed_all_the_same() {
    let Some((_turn, browser)) = browser() else { return };
    let (_db, _scheduler, client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    // As for the seventeenth window, or behind a proxy that holds answers back.
    browser.devtools("Network.setBlockedURLs", &json!({ "urls": ["*/changes"] }));
    browser.open(&format!("{home}/"));
    browser.run(&since("cut", "document.getElementById('note')?.textContent.includes('no connection to duly')"));
    for name in ["first", "second", "third"] {
        client.add(NewTask::manual(name).handler("work")).expect("a task");
        browser.wait_until(&format!("document.querySelector(\"main a[href='/tasks/{name}']\")"));
    }
    // Nor does it say that it has no connection when it tries to open the stream again.
    assert!(browser.run("return window.__cut ?? null").is_null(), "the page is refreshed, and says that it is not");
}

/// Returns the columns of the picture of the timeline's plot in which the colour of dead runs is, in groups of neighbours; those with
/// the colour of succeeded runs; and all.
fn columns(browser: &Browser) -> (usize, usize, usize, usize) {
    let place = browser.run(
        "const { x, y, width, height } = document.querySelector('.plot svg[role=group]').getBoundingClientRect();
         return { x, y, width, height, scale: 1 }",
    );
    let picture = browser.devtools("Page.captureScreenshot", &json!({ "clip": place }));
    // The page's own policy allows no picture from elsewhere.
    browser.open("about:blank");
    let found = browser.run_async(&format!(
        "const done = arguments[arguments.length - 1], image = new Image();
         image.onload = () => {{
             const {{ width, height }} = image, canvas = Object.assign(document.createElement('canvas'), {{ width, height }});
             const context = canvas.getContext('2d');
             context.drawImage(image, 0, 0);
             const {{ data }} = context.getImageData(0, 0, width, height);
             const has = (x, colour) => [...Array(height).keys()].filter((y) =>
                 colour.every((part, n) => Math.abs(data[4 * (y * width + x) + n] - part) < 24)).length > 2;
             const all = [...Array(width).keys()], dead = all.map((x) => has(x, [203, 61, 66]));
             const groups = dead.filter((one, x) => one && !dead[x - 1]).length;
             done([groups, dead.filter(Boolean).length, all.filter((x) => has(x, [47, 143, 96])).length, width]);
         }};
         image.src = 'data:image/png;base64,' + {};",
        picture["data"]
    ));
    let number = |n: usize| found[n].as_u64().and_then(|number| usize::try_from(number).ok()).expect("a number");
    (number(0), number(1), number(2), number(3))
}

#[test]
fn the_picture_of_the_timeline_shows_each_death_and_nothing_else_as_dead() {
    let Some((_turn, browser)) = browser() else { return };
    browser.show(Scheme::Light, Screen::Desk);
    // Half a day with one death among 230 runs, and a day with 34 among 5000.
    for (name, count, period, dead, deaths) in [("one", 230, 180_000, 150, 1), ("many", 5000, 15_000, 147, 34)] {
        let served = served(&(task(1, "sync") + &runs(count, period, dead)));
        browser.open(&format!("http://{}/timeline?span=day", served.scheduler.page_address().expect("an address")));
        browser.save_picture(&pictures().join(format!("deaths-{name}.png")), None);
        let (groups, red, green, width) = columns(&browser);
        assert_eq!(groups, deaths, "{name}: {red} of {width} columns");
        assert!(red * 100 <= width * deaths, "{name}: {red} of {width} columns are red");
        assert!(green * 100 >= width * 30, "{name}: {green} of {width} columns are green");
    }
}

#[test]
fn a_refusal_stays_until_it_is_dismissed_and_a_run_that_was_started_is_linked() {
    let Some((_turn, browser)) = browser() else { return };
    let (db, _scheduler, client, home) = live();
    browser.show(Scheme::Light, Screen::Desk);
    browser.open(&format!("{home}/tasks/bystander"));
    browser.click("form[action$='/bystander/trigger'] button");
    let run = wait_for_status(&client, "bystander", RunStatus::Succeeded).id;
    browser.wait_until(&format!("document.querySelector(\"#told a[href='/runs/{run}']\")"));
    // A form of another task of this name, which was removed. In one step: a refresh would replace the form.
    let form = "document.querySelector(\"form[action$='/bystander/trigger']\")";
    browser.run(&format!("{form}.elements.task.value = '1000', {form}.requestSubmit()"));
    browser.wait_for_text("Not done:");
    db.printed(&["trigger", "bystander"]);
    let run = client.history("bystander", 1).expect("a history")[0].id;
    browser.wait_until(&format!("document.querySelector(\"main a[href='/runs/{run}']\")"));
    assert_eq!(browser.run("return document.getElementById('told').innerText.startsWith('Not done:')"), true);
    browser.click("#told button");
    browser.wait_until("!document.getElementById('told')");

    // All runs that match: what became of them is said beside the page, which is read again.
    client.add(NewTask::manual("broken").handler("fails").max_attempts(1)).expect("a task");
    client.trigger("broken").expect("a run");
    wait_for_status(&client, "broken", RunStatus::Dead);
    browser.open(&format!("{home}/runs/retry?status=dead&task=broken"));
    browser.click("form[action^='/runs/retry?'] button");
    browser.wait_until("document.getElementById('told')?.innerText.startsWith('Done: retried 1 run.')");
    browser.wait_for_text("it was retried before");
}

#[test]
fn every_page_and_action_works_without_script() {
    let Some((_turn, browser)) = browser() else { return };
    let (_db, _scheduler, client, home) = live();
    browser.show(Scheme::Dark, Screen::Phone);
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&format!("{home}/tasks/digest"));
    browser.click("form[action$='/digest/trigger'] button");
    let run = wait_for_status(&client, "digest", RunStatus::Succeeded).id;
    browser.open(&format!("{home}/tasks/digest"));
    browser.click(&format!("a[href='/runs/{run}']"));
    browser.wait_for_text("four of a kind");
    for path in ["/", "/runs", "/timeline", "/schedulers", "/events"] {
        browser.open(&format!("{home}{path}"));
        assert_ne!(browser.run("return document.querySelector('main').innerText.trim()"), "", "{path}");
    }
    client.add(NewTask::manual("broken").handler("fails").max_attempts(1)).expect("a task");
    client.trigger("broken").expect("a run");
    wait_for_status(&client, "broken", RunStatus::Dead);
    browser.open(&format!("{home}/runs?status=dead&task=bro*"));
    browser.click("a[href^='/runs/retry?']");
    browser.wait_for_text("Retry 1 run?");
    browser.click("form[action^='/runs/retry?'] button");
    browser.wait_for_text("Done: retried 1 run.");
    browser.open(&format!("{home}/tasks/digest"));
    browser.click("form[action$='/digest/pause'] button");
    browser.wait_for_text("paused");
    assert!(client.task("bystander").expect("a look-up").expect("a task").next_run.is_none());
    browser.click("form[action$='/digest/resume'] button");
    browser.wait_until("!document.querySelector(\"form[action$='/digest/resume']\")");
}

/// Writes the pictures of the documents, with `DULY_WRITE_IMAGES=1`.
#[test]
fn images() {
    if std::env::var_os("DULY_WRITE_IMAGES").is_none() {
        println!("skipped: DULY_WRITE_IMAGES is not set");
        return;
    }
    let Some((_turn, browser)) = browser() else { return };
    let sample = Sample::start_pleasant();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
    let dead = format!("/runs/{}", sample.newest_with("import-orders", RunStatus::Dead));
    let pictures = [
        ("tasks-light", Scheme::Light, Screen::Desk, "/"),
        ("task-dark", Scheme::Dark, Screen::Desk, "/tasks/post-carousel"),
        ("timeline-light", Scheme::Light, Screen::Desk, "/timeline"),
        ("run-phone", Scheme::Light, Screen::Phone, &dead),
    ];
    for (name, scheme, screen, path) in pictures {
        browser.show(scheme, screen);
        browser.open(&sample.address(path));
        let file = folder.join(format!("{name}.png"));
        browser.save_picture(&file, Some(screen));
        let size = std::fs::metadata(&file).expect("a picture").len();
        assert!(size < 150_000, "{name} has {size} bytes");
    }
}
