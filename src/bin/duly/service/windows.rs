//! Tasks of the Windows Task Scheduler.

use std::path::PathBuf;

use crate::service::definition::{Definition, Manages, ServiceName, fill, xml};
use crate::service::steps::{State, Step, Wanted, output};

const TEMPLATE: &str = include_str!("templates/windows.xml");

/// Marks a task that duly has registered: the Task Scheduler drops comments.
const SOURCE: &str = "duly service install";

/// The trigger and the user of a task of a user. The repetition starts a program again that has ended: a failure is, to the Task
/// Scheduler, only a program that it could not start.
const AT_LOGON: [&str; 2] = [
    "<LogonTrigger>
      <Repetition>
        <Interval>PT1M</Interval>
      </Repetition>
      <UserId>@USER@</UserId>
    </LogonTrigger>",
    "<UserId>@USER@</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>",
];
/// The same for the account LocalSystem.
const AT_BOOT: [&str; 2] = [
    "<BootTrigger>
      <Repetition>
        <Interval>PT1M</Interval>
      </Repetition>
    </BootTrigger>",
    "<UserId>S-1-5-18</UserId>
      <RunLevel>HighestAvailable</RunLevel>",
];

pub(crate) struct Windows;

impl Manages for Windows {
    fn file(&self, service: &ServiceName, folder: &dyn Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, String> {
        let name = if service.system { "PROGRAMDATA" } else { "LOCALAPPDATA" };
        let data = folder(name).ok_or_else(|| format!("{name} names no folder"))?;
        Ok(data.join("duly").join(format!("{}.xml", service.name)))
    }

    fn render(&self, definition: &Definition) -> Result<String, String> {
        let [trigger, principal] = if definition.service.system { AT_BOOT } else { AT_LOGON };
        let user = [("USER", xml(definition.user.as_deref().unwrap_or_default())?)];
        let arguments: Vec<String> = definition.arguments().map(quoted).collect();
        Ok(fill(
            TEMPLATE,
            &[
                ("RECORD", definition.record()),
                ("NAME", definition.service.name.clone()),
                ("SOURCE", SOURCE.to_owned()),
                ("TRIGGER", fill(trigger, &user)),
                ("PRINCIPAL", fill(principal, &user)),
                ("PROGRAM", xml(literal(&definition.program)?)?),
                ("ARGUMENTS", xml(&arguments.join(" "))?),
                ("DIRECTORY", xml(literal(&definition.directory)?)?),
            ],
        ))
    }

    fn start(&self, definition: &Definition, file: &str, replaced: bool) -> Vec<Step> {
        let name = definition.service.name.as_str();
        let end = Step::new(&["schtasks", "/End", "/TN", name], Wanted::Exit);
        let create = Step::new(&["schtasks", "/Create", "/TN", name, "/XML", file, "/F"], Wanted::Success(0));
        let run = Step::new(&["schtasks", "/Run", "/TN", name], Wanted::Success(0));
        replaced.then_some(end).into_iter().chain([create, run]).collect()
    }

    fn stop(&self, service: &ServiceName, _seconds: u64) -> Vec<Step> {
        let step = |option, wanted| Step::new(&["schtasks", option, "/TN", &service.name], wanted);
        let mut delete = step("/Delete", Wanted::Exit);
        delete.words.push("/F".to_owned());
        vec![step("/End", Wanted::Exit), delete, step("/Query", Wanted::Failure(0))]
    }

    fn taken(&self, service: &ServiceName) -> Option<String> {
        let query = ["schtasks", "/Query", "/XML", "/TN", &service.name].map(str::to_owned);
        let is_foreign = output(&query).is_ok_and(|text| !text.contains(SOURCE));
        is_foreign.then(|| format!("the Task Scheduler has a task {}", service.name))
    }

    fn state(&self, service: &ServiceName) -> State {
        // schtasks prints words in the language of the system.
        let query =
            format!("[int](Get-ScheduledTask -TaskPath '\\' -TaskName '{}' -ErrorAction Stop).State", service.name);
        let state =
            match output(&["powershell", "-NoProfile", "-NonInteractive", "-Command", &query].map(str::to_owned)) {
                Ok(text) => text.trim().to_owned(),
                Err(error) => return State::unknown(error.text()),
            };
        let said = match state.as_str() {
            "1" => "disabled",
            "2" => "queued",
            "3" => "ready",
            "4" => "running",
            _ => return State::unknown(format!("the Task Scheduler answers with state {state:?}")),
        };
        State { enabled: Some(state != "1"), running: Some(state == "4"), said: said.to_owned() }
    }

    fn advice(&self, service: &ServiceName) -> &'static str {
        if service.system {
            "it starts at boot, and runs as LocalSystem"
        } else {
            "it starts when you log on, and ends when you log off"
        }
    }
}

