//! Holds values against the schemas of `openapi.json`: as much of JSON Schema as it uses.

use std::collections::BTreeSet;

use duly::Timestamp;
use serde_json::{Map, Value};

/// The parsed description.
pub(crate) struct Description(Value);

/// Every keyword that [`Description::faults`] knows, and `pattern` and `anyOf`, which only parameters have: another one would be ignored.
const KEYWORDS: &str = "
    $ref type description enum format minimum maximum default examples maxItems items properties required
    additionalProperties unevaluatedProperties allOf oneOf pattern anyOf";

impl Description {
    pub(crate) fn read() -> Self {
        Description(serde_json::from_str(include_str!("../../../src/page/openapi.json")).expect("JSON"))
    }

    #[track_caller]
    pub(crate) fn value(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or_else(|| panic!("nothing at {pointer}"))
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.object("/paths").keys().map(String::as_str)
    }

    fn object(&self, pointer: &str) -> &Map<String, Value> {
        self.value(pointer).as_object().expect("an object")
    }

    fn operation(&self, path: &str) -> &Value {
        &self.value("/paths")[path]["get"]
    }

    fn parameters(&self, path: &str) -> impl Iterator<Item = &Value> {
        self.operation(path)["parameters"].as_array().into_iter().flatten()
    }

    /// The names of the parameters of a query.
    pub(crate) fn query(&self, path: &str) -> Vec<&str> {
        let query = self.parameters(path).filter(|one| one["in"] == "query");
        query.map(|one| one["name"].as_str().expect("a name")).collect()
    }

    /// The parameters that limit a list, with their schemas.
    pub(crate) fn bounded(&self, path: &str) -> Vec<(&str, &Value)> {
        let bounded = self.parameters(path).filter(|one| one["name"] == "limit" || one["name"] == "n");
        bounded.map(|one| (one["name"].as_str().expect("a name"), &one["schema"])).collect()
    }

    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => self.value(reference.strip_prefix('#').expect("a reference within the file")),
            None => value,
        }
    }

    /// Asserts that an answer has the form that is documented for its path and code.
    #[track_caller]
    pub(crate) fn check(&self, path: &str, code: u16, body: &Value) {
        let answer = &self.operation(path)["responses"][code.to_string()];
        assert!(!answer.is_null(), "{path}: {code} is not documented: {body}");
        let schema = &self.resolved(answer)["content"]["application/json"]["schema"];
        let faults = self.faults(schema, body, path);
        assert!(!schema.is_null() && faults.is_empty(), "{}\n{body}", faults.join("\n"));
    }

    /// Returns what is wrong with a value, each with its place.
    fn faults(&self, schema: &Value, value: &Value, place: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(format!("{place}: {what}, found {value}"));
        if let Some(types) = schema.get("type") {
            let is = |name: &Value| match name.as_str().expect("a type") {
                "null" => value.is_null(),
                "string" => value.is_string(),
                "integer" => value.is_i64() || value.is_u64(),
                "boolean" => value.is_boolean(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("{place}: unknown type {other}"),
            };
            if !types.as_array().map_or_else(|| is(types), |types| types.iter().any(is)) {
                fault(format!("expected {types}"));
            }
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.contains(value)
        {
            fault(format!("expected one of {values:?}"));
        }
        if let (Some("date-time"), Some(text)) = (schema["format"].as_str(), value.as_str())
            && text.parse::<Timestamp>().ok().map(|at| at.to_string()).as_deref() != Some(text)
        {
            fault("expected RFC 3339, UTC, with milliseconds".to_owned());
        }
        if let Some(number) = value.as_i64() {
            let (least, most) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
            if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
                fault(format!("expected {least:?} to {most:?}"));
            }
        }
        if let (Some(most), Some(items)) = (schema["maxItems"].as_u64(), value.as_array())
            && items.len() as u64 > most
        {
            fault(format!("expected at most {most} items"));
        }
        if let Some(choices) = schema["oneOf"].as_array()
            && choices.iter().filter(|choice| self.faults(choice, value, place).is_empty()).count() != 1
        {
            fault("expected one of several forms".to_owned());
        }
        if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
            let each = values.iter().enumerate();
            faults.extend(each.flat_map(|(index, one)| self.faults(items, one, &format!("{place}/{index}"))));
        }
        if schema.get("$ref").is_some() {
            faults.extend(self.faults(self.resolved(schema), value, place));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            faults.extend(self.faults(part, value, place));
        }
        if let Some(object) = value.as_object() {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            faults.extend(
                required.filter(|key| !object.contains_key(*key)).map(|key| format!("{place}: expected the key {key}")),
            );
            for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
                let found = object.get(key).map(|value| self.faults(schema, value, &format!("{place}/{key}")));
                faults.extend(found.into_iter().flatten());
            }
            if schema["additionalProperties"] == false || schema["unevaluatedProperties"] == false {
                let known = self.keys(schema);
                let unknown = object.keys().filter(|key| !known.contains(key.as_str()));
                faults.extend(unknown.map(|key| format!("{place}: the key {key} is not documented")));
            }
        }
        faults
    }

    /// The keys that a schema and its parts describe.
    fn keys<'a>(&'a self, schema: &'a Value) -> BTreeSet<&'a str> {
        let schema = self.resolved(schema);
        let own = schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let parts = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| self.keys(part));
        own.chain(parts).collect()
    }

    /// Asserts that references lead somewhere, that what is defined is used, and that all has a description.
    pub(crate) fn check_itself(&self) {
        let mut used = BTreeSet::new();
        references(&self.0, &mut used);
        let defined = ["schemas", "responses"].iter().flat_map(|kind| {
            let names = self.object(&format!("/components/{kind}")).keys();
            names.map(move |name| format!("#/components/{kind}/{name}"))
        });
        assert_eq!(used, defined.collect());
        for path in self.paths() {
            let operation = self.operation(path);
            assert!(["operationId", "summary", "description"].iter().all(|key| operation[key].is_string()), "{path}");
            for parameter in self.parameters(path) {
                assert!(parameter["description"].is_string() && parameter["schema"].is_object(), "{path}: {parameter}");
                self.check_schema(&parameter["schema"], path);
            }
            let in_path: Vec<&str> = self
                .parameters(path)
                .filter(|one| one["in"] == "path")
                .filter_map(|one| one["name"].as_str())
                .collect();
            let named: Vec<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
            assert_eq!(in_path, named);
            for answer in operation["responses"].as_object().expect("answers").values() {
                let answer = self.resolved(answer);
                assert!(answer["description"].is_string(), "{path}");
                self.check_schema(&answer["content"]["application/json"]["schema"], path);
            }
        }
        for (name, schema) in self.object("/components/schemas") {
            assert!(schema["description"].is_string(), "{name}");
            self.check_schema(schema, name);
        }
    }

    fn check_schema(&self, schema: &Value, place: &str) {
        let schema = schema.as_object().unwrap_or_else(|| panic!("{place}: no schema"));
        for key in schema.keys() {
            assert!(KEYWORDS.split_whitespace().any(|known| known == key), "{place}: the keyword {key} is not checked");
        }
        for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let described = property.get("$ref").is_some() || property["description"].is_string();
            assert!(described, "{place}/{key} has no description");
            self.check_schema(property, &format!("{place}/{key}"));
        }
        let parts = ["allOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
        parts.chain(schema.get("items")).for_each(|part| self.check_schema(part, place));
    }
}

/// Collects the targets of all references.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
            object.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
