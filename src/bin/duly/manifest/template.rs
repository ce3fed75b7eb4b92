//! The `[[template]]` sections of a manifest: commands of which an agent fills in parameters, and `[handler.NAME]`: the schema of a
//! handler's payload.
//!
//! A parameter becomes a part of one argument, never text for a shell: it adds no argument, and no option.

use std::collections::BTreeMap;

use duly::NewTask;
use serde_json::{Map, Value as Json, json};
use toml::{Table, Value};

use crate::cli::add_args::Policies;
use crate::cli::values::truncated;
use crate::exec::payload::Payload;
use crate::manifest::entry::{Entry, POLICIES, SHARED_KEYS, check_keys, json_of, wrong_value};
use crate::manifest::payload_schema::PayloadSchema;
use crate::manifest::scripts::{is_script, is_wrapped};

/// Keys of a template, besides those that it shares with tasks.
pub(super) const KEYS: &[&str] = &["name", "description", "command", "stdin", "parameters"];
/// Keys of a parameter.
pub(super) const PARAMETER_KEYS: &[&str] =
    &["type", "description", "min_length", "max_length", "pattern", "multiline", "enum", "minimum", "maximum"];
/// Keys of a handler.
pub(super) const HANDLER_KEYS: &[&str] = &["description", "payload_schema"];
/// Most templates, and most parameters of one.
const MAX_TEMPLATES: usize = 100;
/// Longest text of a parameter without `max_length`, and with it, in characters.
const DEFAULT_LENGTH: u64 = 200;
const MAX_LENGTH: u64 = 10_000;

/// A command with parameters.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) description: String,
    parameters: BTreeMap<String, Parameter>,
    arguments: Vec<Vec<Piece>>,
    payload: Payload,
    policies: Policies,
}

/// A handler that a manifest describes.
#[derive(Debug)]
pub(crate) struct HandlerReference {
    pub(crate) description: String,
    pub(crate) payload: Option<PayloadSchema>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Parameter(String),
}

#[derive(Debug)]
struct Parameter {
    schema: PayloadSchema,
    /// Whether its text may have line ends and tabs.
    multiline: bool,
    /// Whether its text may begin with a hyphen: no program can take it for an option where it is used.
    hyphen: bool,
}

impl Template {
    /// Returns the JSON schema of the parameters.
    pub(crate) fn schema(&self) -> Json {
        let schemas = self.parameters.iter().map(|(name, parameter)| (name.clone(), parameter.schema.text().clone()));
        let properties: Map<String, Json> = schemas.collect();
        let required: Vec<&String> = self.parameters.keys().collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    /// Gives a task the command with these parameters, and the policies of the template.
    pub(crate) fn fill(&self, task: NewTask, given: &Map<String, Json>) -> Result<NewTask, String> {
        let payload = self.filled(given)?.checked()?;
        Ok(self.policies.set(task.handler("command").payload(payload)))
    }

    /// Returns the command with these parameters.
    fn filled(&self, given: &Map<String, Json>) -> Result<Payload, String> {
        if let Some(unknown) = given.keys().find(|name| !self.parameters.contains_key(*name)) {
            let known: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!("parameters.{}: the template {} has {known}", truncated(unknown), self.name));
        }
        let mut texts = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            let value = given.get(name).ok_or_else(|| format!("parameters.{name}: expected a value, found none"))?;
            texts.insert(name.as_str(), parameter.text(value, &format!("parameters.{name}"))?);
        }
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Parameter(name) => texts.get(name.as_str()).cloned().unwrap_or_default(),
        };
        let argv = self.arguments.iter().map(|pieces| pieces.iter().map(text).collect()).collect();
        Ok(Payload { argv, ..self.payload.clone() })
    }
}

impl Parameter {
    /// Returns the text of a value, if it is accepted.
    fn text(&self, value: &Json, place: &str) -> Result<String, String> {
        let wrong =
            |expected: &str| Err(format!("{place}: expected {expected}, found {}", truncated(&value.to_string())));
        let is_refused = |letter: char| letter.is_control() && !(self.multiline && (letter == '\n' || letter == '\t'));
        let text = match value {
            Json::String(text) if text.contains(is_refused) => return wrong("a text without control characters"),
            Json::String(text) => text.clone(),
            Json::Number(number) if number.is_f64() => return wrong("a whole number without a point"),
            other => other.to_string(),
        };
        self.schema.check(value, place)?;
        match text.starts_with('-') && !self.hyphen {
            true => wrong("a value that does not begin with a hyphen, as an option does"),
            false => Ok(text),
        }
    }
}