/// Returns a path that the Task Scheduler must take as it is.
fn literal(path: &str) -> Result<&str, String> {
    match path.matches('%').count() {
        0 | 1 => Ok(path),
        _ => Err(format!("the Task Scheduler would look for variables in the path {path:?}")),
    }
}

/// Quotes an argument by the rules of `CommandLineToArgvW`. Percent and dollar signs are put between two quoted parts, so that the Task
/// Scheduler finds no `%NAME%` and no `$(NAME)` that it would replace.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "\\/-_.,:=@+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let (mut quoted, mut backslashes) = ("\"".to_owned(), 0);
    for letter in word.chars() {
        match letter {
            '"' => quoted.push_str(&format!("{}\"", "\\".repeat(backslashes + 1))),
            '%' | '$' => quoted.push_str(&format!("{}\"{letter}\"", "\\".repeat(backslashes))),
            other => quoted.push(other),
        }
        backslashes = if letter == '\\' { backslashes + 1 } else { 0 };
    }
    quoted + &"\\".repeat(backslashes) + "\""
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::Windows;
    use crate::service::definition::{Definition, Manages, ServiceName};
    use crate::service::tests::{HOSTILE, definition, is_refused};

    /// Splits a command line as `CommandLineToArgvW` does what follows the program.
    fn split(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => {
                    let mut count = 1;
                    while letters.next_if_eq(&'\\').is_some() {
                        count += 1;
                    }
                    let of_quote = letters.peek() == Some(&'"');
                    let text = word.get_or_insert_default();
                    text.push_str(&"\\".repeat(if of_quote { count / 2 } else { count }));
                    if of_quote && count % 2 == 1 {
                        text.push('"');
                        letters.next();
                    }
                }
                '"' if quoted && letters.peek() == Some(&'"') => {
                    letters.next();
                    word.get_or_insert_default().push('"');
                }
                '"' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                ' ' | '\t' if !quoted => words.extend(word.take()),
                other => word.get_or_insert_default().push(other),
            }
        }
        words.extend(word);
        words
    }

    fn text<'a>(document: &'a Document<'_>, name: &str) -> &'a str {
        let found = document.descendants().find(|node| node.has_tag_name(name));
        found.and_then(|node| node.text()).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn each_word_is_read_as_it_was_given() {
        for path in HOSTILE.into_iter().chain(["a\\\\\"b", "%PATH%", "%%", "c:\\a b\\", "$(Arg0)", "\"\""]) {
            let definition = Definition { program: "c:\\a & b\\duly.exe".into(), ..definition(path) };
            if is_refused(path) {
                assert!(Windows.render(&definition).unwrap_err().contains("XML cannot express"), "{path:?}");
                continue;
            }
            let task = Windows.render(&definition).unwrap();
            let document = Document::parse(&task).unwrap();
            let arguments = text(&document, "Arguments");
            assert_eq!(split(arguments), definition.arguments().collect::<Vec<_>>(), "{arguments}");
            // Between two percent signs there is no name of a variable.
            let names = arguments.split('%').skip(1).collect::<Vec<_>>();
            assert!(names.iter().all(|name| name.starts_with('"')), "{arguments}");
            assert!(!arguments.contains("$("), "{arguments}");
            assert_eq!(text(&document, "Command"), "c:\\a & b\\duly.exe");
        }
        let task = |path: &str| Windows.render(&Definition { program: path.into(), ..definition("/db") });
        assert!(task("c:\\100%\\duly.exe").is_ok());
        assert!(task("c:\\%PATH%\\duly.exe").unwrap_err().contains("look for variables"));
    }

    /// The elements of the schema of Windows 7 that the template may use, in its order.
    const SCHEMA: [(&str, &[&str]); 11] = [
        ("Task", &["RegistrationInfo", "Triggers", "Settings", "Data", "Principals", "Actions"]),
        (
            "RegistrationInfo",
            &["URI", "SecurityDescriptor", "Source", "Date", "Author", "Version", "Description", "Documentation"],
        ),
        (
            "Triggers",
            &["BootTrigger", "RegistrationTrigger", "IdleTrigger", "TimeTrigger", "EventTrigger", "LogonTrigger"],
        ),
        (
            "LogonTrigger",
            &["Enabled", "StartBoundary", "EndBoundary", "Repetition", "ExecutionTimeLimit", "UserId", "Delay"],
        ),
        ("BootTrigger", &["Enabled", "StartBoundary", "EndBoundary", "Repetition", "ExecutionTimeLimit", "Delay"]),
        ("Repetition", &["Interval", "Duration", "StopAtDurationEnd"]),
        (
            "Settings",
            &[
                "AllowStartOnDemand",
                "RestartOnFailure",
                "MultipleInstancesPolicy",
                "DisallowStartIfOnBatteries",
                "StopIfGoingOnBatteries",
                "AllowHardTerminate",
                "StartWhenAvailable",
                "NetworkProfileName",
                "RunOnlyIfNetworkAvailable",
                "WakeToRun",
                "Enabled",
                "Hidden",
                "DeleteExpiredTaskAfter",
                "IdleSettings",
                "NetworkSettings",
                "ExecutionTimeLimit",
                "Priority",
                "RunOnlyIfIdle",
            ],
        ),
        ("RestartOnFailure", &["Interval", "Count"]),
        ("Principals", &["Principal"]),
        ("Principal", &["UserId", "LogonType", "GroupId", "DisplayName", "RunLevel"]),
        ("Exec", &["Command", "Arguments", "WorkingDirectory"]),
    ];

    fn assert_in_order(node: Node<'_, '_>) {
        let children: Vec<Node<'_, '_>> = node.children().filter(Node::is_element).collect();
        let name = node.tag_name().name();
        let order = SCHEMA.iter().find(|(of, _)| *of == name).map_or(&["Exec"][..], |(_, order)| order);
        let place = |child: &Node<'_, '_>| order.iter().position(|known| *known == child.tag_name().name());
        let places: Vec<usize> = children.iter().map(|child| place(child).expect("an element of the schema")).collect();
        assert!(places.is_sorted_by(|before, after| before < after), "{name}: {places:?}");
        assert!(
            children.is_empty()
                || node.children().filter(Node::is_text).all(|text| text.text().unwrap().trim().is_empty())
        );
        children.into_iter().for_each(assert_in_order);
    }

    #[test]
    fn a_task_has_the_elements_of_the_schema_in_its_order() {
        for system in [false, true] {
            let service = ServiceName { name: "duly-a".into(), system };
            let task =
                Windows.render(&Definition { service, user: Some("PC\\anna & co".into()), ..definition("c:\\db") });
            let task = task.unwrap();
            let document = Document::parse(&task).unwrap();
            let root = document.root_element();
            let space = "http://schemas.microsoft.com/windows/2004/02/mit/task";
            assert_eq!((root.tag_name().namespace(), root.attribute("version")), (Some(space), Some("1.2")));
            assert_in_order(root);
            let trigger = document.descendants().find(|node| node.has_tag_name("Triggers")).unwrap();
            let trigger = trigger.first_element_child().unwrap().tag_name().name().to_owned();
            let expected = if system { ("BootTrigger", "S-1-5-18") } else { ("LogonTrigger", "PC\\anna & co") };
            assert_eq!((trigger.as_str(), text(&document, "UserId")), expected);
            let context = document.descendants().find_map(|node| node.attribute("Context"));
            let principal = document.descendants().find_map(|node| node.attribute("id"));
            assert_eq!((context, principal), (Some("Author"), Some("Author")));
        }
    }
}
