//! Agents and daemons of launchd.

use std::path::PathBuf;

use crate::import::users;
use crate::service::definition::{Definition, Manages, ServiceName, fill, xml};
use crate::service::steps::{CommandError, State, Step, Wanted, output};

const TEMPLATE: &str = include_str!("templates/launchd.plist");

pub(crate) struct Launchd;

impl Manages for Launchd {
    fn file(&self, service: &ServiceName, folder: &dyn Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, String> {
        let library = if service.system { Some("/".into()) } else { folder("HOME") };
        let kind = if service.system { "LaunchDaemons" } else { "LaunchAgents" };
        let library = library.ok_or("HOME names no folder")?.join("Library");
        Ok(library.join(kind).join(format!("{}.plist", service.name)))
    }

    fn render(&self, definition: &Definition) -> Result<String, String> {
        let words = [definition.program.as_str()].into_iter().chain(definition.arguments());
        let words = words.map(|word| Ok(format!("\t\t<string>{}</string>\n", xml(word)?)));
        Ok(fill(
            TEMPLATE,
            &[
                ("RECORD", definition.record()),
                ("NAME", definition.service.name.clone()),
                ("WORDS", words.collect::<Result<String, String>>()?),
                ("DIRECTORY", xml(&definition.directory)?),
                ("STOP", definition.stop_seconds.to_string()),
                ("LOG", xml(definition.log.as_deref().unwrap_or("/dev/null"))?),
            ],
        ))
    }

    fn start(&self, definition: &Definition, file: &str, _replaced: bool) -> Vec<Step> {
        let service = &definition.service;
        // A service that is loaded, also one that does not run, cannot be loaded again.
        let mut steps = self.stop(service, definition.stop_seconds);
        steps.push(Step::new(&["launchctl", "enable", &target(service)], Wanted::Success(0)));
        steps.push(Step::new(&["launchctl", "bootstrap", &domain(service), file], Wanted::Success(0)));
        steps
    }

    fn stop(&self, service: &ServiceName, seconds: u64) -> Vec<Step> {
        let target = target(service);
        // It fails if the service is not loaded, and does not always wait for its end.
        let bootout = Step::new(&["launchctl", "bootout", &target], Wanted::Exit);
        vec![bootout, Step::new(&["launchctl", "print", &target], Wanted::Failure(seconds))]
    }

    fn taken(&self, _service: &ServiceName) -> Option<String> {
        None
    }

    fn state(&self, service: &ServiceName) -> State {
        let disabled = output(&["launchctl", "print-disabled", &domain(service)].map(str::to_owned));
        let is_disabled = |text: String| {
            let of_service = text.lines().find(|line| line.contains(&format!("\"{}\" =>", service.name)));
            !of_service.is_some_and(|line| line.contains("disabled") || line.contains("true"))
        };
        let enabled = disabled.ok().map(is_disabled);
        match output(&["launchctl", "print", &target(service)].map(str::to_owned)) {
            Ok(text) => {
                let running = text.lines().any(|line| line.trim() == "state = running");
                let said = if running { "running" } else { "loaded" };
                State { enabled, running: Some(running), said: said.to_owned() }
            }
            Err(CommandError::Failed(error)) if error.contains("Could not find service") => {
                State { enabled, running: Some(false), said: "not loaded".to_owned() }
            }
            Err(error) => State { enabled, ..State::unknown(error.text()) },
        }
    }

    fn advice(&self, service: &ServiceName) -> &'static str {
        if service.system {
            "it starts at boot, and runs as root"
        } else {
            "it starts when you log in, and ends when you log out"
        }
    }
}

fn domain(service: &ServiceName) -> String {
    if service.system { "system".to_owned() } else { format!("gui/{}", users::current_uid().unwrap_or_default()) }
}

fn target(service: &ServiceName) -> String {
    format!("{}/{}", domain(service), service.name)
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node, ParsingOptions};

    use super::Launchd;
    use crate::service::definition::Manages;
    use crate::service::tests::{HOSTILE, definition, is_refused};

    fn elements<'a, 'input>(node: Node<'a, 'input>) -> Vec<Node<'a, 'input>> {
        assert!(node.children().all(|child| !child.is_text() || child.text().unwrap().trim().is_empty()));
        node.children().filter(Node::is_element).collect()
    }

    /// Returns the value of a key of a dictionary, whose elements are keys and values in turn.
    fn value<'a, 'input>(dictionary: Node<'a, 'input>, name: &str) -> Node<'a, 'input> {
        let elements = elements(dictionary);
        assert!(elements.len().is_multiple_of(2) && elements.iter().step_by(2).all(|key| key.has_tag_name("key")));
        let at = elements.iter().position(|key| key.has_tag_name("key") && key.text() == Some(name));
        elements[at.unwrap_or_else(|| panic!("no {name}")) + 1]
    }

    #[test]
    fn an_agent_is_a_property_list_with_the_words_as_they_were_given() {
        for path in HOSTILE {
            let mut definition = definition(path);
            definition.directory = path.to_owned();
            definition.log = Some(path.to_owned());
            if is_refused(path) {
                assert!(Launchd.render(&definition).unwrap_err().contains("XML cannot express"), "{path:?}");
                continue;
            }
            let agent = Launchd.render(&definition).unwrap();
            let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
            let document = Document::parse_with_options(&agent, options).unwrap();
            let root = document.root_element();
            assert_eq!((root.tag_name().name(), root.attribute("version")), ("plist", Some("1.0")));
            let dictionary = elements(root)[0];
            let text = |name: &str, tag: &str| {
                let value = value(dictionary, name);
                assert!(value.has_tag_name(tag), "{name}");
                value.text().unwrap_or_default().to_owned()
            };
            let words = elements(value(dictionary, "ProgramArguments"));
            let words: Vec<&str> = words.iter().map(|word| word.text().unwrap_or_default()).collect();
            let given: Vec<&str> = [definition.program.as_str()].into_iter().chain(definition.arguments()).collect();
            assert_eq!(words, given);
            assert_eq!(text("Label", "string"), "duly");
            for key in ["WorkingDirectory", "StandardOutPath", "StandardErrorPath"] {
                assert_eq!(text(key, "string"), path);
            }
            assert_eq!(text("ExitTimeOut", "integer"), "90");
            assert!(value(dictionary, "RunAtLoad").has_tag_name("true"));
            assert!(value(value(dictionary, "KeepAlive"), "SuccessfulExit").has_tag_name("false"));
        }
    }
}