/// Reads each `[[template]]` of a file, in order. `[defaults]` apply as to a task.
pub(super) fn templates(file: &Table, shared: &Entry<'_>) -> Result<Vec<Template>, String> {
    let given = match file.get("template") {
        None => return Ok(Vec::new()),
        Some(Value::Array(given)) => given,
        Some(other) => return Err(wrong_value("template", "tables, [[template]]", other)),
    };
    if given.len() > MAX_TEMPLATES {
        return Err(format!("template: expected at most {MAX_TEMPLATES} templates, found {}", given.len()));
    }
    let mut templates: Vec<Template> = Vec::with_capacity(given.len());
    for (place, value) in given.iter().enumerate() {
        let Value::Table(table) = value else { return Err(wrong_value("template", "tables, [[template]]", value)) };
        let place = match table.get("name") {
            Some(Value::String(name)) => format!("template {:?}: ", truncated(name)),
            _ => format!("template {}: ", place + 1),
        };
        if let Some(key) = OF_SCHEDULES.iter().find(|key| table.contains_key(**key)) {
            return Err(format!("{place}{key}: not allowed for a template: the agent chooses the schedule"));
        }
        let others: Vec<&str> = [SHARED_KEYS, POLICIES].concat();
        let others: Vec<&str> = others.into_iter().filter(|key| !OF_SCHEDULES.contains(key)).collect();
        check_keys(table, &place, &[KEYS, &others])?;
        let template = template(&Entry { table, ..*shared }).map_err(|reason| format!("{place}{reason}"))?;
        if templates.iter().any(|other| other.name == template.name) {
            return Err(format!("{place}expected one template of this name, found two"));
        }
        templates.push(template);
    }
    Ok(templates)
}

/// What the agent chooses.
const OF_SCHEDULES: [&str; 4] = ["time_zone", "only_between", "only_on", "except"];

fn template(entry: &Entry<'_>) -> Result<Template, String> {
    let name = entry.text("name")?.ok_or("name: expected a string, found none")?;
    if !is_name(&name) {
        return Err(format!("name: expected {EXPECTED_NAME}, found {:?}", truncated(&name)));
    }
    let mut parameters = parameters(entry)?;
    let payload = entry.command()?.ok_or("command: expected an array of strings, found none")?;
    payload.checked()?;
    let arguments: Vec<Vec<Piece>> = payload.argv.iter().map(|text| pieces(text)).collect::<Result<_, _>>()?;
    check_uses(&arguments, &mut parameters)?;
    let description = entry.text("description")?.unwrap_or_default();
    let policies = Policies { only_between: None, only_on: None, except_on: None, ..entry.policies()? };
    Ok(Template { name, description, parameters, arguments, payload, policies })
}

/// Refuses a parameter that is not used or not declared, and one that would choose the program or be read as a script.
fn check_uses(arguments: &[Vec<Piece>], parameters: &mut BTreeMap<String, Parameter>) -> Result<(), String> {
    let mut end_of_options = false;
    let mut used: BTreeMap<&str, bool> = BTreeMap::new();
    let literals: Vec<Option<&str>> = arguments.iter().map(|pieces| literal(pieces)).collect();
    for (at, pieces) in arguments.iter().enumerate() {
        let beginning = match pieces.first() {
            Some(Piece::Text(text)) => text.as_str(),
            _ => "",
        };
        for piece in pieces {
            let Piece::Parameter(name) = piece else { continue };
            if at == 0 {
                return Err(format!("command: the program must not have a parameter, found {{{name}}}"));
            }
            if is_script(&literals[..at], beginning) {
                let advice = "give it to the script as an argument of its own; if options stand before the program, write -- between them";
                return Err(format!(
                    "command: {{{name}}} would be a part of a script, or the name of a program: {advice}"
                ));
            }
            let is_safe = used.entry(name).or_insert(true);
            *is_safe = *is_safe && (end_of_options || !beginning.is_empty());
        }
        end_of_options = match literals[at] {
            // That of a wrapper ends the options of the wrapper, and those of its program follow.
            Some("--") => !is_wrapped(&literals[..at]),
            Some(_) => false,
            None => end_of_options,
        };
    }
    for (name, is_safe) in &used {
        let unknown = || format!("command: {{{name}}} is not one of the parameters; {{{{ stands for a brace");
        parameters.get_mut(*name).ok_or_else(unknown)?.hyphen = *is_safe;
    }
    match parameters.keys().find(|name| !used.contains_key(name.as_str())) {
        Some(unused) => Err(format!("parameters.{unused}: the command does not use it")),
        None => Ok(()),
    }
}

