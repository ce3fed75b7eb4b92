//! A subset of JSON Schema 2020-12, for payloads of handlers and arguments of tools. A schema outside of it is refused: what is not
//! checked must not look as if it were.

use std::cmp::Ordering;

use regex_lite::Regex;
use serde_json::{Map, Number, Value};

use crate::cli::values::truncated;

/// Deepest nesting of a schema.
const MAX_DEPTH: usize = 16;
/// Most schemas within one.
const MAX_PARTS: usize = 512;
/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 500;

/// Keywords that are checked.
const CHECKED: [&str; 17] = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minProperties",
];
/// Keywords that say something to a reader, and restrict nothing.
const NOTES: [&str; 7] = ["$schema", "$id", "title", "description", "default", "examples", "$comment"];
/// The values of `type`.
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// A schema that was read completely.
#[derive(Clone, Debug, Default)]
pub(crate) struct PayloadSchema {
    /// As it was given.
    text: Value,
    types: Vec<&'static str>,
    allowed: Option<Vec<Value>>,
    properties: Vec<(String, PayloadSchema)>,
    required: Vec<String>,
    additional: Additional,
    items: Option<Box<PayloadSchema>>,
    /// Bounds of the number of items, characters and properties.
    item_count: Bounds,
    length: Bounds,
    property_count: Bounds,
    pattern: Option<Regex>,
    number: [Option<(Number, &'static str)>; 4],
}

/// What becomes of properties that are not declared.
#[derive(Clone, Debug, Default)]
enum Additional {
    #[default]
    Accepted,
    Refused,
    Checked(Box<PayloadSchema>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    least: Option<u64>,
    most: Option<u64>,
}

impl PayloadSchema {
    /// Reads a schema. An error names the place within it, what is expected and what was found.
    pub(crate) fn parse(schema: &Value) -> Result<Self, String> {
        read(schema, "", 0, &mut 0)
    }

    /// Returns the schema as it was given.
    pub(crate) fn text(&self) -> &Value {
        &self.text
    }

    /// Returns the names of the declared properties.
    pub(crate) fn property_names(&self) -> impl Iterator<Item = &str> {
        self.properties.iter().map(|(name, _)| name.as_str())
    }

    /// Checks a value. An error names the first place that does not match: `payload.to: expected a string, found 7`.
    pub(crate) fn check(&self, value: &Value, place: &str) -> Result<(), String> {
        let wrong = |expected: String| Err(format!("{place}: expected {expected}, found {}", shown(value)));
        if !self.types.is_empty() && !self.types.iter().any(|kind| is_of_type(value, kind)) {
            return wrong(self.types.join(" or "));
        }
        if let Some(allowed) = self.allowed.as_ref().filter(|allowed| !allowed.iter().any(|one| is_equal(one, value))) {
            let allowed: Vec<String> = allowed.iter().map(shown).collect();
            return wrong(format!("one of {}", allowed.join(", ")));
        }
        match value {
            Value::String(text) => self.check_text(text, place),
            Value::Number(number) => self.check_number(number, place),
            Value::Array(items) => self.check_items(items, place),
            Value::Object(fields) => self.check_fields(fields, place),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    fn check_text(&self, text: &str, place: &str) -> Result<(), String> {
        self.length.check(text.chars().count(), "characters", place)?;
        match &self.pattern {
            Some(pattern) if !pattern.is_match(text) => {
                Err(format!("{place}: expected a text that matches {}, found {:?}", pattern.as_str(), truncated(text)))
            }
            _ => Ok(()),
        }
    }

    fn check_number(&self, number: &Number, place: &str) -> Result<(), String> {
        for (bound, word) in self.number.iter().flatten() {
            let order = compare(number, bound);
            let holds = match *word {
                "minimum" => order.is_some_and(Ordering::is_ge),
                "maximum" => order.is_some_and(Ordering::is_le),
                "exclusiveMinimum" => order.is_some_and(Ordering::is_gt),
                _ => order.is_some_and(Ordering::is_lt),
            };
            if !holds {
                return Err(format!("{place}: expected a number with the {word} {bound}, found {number}"));
            }
        }
        Ok(())
    }

    fn check_items(&self, items: &[Value], place: &str) -> Result<(), String> {
        self.item_count.check(items.len(), "items", place)?;
        let Some(schema) = &self.items else { return Ok(()) };
        items.iter().enumerate().try_for_each(|(at, item)| schema.check(item, &format!("{place}[{at}]")))
    }

    fn check_fields(&self, fields: &Map<String, Value>, place: &str) -> Result<(), String> {
        if let Some(missing) = self.required.iter().find(|name| !fields.contains_key(*name)) {
            return Err(format!("{place}.{missing}: expected a value, found none"));
        }
        self.property_count.check(fields.len(), "properties", place)?;
        for (name, value) in fields {
            let inner = format!("{place}.{}", truncated(name));
            match (self.properties.iter().find(|(known, _)| known == name), &self.additional) {
                (Some((_, schema)), _) => schema.check(value, &inner)?,
                (None, Additional::Checked(schema)) => schema.check(value, &inner)?,
                (None, Additional::Refused) => {
                    let known: Vec<&str> = self.property_names().collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    return Err(format!("{inner}: not accepted; the properties are {known}"));
                }
                (None, Additional::Accepted) => {}
            }
        }
        Ok(())
    }
}

impl Bounds {
    fn check(self, count: usize, of: &str, place: &str) -> Result<(), String> {
        let count = count as u64;
        match self {
            Bounds { least: Some(least), .. } if count < least => {
                Err(format!("{place}: expected at least {least} {of}, found {count}"))
            }
            Bounds { most: Some(most), .. } if count > most => {
                Err(format!("{place}: expected at most {most} {of}, found {count}"))
            }
            _ => Ok(()),
        }
    }
}

fn read(schema: &Value, place: &str, depth: usize, parts: &mut usize) -> Result<PayloadSchema, String> {
    let at = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
    let Value::Object(fields) = schema else {
        return Err(format!("{}: expected an object, found {}", at("schema"), shown(schema)));
    };
    *parts += 1;
    if depth > MAX_DEPTH || *parts > MAX_PARTS {
        return Err(format!("expected at most {MAX_DEPTH} levels and {MAX_PARTS} parts"));
    }
    if let Some(unknown) = fields.keys().find(|key| !CHECKED.contains(&key.as_str()) && !NOTES.contains(&key.as_str()))
    {
        let known = CHECKED.join(", ");
        return Err(format!("{}: this keyword is not supported: expected one of {known}", at(&truncated(unknown))));
    }
    let mut inner = |value: &Value, key: String| read(value, &key, depth + 1, parts);
    let mut properties = Vec::new();
    for (name, value) in object(fields, "properties", &at)? {
        properties.push((name.clone(), inner(value, at(&format!("properties.{}", truncated(name))))?));
    }
    let additional = match fields.get("additionalProperties") {
        None | Some(Value::Bool(true)) => Additional::Accepted,
        Some(Value::Bool(false)) => Additional::Refused,
        Some(value) => Additional::Checked(Box::new(inner(value, at("additionalProperties"))?)),
    };
    let items = fields.get("items").map(|value| inner(value, at("items"))).transpose()?.map(Box::new);
    let allowed = match (fields.get("enum"), fields.get("const")) {
        (None, None) => None,
        (None, Some(value)) => Some(vec![value.clone()]),
        (Some(Value::Array(values)), None) if !values.is_empty() => Some(values.clone()),
        _ => return Err(format!("{}: expected an array of values, and no const beside it", at("enum"))),
    };
    let bounds = |least: &str, most: &str| -> Result<Bounds, String> {
        Ok(Bounds { least: count(fields, least, &at)?, most: count(fields, most, &at)? })
    };
    Ok(PayloadSchema {
        text: schema.clone(),
        types: types(fields, &at)?,
        allowed,
        properties,
        required: texts(fields, "required", &at)?,
        additional,
        items,
        item_count: bounds("minItems", "maxItems")?,
        length: bounds("minLength", "maxLength")?,
        property_count: bounds("minProperties", "")?,
        pattern: fields.get("pattern").map(|value| pattern(value, &at("pattern"))).transpose()?,
        number: numbers(fields, &at)?,
    })
}

fn types(fields: &Map<String, Value>, at: &impl Fn(&str) -> String) -> Result<Vec<&'static str>, String> {
    let named = |value: &Value| TYPES.into_iter().find(|name| value.as_str() == Some(name));
    let found = match fields.get("type") {
        None => Some(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(named).collect(),
        Some(value) => named(value).map(|name| vec![name]),
    };
    found.ok_or_else(|| format!("{}: expected one of {}", at("type"), TYPES.join(", ")))
}

fn texts(fields: &Map<String, Value>, key: &str, at: &impl Fn(&str) -> String) -> Result<Vec<String>, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match fields.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => {
            let texts: Option<Vec<String>> = values.iter().map(text).collect();
            texts.ok_or_else(|| format!("{}: expected an array of strings", at(key)))
        }
        Some(_) => Err(format!("{}: expected an array of strings", at(key))),
    }
}

fn object<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    at: &impl Fn(&str) -> String,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, String> {
    match fields.get(key) {
        None => Ok(None.into_iter().flatten()),
        Some(Value::Object(map)) => Ok(Some(map).into_iter().flatten()),
        Some(other) => Err(format!("{}: expected an object, found {}", at(key), shown(other))),
    }
}

fn count(fields: &Map<String, Value>, key: &str, at: &impl Fn(&str) -> String) -> Result<Option<u64>, String> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let wrong = || format!("{}: expected a whole number, 0 or more, found {}", at(key), shown(value));
    value.as_u64().map(Some).ok_or_else(wrong)
}

fn numbers(
    fields: &Map<String, Value>,
    at: &impl Fn(&str) -> String,
) -> Result<[Option<(Number, &'static str)>; 4], String> {
    let mut found = [const { None }; 4];
    for (place, key) in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].into_iter().enumerate() {
        let Some(value) = fields.get(key) else { continue };
        let Value::Number(number) = value else {
            return Err(format!("{}: expected a number, found {}", at(key), shown(value)));
        };
        found[place] = Some((number.clone(), key));
    }
    Ok(found)
}

/// Compiles a pattern, of which a text must match a part.
fn pattern(value: &Value, place: &str) -> Result<Regex, String> {
    let text = value.as_str().ok_or_else(|| format!("{place}: expected a string, found {}", shown(value)))?;
    if text.len() > MAX_PATTERN {
        return Err(format!("{place}: expected at most {MAX_PATTERN} bytes, found {}", text.len()));
    }
    let expected = |error| format!("{place}: expected a regular expression, found {:?}: {error}", truncated(text));
    Regex::new(text).map_err(expected)
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

/// Compares numbers by value: 1 is 1.0. Whole ones exactly: beyond 2^53, a float is that of several.
fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

/// Compares numbers by value.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare(one, other) == Some(Ordering::Equal),
        _ => one == other,
    }
}

/// A value for an error message: the beginning of its JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => truncated(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::PayloadSchema;
    use serde_json::{Value, json};

