//! Every example in the help of every command runs without an error, each in a folder of its own with what it names. The examples are
//! the blocks of the reference, which a test of the program compares with the help.

use std::process::Command;

use crate::fixtures::skip;
use crate::guides::commands::command_of;
use crate::guides::desk::{Desk, Setting};
use crate::guides::{Snippet, snippets};

pub(super) const PAGE: &str = "docs/reference/commands.md";

/// What the commands that add tasks name; they start without a database.
const FILES: &str = r#"
    mkdir -p store data zsh etc/cron.d .local/share/bash-completion/completions .config/fish/completions
    printf '0 3 * * * true\n' | tee crontab etc/crontab >etc/cron.d/certbot
    printf '#!/bin/sh\ncat >/dev/null\n' >bin/man; chmod +x bin/man
    printf '#!/bin/sh\necho "0 3 * * * true"\n' >bin/crontab
    cat >worker <<'END'
#!/bin/sh
echo '{"type":"hello","protocol":1,"handlers":["mail"],"concurrency":1}'
while IFS= read -r line; do case $line in *'"type":"stop"'*) exit 0;; esac; done
END
    chmod +x worker; mv -f worker bin/node
    sqlite3 store/messages.db <examples/nanoclaw/sample.sql
    cp -r TREE/tests/cli/import-nanoclaw.in/v2-sessions data
    sqlite3 data/v2-sessions/ag-1/sess-1/inbound.db "DELETE FROM messages_in WHERE status = 'cancelled'"
"#;

/// What the others name: two tasks, and run 42 with the status of the example.
const ROWS: &str = r#"
    duly -q add nightly --cron '0 0 1 1 *' -- true
    duly -q add digest --cron '0 0 1 1 *' --handler digest
    duly -q limit set --key smtp --running 2
    sqlite3 agent.db "
        INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, run_at, status, finished_at, attempt, concurrency_key, locked_by,
                               locked_until)
        SELECT 42, id, handler, 1805000000000, 'schedule', 1805025600000, STATUS FROM scheduled_tasks WHERE name = 'nightly';
        INSERT INTO task_attempts (run_id, attempt, outcome, locked_by, finished_at, final)
        SELECT id, 1, 'failed', 'dead', finished_at, 1 FROM task_runs WHERE status = 'dead'"
"#;

/// The address of a server in the examples.
const SERVER: &str = "postgres://duly@db.example/app";

/// Returns a database on a server, with duly's tables.
fn database() -> Option<String> {
    #[cfg(feature = "postgres")]
    return crate::postgres::database().inspect(|address| drop(duly::Client::open(address).expect("a client")));
    #[cfg(not(feature = "postgres"))]
    None
}

fn run(example: &str, line: usize) {
    let (command, _) = command_of(example).expect("a command");
    let status = match command.as_str() {
        "add" | "import" => None,
        // Its scheduler is dead: it has no lock file, and its lease has expired.
        _ if example.contains("--gone") => Some("'running', NULL, 1, '#' || id, 'dead', 1700000000000"),
        "cancel" => Some("'queued', NULL, 0, '#' || id, NULL, NULL"),
        _ => Some("'dead', 1805000001000, 1, '#' || id, NULL, NULL"),
    };
    let rows = status.map(|status| ROWS.replace("STATUS", status)).unwrap_or_default();
    let mut text = example.to_owned();
    if text.contains(SERVER) {
        let Some(address) = database() else { return };
        text = text.replace(SERVER, &format!("'{address}'"));
    }
    // They exit with 1 because no scheduler is alive, because a run is dead, and because no service is installed.
    if ["check", "logs"].contains(&&*command) || text.contains("service status") {
        text.push_str(" || [ $? = 1 ]");
    }
    let mut desk = Desk::new(PAGE, Setting::of(PAGE));
    desk.prepare(&format!("{FILES}{rows}"));
    if example.contains("--wait") {
        desk.run_lines("duly run\n", "a scheduler");
    }
    desk.run_example(&text, line);
    desk.end();
}

#[test]
fn every_example_of_every_help_text_runs() {
    if ["bash", "sqlite3"].iter().any(|program| Command::new(program).arg("--version").output().is_err()) {
        return skip("no bash, or no sqlite3");
    }
    let snippets = snippets(PAGE);
    let examples = snippets.iter().filter(|snippet| snippet.language == "sh");
    let run_all =
        |snippet: &Snippet| (snippet.line + 1..).zip(snippet.text.lines()).for_each(|(line, text)| run(text, line));
    let (count, failed) = std::thread::scope(|scope| {
        let threads: Vec<_> = examples.map(|snippet| (snippet, scope.spawn(move || run_all(snippet)))).collect();
        let count: usize = threads.iter().map(|(snippet, _)| snippet.text.lines().count()).sum();
        let failed =
            threads.into_iter().filter_map(|(snippet, thread)| thread.join().is_err().then_some(&snippet.text));
        (count, failed.collect::<Vec<_>>())
    });
    assert!(failed.is_empty(), "{failed:#?}: see above");
    assert!(count >= 45, "only {count} examples were found");
}
