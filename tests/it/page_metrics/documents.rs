//! The documents, the dashboard and the alert rules name metrics that exist.

use std::collections::{BTreeMap, BTreeSet};

use duly::page::Page;
use duly::testing::ManualClock;

use crate::docs;
use crate::fixtures::{NOON, TestDb, at};
use crate::page_metrics::{Series, is_word, promtool, samples, scrape, scripted};

/// The words of a text that are names of metrics.
fn metrics_named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !is_word(c));
    words.filter(|word| word.starts_with("duly_")).map(str::to_owned).collect()
}

/// The labels that the expressions of a text select or group by.
fn labels_named(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for selector in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
        found.extend(selector.0.split(',').filter_map(|one| Some(one.split_once(['=', '!'])?.0.to_owned())));
    }
    for group in text.split("by (").skip(1).filter_map(|rest| rest.split_once(')')) {
        found.extend(group.0.split(',').map(|one| one.trim().to_owned()));
    }
    found
}

/// The expressions of the dashboard and the rules.
fn expressions() -> Vec<String> {
    fn walk(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                found.extend(map.get("expr").and_then(|expr| expr.as_str()).map(str::to_owned));
                map.values().for_each(|one| walk(one, found));
            }
            serde_json::Value::Array(all) => all.iter().for_each(|one| walk(one, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&serde_json::from_str(&read("examples/monitoring/duly-dashboard.json")).expect("JSON"), &mut found);
    let panels = found.len();
    let rules = read("examples/monitoring/duly.rules.yml");
    found.extend(rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned));
    assert!(panels > 30 && found.len() > panels + 10, "{panels} of {}", found.len());
    found
}

fn read(file: &str) -> String {
    docs::read(&docs::tree().join(file))
}

#[test]
fn dashboard_rules_and_documents_name_the_metrics_that_exist() {
    let (db, clock) = (TestDb::new(), ManualClock::new(at(NOON)));
    let scheduler = scripted(&db, &clock, Page::on("127.0.0.1:0").metrics_per_task());
    let text = scrape(&scheduler);
    let samples = samples(&text);
    let values = |name: &str, label: &str| -> BTreeSet<&str> {
        samples
            .keys()
            .filter(|(one, _)| one == name)
            .filter_map(|(_, labels)| labels.get(label))
            .map(String::as_str)
            .collect()
    };
    for expression in expressions() {
        let names = metrics_named(&expression);
        // The last rule asks whether anything is scraped.
        assert!(!names.is_empty() || expression.contains("absent(up{"), "{expression}");
        let mut labels = BTreeSet::from(["job".to_owned(), "instance".to_owned()]);
        for name in &names {
            let of: Vec<&Series> = samples.keys().filter(|(one, _)| one == name).collect();
            assert!(!of.is_empty(), "{name} does not exist: {expression}");
            labels.extend(of.iter().flat_map(|(_, labels)| labels.keys().cloned()));
        }
        let unknown: Vec<String> = labels_named(&expression).difference(&labels).cloned().collect();
        assert_eq!(unknown, [""; 0], "{expression}");
        for (label, rest) in ["outcome", "state", "reason", "status", "kind"].into_iter().flat_map(|label| {
            let starts = ["=\"", "!=\"", "=~\"", "!~\""].map(|op| format!("{label}{op}"));
            let found = starts.iter().filter_map(|start| Some(expression.split_once(start.as_str())?.1.to_owned()));
            found.map(|rest| (label, rest)).collect::<Vec<_>>()
        }) {
            let name = names.first().expect("a name");
            for wanted in rest.split('"').next().expect("a value").split('|') {
                assert!(values(name, label).contains(wanted), "{name} has no {label} {wanted:?}: {expression}");
            }
        }
    }
    let rules = docs::tree().join("examples/monitoring/duly.rules.yml");
    promtool(&["check", "rules", rules.to_str().expect("a path")], "");

    // The table of docs/metrics.md is the scrape.
    let mut documented = BTreeMap::new();
    for row in read("docs/metrics.md").lines().filter(|line| line.starts_with("| `duly_")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels: BTreeSet<String> = cells[3]
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned())
            .filter(|label| !label.is_empty())
            .collect();
        let meaning = cells[5];
        for ((name, label), value) in labels
            .iter()
            .map(|label| (cells[1].trim_matches('`'), label))
            .flat_map(|key| values(key.0, key.1).into_iter().map(move |value| (key, value)))
        {
            let is_listed = ["outcome", "status", "reason", "state"].contains(&label.as_str());
            let refers = meaning.contains("as `duly_");
            assert!(!is_listed || refers || meaning.contains(&format!("`{value}`")), "{name}: {label} {value}");
        }
        documented.insert(cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels));
    }
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let ["#", "TYPE", name, kind] = line.split(' ').collect::<Vec<_>>()[..] {
            kinds.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        }
    }
    for (name, labels) in samples.keys() {
        let family = ["_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        kinds.get_mut(family).expect(family).1.extend(labels.keys().filter(|label| *label != "le").cloned());
    }
    assert_eq!(documented, kinds);
}
