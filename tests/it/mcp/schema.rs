//! Compares an answer with the schema that its tool declares.

use serde_json::{Value, json};

/// Returns what of a value is not as the schema says. Of keywords it knows those that `duly mcp` uses for answers, and refuses others.
pub(crate) fn mismatch(schema: &Value, value: &Value, place: &str) -> Option<String> {
    const KNOWN: [&str; 6] = ["type", "enum", "properties", "required", "additionalProperties", "items"];
    let keywords = schema.as_object().expect("a schema");
    assert!(keywords.keys().all(|key| KNOWN.contains(&key.as_str())), "{place}: {schema}");
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => vec![kind.as_str().expect("a type")],
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.contains(&kind) || schema["enum"].as_array().is_some_and(|choices| !choices.contains(value)) {
        return Some(format!("{place}: expected {schema}, found {value}"));
    }
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(at, item)| mismatch(&schema["items"], item, &format!("{place}[{at}]")))
        }
        Value::Object(fields) => {
            assert_eq!(schema["additionalProperties"], false, "{place}: it says completely what it answers");
            let mut required = schema["required"].as_array().expect("names").iter().filter_map(Value::as_str);
            if let Some(missing) = required.find(|name| !fields.contains_key(*name)) {
                return Some(format!("{place}.{missing}: missing"));
            }
            fields.iter().find_map(|(name, field)| match schema["properties"].get(name) {
                Some(schema) => mismatch(schema, field, &format!("{place}.{name}")),
                None => Some(format!("{place}.{name}: not declared")),
            })
        }
        _ => None,
    }
}

#[test]
fn what_a_schema_does_not_say_is_found() {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "array", "items": {"type": "string", "enum": ["x"]}}},
    });
    assert_eq!(mismatch(&schema, &json!({"a": null, "b": ["x"]}), "answer"), None);
    for (value, place) in [
        (json!([]), "answer: "),
        (json!({"b": []}), "answer.a: missing"),
        (json!({"a": "1"}), "answer.a: "),
        (json!({"a": 1, "b": ["x", "y"]}), "answer.b[1]: "),
        (json!({"a": 1, "c": 1}), "answer.c: not declared"),
    ] {
        assert!(mismatch(&schema, &value, "answer").is_some_and(|found| found.starts_with(place)), "{value}");
    }
}