/// Returns the text of an argument without parameters.
fn literal(pieces: &[Piece]) -> Option<&str> {
    match pieces {
        [Piece::Text(text)] => Some(text),
        _ => None,
    }
}

/// Splits an argument at its parameters. `{{` and `}}` stand for braces.
fn pieces(argument: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), argument);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        if after.as_bytes().first() == Some(&brace) {
            text.push(char::from(brace));
            rest = &after[1..];
            continue;
        }
        let name = if brace == b'{' { after.split_once('}') } else { None };
        let Some((name, after)) = name.filter(|(name, _)| is_name(name)) else {
            return Err(format!("command: expected {{parameter}} or {{{{, found {:?}", truncated(&rest[at..])));
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Parameter(name.to_owned()));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

const EXPECTED_NAME: &str = "a letter, then up to 63 letters, digits or _ -";

fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
}

fn parameters(entry: &Entry<'_>) -> Result<BTreeMap<String, Parameter>, String> {
    let given = match entry.table.get("parameters") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(given)) => given,
        Some(other) => return Err(wrong_value("parameters", "a table, [template.parameters.NAME]", other)),
    };
    let read = |(name, value): (&String, &Value)| {
        let place = format!("parameters.{}: ", truncated(name));
        if !is_name(name) {
            return Err(format!("{place}expected {EXPECTED_NAME}"));
        }
        let Value::Table(table) = value else {
            return Err(wrong_value(&format!("parameters.{name}"), "a table", value));
        };
        check_keys(table, &place, &[PARAMETER_KEYS])?;
        let parameter = parameter(table).map_err(|reason| format!("{place}{reason}"))?;
        Ok((name.clone(), parameter))
    };
    given.iter().map(read).collect()
}

fn parameter(table: &Table) -> Result<Parameter, String> {
    let entry = Entry::alone(table);
    let kind = entry.text("type")?.unwrap_or_else(|| "string".to_owned());
    let only = |keys: &[&str]| {
        let other =
            table.keys().find(|key| !["type", "description"].contains(&key.as_str()) && !keys.contains(&key.as_str()));
        other.map_or(Ok(()), |key| Err(format!("{key}: not allowed for the type {kind}")))
    };
    let mut schema = match kind.as_str() {
        "string" if table.contains_key("enum") => {
            only(&["enum"])?;
            let choices = entry.list("enum")?.unwrap_or_default();
            if choices.is_empty() || choices.iter().any(|choice| choice.contains(char::is_control)) {
                return Err("enum: expected strings without control characters".to_owned());
            }
            json!({"enum": choices})
        }
        "string" => {
            only(&["min_length", "max_length", "pattern", "multiline"])?;
            schema_of_text(&entry)?
        }
        "integer" => {
            only(&["minimum", "maximum"])?;
            let bound = |key: &str| match table.get(key) {
                Some(Value::Integer(number)) => Ok(*number),
                Some(other) => Err(wrong_value(key, "a whole number", other)),
                None => Err(format!("{key}: expected a whole number, found none")),
            };
            let (least, most) = (bound("minimum")?, bound("maximum")?);
            if least > most {
                return Err(format!("minimum: expected at most {most}, found {least}"));
            }
            json!({"minimum": least, "maximum": most})
        }
        "boolean" => {
            only(&[])?;
            json!({})
        }
        other => return Err(format!("type: expected string, integer or boolean, found {:?}", truncated(other))),
    };
    schema["type"] = json!(kind);
    if let Some(description) = entry.text("description")?.filter(|description| !description.is_empty()) {
        schema["description"] = json!(description);
    }
    Ok(Parameter { schema: PayloadSchema::parse(&schema)?, multiline: entry.flag("multiline")?, hyphen: false })
}