    fn schema(schema: Value) -> PayloadSchema {
        PayloadSchema::parse(&schema).unwrap_or_else(|error| panic!("{error}\n{schema}"))
    }

    #[test]
    fn values_match_or_the_first_place_that_does_not_is_named() {
        let reminder = schema(json!({
            "type": "object", "required": ["text"], "additionalProperties": false,
            "properties": {
                "text": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]+$"},
                "times": {"type": "integer", "minimum": 1, "exclusiveMaximum": 4},
                "to": {"type": ["string", "null"]},
                "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", 1]}},
                "rest": {"additionalProperties": {"type": "boolean"}, "minProperties": 1}
            }
        }));
        for (value, answer) in [
            (json!({"text": "hi", "times": 3.0, "to": null, "tags": ["a", 1.0], "rest": {"x": true}}), Ok(())),
            (json!("hi"), Err("payload: expected object, found \"hi\"")),
            (json!({}), Err("payload.text: expected a value, found none")),
            (json!({"text": 7}), Err("payload.text: expected string, found 7")),
            (json!({"text": ""}), Err("payload.text: expected at least 1 characters, found 0")),
            (json!({"text": "äöüäöü"}), Err("payload.text: expected at most 5 characters, found 6")),
            (json!({"text": "a\nb"}), Err("payload.text: expected a text that matches ^[a-z]+$, found \"a\\nb\"")),
            (json!({"text": "a\n"}), Err("payload.text: expected a text that matches ^[a-z]+$, found \"a\\n\"")),
            (json!({"text": "a", "times": 1.5}), Err("payload.times: expected integer, found 1.5")),
            (json!({"text": "a", "times": 0}), Err("payload.times: expected a number with the minimum 1, found 0")),
            (
                json!({"text": "a", "times": 4}),
                Err("payload.times: expected a number with the exclusiveMaximum 4, found 4"),
            ),
            (json!({"text": "a", "tags": ["b"]}), Err("payload.tags[0]: expected one of \"a\", 1, found \"b\"")),
            (json!({"text": "a", "tags": ["a", "a", "a"]}), Err("payload.tags: expected at most 2 items, found 3")),
            (json!({"text": "a", "rest": {}}), Err("payload.rest: expected at least 1 properties, found 0")),
            (json!({"text": "a", "rest": {"x": 1}}), Err("payload.rest.x: expected boolean, found 1")),
            (
                json!({"text": "a", "command": "rm"}),
                Err("payload.command: not accepted; the properties are rest, tags, text, times, to"),
            ),
        ] {
            assert_eq!(reminder.check(&value, "payload"), answer.map_err(str::to_owned), "{value}");
        }
    }

    /// As floats, 2^53 and 2^53 + 1 are one number.
    #[test]
    fn whole_numbers_are_compared_exactly() {
        let most = 1_u64 << 53;
        for bound in [json!({"maximum": most}), json!({"enum": [most]}), json!({"const": most})] {
            assert!(schema(bound.clone()).check(&json!(most), "n").is_ok(), "{bound}");
            assert!(schema(bound.clone()).check(&json!(most + 1), "n").is_err(), "{bound}");
        }
        assert!(schema(json!({"exclusiveMinimum": most})).check(&json!(most + 1), "n").is_ok());
    }

    #[test]
    fn a_schema_that_would_not_be_checked_completely_is_refused() {
        let deep = (0..17).fold(json!({}), |inner, _| json!({"items": inner}));
        let wide: Value = (0..600).map(|at| (at.to_string(), json!({}))).collect::<serde_json::Map<_, _>>().into();
        for (schema, says) in [
            (json!({"format": "email"}), "format: this keyword is not supported: expected one of type, enum,"),
            (json!({"properties": {"a": {"$ref": "#"}}}), "properties.a.$ref: this keyword is not supported"),
            (json!({"anyOf": []}), "anyOf: this keyword is not supported"),
            (json!({"type": "text"}), "type: expected one of null, boolean"),
            (json!({"enum": []}), "enum: expected an array of values"),
            (json!({"minLength": -1}), "minLength: expected a whole number, 0 or more, found -1"),
            (json!({"minimum": "1"}), "minimum: expected a number, found \"1\""),
            (json!({"required": "text"}), "required: expected an array of strings"),
            (json!({"pattern": "("}), "pattern: expected a regular expression, found \"(\""),
            (json!({"pattern": "a".repeat(501)}), "pattern: expected at most 500 bytes"),
            (json!({"properties": []}), "properties: expected an object, found an array"),
            (json!(true), "schema: expected an object, found true"),
            (deep, "expected at most 16 levels"),
            (json!({"properties": wide}), "expected at most 16 levels and 512 parts"),
        ] {
            let error = PayloadSchema::parse(&schema).unwrap_err();
            assert!(error.starts_with(says), "{schema}\n{error}");
        }
        let noted = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a", "default": 1});
        assert_eq!(schema(noted.clone()).text(), &noted);
    }
}
