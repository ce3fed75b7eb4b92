//! `docs/reference/manifest.md` names every key that the parser accepts, and no other; its examples are valid.

use std::path::Path;

use crate::manifest::{LIMIT_KEYS, SHARED_KEYS, TASK_KEYS, parse, worker};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/manifest.md");
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

#[test]
fn the_reference_names_every_key() {
    let page = page();
    let sections: Vec<(&str, Vec<&str>)> = page
        .split("\n## ")
        .skip(1)
        .map(|section| {
            let (title, rest) = section.split_once('\n').unwrap();
            let keys = rest.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
            (title, keys.collect())
        })
        .collect();
    let accepted = [
        ("`[[task]]`", TASK_KEYS),
        ("`[[task]]` and `[defaults]`", SHARED_KEYS),
        ("`[[limit]]`", LIMIT_KEYS),
        ("`[[worker]]`", worker::KEYS),
    ];
    assert_eq!(sections, accepted.map(|(title, keys)| (title, keys.to_vec())));
}

#[test]
fn the_examples_of_the_reference_are_valid() {
    let page = page();
    let examples: Vec<&str> = page.split("```toml\n").skip(1).map(|rest| rest.split_once("\n```").unwrap().0).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let declared = parse(example, Path::new("/etc/duly")).unwrap_or_else(|error| panic!("{error}\n{example}"));
        assert!(!declared.tasks.is_empty(), "{example}");
    }
}