fn schema_of_text(entry: &Entry<'_>) -> Result<Json, String> {
    let (least, most) = (entry.number::<i64>("min_length")?, entry.number::<i64>("max_length")?);
    let length = |number: Option<i64>, default: u64| number.map_or(Ok(default), u64::try_from);
    let bounds = (length(least, 1), length(most, DEFAULT_LENGTH));
    let (Ok(least), Ok(most)) = bounds else { return Err("max_length: expected a whole number, 0 or more".to_owned()) };
    if least > most || most > MAX_LENGTH {
        return Err(format!("max_length: expected {least} to {MAX_LENGTH}, found {most}"));
    }
    let mut schema = json!({"minLength": least, "maxLength": most});
    if let Some(pattern) = entry.text("pattern")? {
        // The whole text must match.
        schema["pattern"] = json!(format!("^(?:{pattern})$"));
    }
    Ok(schema)
}

/// Reads each `[handler.NAME]` of a file.
pub(super) fn handlers(file: &Table) -> Result<BTreeMap<String, HandlerReference>, String> {
    let given = match file.get("handler") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(given)) => given,
        Some(other) => return Err(wrong_value("handler", "tables, [handler.NAME]", other)),
    };
    let read = |(name, value): (&String, &Value)| {
        let place = format!("handler {:?}: ", truncated(name));
        let Value::Table(table) = value else { return Err(wrong_value("handler", "tables, [handler.NAME]", value)) };
        check_keys(table, &place, &[HANDLER_KEYS])?;
        let description = Entry::alone(table).text("description");
        let description = description.map_err(|reason| format!("{place}{reason}"))?.unwrap_or_default();
        let schema = |value: &Value| PayloadSchema::parse(&json_of(value)?);
        let payload = table.get("payload_schema").map(schema).transpose();
        let payload = payload.map_err(|reason| format!("{place}payload_schema: {reason}"))?;
        Ok((name.clone(), HandlerReference { description, payload }))
    };
    given.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use duly::NewTask;
    use serde_json::{Value, json};

    use crate::manifest::{Declared, parse};

    fn declared(text: &str) -> Result<Declared, String> {
        parse(text, Path::new("/srv"))
    }

    fn template(command: &str, parameters: &str) -> String {
        format!("[[template]]\nname = \"post\"\ncommand = {command}\n{parameters}")
    }

    /// The arguments of the command, or why a value is refused.
    fn filled(text: &str, given: Value) -> Result<Vec<String>, String> {
        let declared = declared(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let given = given.as_object().expect("an object");
        declared.templates[0].fill(NewTask::manual("t"), given)?;
        declared.templates[0].filled(given).map(|payload| payload.argv)
    }

    #[test]
    fn a_parameter_is_a_part_of_one_argument() {
        let text = template(
            r#"["post", "--to={to}", "-n", "{times}", "{{a}}", "--", "{text}"]"#,
            "parameters.to = { max_length = 20 }\nparameters.times = { type = \"integer\", minimum = 1, maximum = 3 }\n\
             parameters.text = { max_length = 60, multiline = true }",
        );
        let hostile = "-rf \"'$(id)`id`; --x\n&& {to}";
        let argv = filled(&text, json!({"to": "-x", "times": 2, "text": hostile})).unwrap();
        assert_eq!(argv, ["post", "--to=-x", "-n", "2", "{a}", "--", hostile]);
        for (given, says) in [
            (json!({"to": "a", "times": 2}), "parameters.text: expected a value, found none"),
            (
                json!({"to": "a", "times": 2, "text": "b", "cwd": "/"}),
                "parameters.cwd: the template post has text, times, to",
            ),
            (
                json!({"to": "a\nb", "times": 2, "text": "b"}),
                "parameters.to: expected a text without control characters",
            ),
            (
                json!({"to": "a", "times": 4, "text": "b"}),
                "parameters.times: expected a number with the maximum 3, found 4",
            ),
            (json!({"to": "a", "times": "2", "text": "b"}), "parameters.times: expected integer, found \"2\""),
            (
                json!({"to": "a", "times": 2.0, "text": "b"}),
                "parameters.times: expected a whole number without a point",
            ),
            (json!({"to": ["a"], "times": 2, "text": "b"}), "parameters.to: expected string, found an array"),
            (json!({"to": "", "times": 2, "text": "b"}), "parameters.to: expected at least 1 characters, found 0"),
            (json!({"to": "a", "times": 2, "text": "\u{0}"}), "parameters.text: expected a text without control"),
        ] {
            let error = filled(&text, given.clone()).unwrap_err();
            assert!(error.starts_with(says), "{given}\n{error}");
        }
    }

    #[test]
    fn a_value_that_begins_with_a_hyphen_is_refused_where_it_could_be_an_option() {
        let only = |command: &str| template(command, "parameters.x = { pattern = \"[-a-z]+\" }");
        for (command, is_accepted) in [
            (r#"["p", "{x}"]"#, false),
            (r#"["p", "{x}{x}"]"#, false),
            (r#"["p", "--", "{x}"]"#, true),
            (r#"["npm", "run", "post", "--", "{x}"]"#, false),
            (r#"["env", "--", "touch", "{x}"]"#, false),
            (r#"["sudo", "--", "p", "--", "{x}"]"#, false),
            (r#"["p", "--", "q", "{x}"]"#, false),
            (r#"["p", "--x={x}"]"#, true),
            (r#"["p", "to:{x}"]"#, true),
            (r#"["p", "--x={x}", "{x}"]"#, false),
        ] {
            assert_eq!(filled(&only(command), json!({"x": "-a"})).is_ok(), is_accepted, "{command}");
            assert!(filled(&only(command), json!({"x": "a"})).is_ok(), "{command}");
            assert!(filled(&only(command), json!({"x": "a b"})).is_err(), "{command}");
        }
    }

    #[test]
    fn a_template_that_would_give_a_model_more_than_arguments_is_refused() {
        let x = "parameters.x = {}";
        for (command, parameters, says) in [
            (r#"["{x}"]"#, x, "command: the program must not have a parameter, found {x}"),
            (r#"["p", "{y}"]"#, x, "command: {y} is not one of the parameters"),
            (r#"["p"]"#, x, "parameters.x: the command does not use it"),
            (r#"["p", "{x"]"#, x, "command: expected {parameter} or {{, found \"{x\""),
            (r#"["p", "x}"]"#, x, "command: expected {parameter} or {{, found \"}\""),
            (r#"[]"#, "", "command: expected a program, found none"),
            (
                r#"["p", "{x}"]"#,
                "parameters.x = { type = \"integer\" }",
                "parameters.x: minimum: expected a whole number",
            ),
            (
                r#"["p", "{x}"]"#,
                "parameters.x = { type = \"float\" }",
                "parameters.x: type: expected string, integer or",
            ),
            (
                r#"["p", "{x}"]"#,
                "parameters.x = { minimum = 1 }",
                "parameters.x: minimum: not allowed for the type string",
            ),
            (
                r#"["p", "{x}"]"#,
                "parameters.x = { pattern = \"(\" }",
                "parameters.x: pattern: expected a regular expression",
            ),
            (
                r#"["p", "{x}"]"#,
                "parameters.x = { max_length = 20000 }",
                "parameters.x: max_length: expected 1 to 10000",
            ),
            (r#"["p"]"#, "time_zone = \"UTC\"", "time_zone: not allowed for a template"),
            (r#"["p"]"#, "shell = \"id\"", "unknown key \"shell\""),
        ] {
            let error = declared(&template(command, parameters)).unwrap_err();
            assert!(error.starts_with(&format!("template \"post\": {says}")), "{command} {parameters}\n{error}");
        }
        let scripts = [
            r#"["sh", "-c", "echo {x}"]"#,
            r#"["/bin/bash", "-c", "{x}"]"#,
            r#"["env", "bash", "-lc", "{x}"]"#,
            r#"["bash", "-o", "pipefail", "-euc", "{x}"]"#,
            r#"["sh", "{x}"]"#,
            r#"["python3", "-c", "{x}"]"#,
            r#"["node", "--eval", "{x}"]"#,
            r#"["bash", "-ce", "{x}"]"#,
            r#"["python3.12", "-c{x}"]"#,
            r#"["node", "--eval={x}"]"#,
            r#"["perl", "-ne", "{x}"]"#,
            r#"["ruby", "-e{x}"]"#,
            r#"["su", "postgres", "-c{x}"]"#,
            r#"["php", "-r", "{x}"]"#,
            r#"["node", "-p", "{x}"]"#,
            r#"["env", "-S", "{x}"]"#,
            r#"["ssh", "host", "{x}"]"#,
            r#"["awk", "{x}"]"#,
            r#"["deno", "eval", "{x}"]"#,
            r#"["sqlite3", "a.db", "{x}"]"#,
        ];
        for command in scripts {
            let error = declared(&template(command, x)).unwrap_err();
            assert!(error.contains("command: {x} would be a part of a script"), "{command}\n{error}");
        }
        for command in [
            r#"["sudo", "{x}"]"#,
            r#"["env", "A=b", "{x}"]"#,
            r#"["timeout", "-k", "1s", "5", "{x}"]"#,
            r#"["sudo", "nice", "-n", "5", "{x}"]"#,
            r#"["python3", "-u", "{x}"]"#,
            r#"["nice", "node", "{x}"]"#,
            r#"["find", ".", "-exec", "{x}", ";"]"#,
            r#"["sh", "-c", "$0", "{x}"]"#,
            r#"["bash", "-c", "cd /srv && \"$1\"", "x", "{x}"]"#,
            r#"["sh", "-c", "eval \"$1\"", "x", "{x}"]"#,
            r#"["sudo", "-u", "bob", "{x}"]"#,
            r#"["sudo", "-u", "bob", "--", "{x}"]"#,
            r#"["env", "-u", "X", "{x}"]"#,
            r#"["timeout", "-s", "KILL", "5", "{x}"]"#,
            r#"["npm", "run", "{x}"]"#,
            r#"["npm", "--prefix", "/srv", "{x}"]"#,
            r#"["xargs", "-I", "x", "{x}"]"#,
            r#"["docker", "exec", "c", "{x}"]"#,
            r#"["bash", "-o", "errexit", "{x}"]"#,
            r#"["python3", "-W", "ignore", "{x}"]"#,
            r#"["perl", "-I", "lib", "{x}"]"#,
            r#"["deno", "run", "{x}"]"#,
            r#"["sh", "-c", "if true; then $1; fi", "x", "{x}"]"#,
            r#"["sh", "-c", "exec -- \"$1\"", "x", "{x}"]"#,
            r#"["sh", "-c", "sudo -u bob $1", "x", "{x}"]"#,
            r#"["sh", "-c", ". \"$1\"", "x", "{x}"]"#,
            r#"["sh", "-c", "A=1 $@", "x", "{x}"]"#,
            r#"["sh", "-c", "bash -c \"$1\"", "x", "{x}"]"#,
        ] {
            let error = declared(&template(command, x)).unwrap_err();
            assert!(error.contains("command: {x} would be a part of a script"), "{command}\n{error}");
        }
        for command in [
            r#"["sh", "post.sh", "--to={x}"]"#,
            r#"["sh", "-c", "echo \"$1\"", "sh", "{x}"]"#,
            r#"["timeout", "5", "post", "--", "{x}"]"#,
            r#"["python3", "post.py", "{x}"]"#,
            r#"["find", ".", "-name", "{x}"]"#,
            r#"["sh", "/srv/post.sh", "{x}"]"#,
            r#"["sh", "-c", "exec ./post --to=\"$1\"", "x", "{x}"]"#,
            r#"["sh", "-c", "$HOME/bin/post \"$1\"", "x", "{x}"]"#,
            r#"["sudo", "-u", "bob", "post", "{x}"]"#,
            r#"["sudo", "-n", "--", "post", "{x}"]"#,
            r#"["npm", "run", "post", "{x}"]"#,
            r#"["docker", "exec", "db", "pg_dump", "{x}"]"#,
            r#"["python3", "-u", "post.py", "{x}"]"#,
            r#"["deno", "run", "--allow-net", "post.ts", "{x}"]"#,
        ] {
            assert!(declared(&template(command, x)).is_ok(), "{command}");
        }
        let twice = template(r#"["p"]"#, "").repeat(2);
        assert!(declared(&twice).unwrap_err().contains("expected one template of this name, found two"));
    }

    #[test]
    fn a_handler_has_a_schema_or_an_error_that_names_it() {
        let text = "[handler.remind]\ndescription = \"Sends a text\"\npayload_schema = { type = \"object\" }\n[handler.post]\n";
        let handlers = declared(text).unwrap().handlers;
        assert!(handlers["remind"].payload.as_ref().unwrap().check(&json!(1), "payload").is_err());
        assert!(handlers["post"].payload.is_none() && handlers["remind"].description == "Sends a text");
        for (text, says) in [
            (
                "[handler.a]\npayload_schema = { format = \"email\" }",
                "handler \"a\": payload_schema: format: this keyword",
            ),
            ("[handler.a]\nschema = {}", "handler \"a\": unknown key \"schema\": expected one of"),
            ("[[handler]]\nname = \"a\"", "handler: expected tables, [handler.NAME], found an array"),
        ] {
            assert!(declared(text).unwrap_err().starts_with(says), "{text}");
        }
    }
}
