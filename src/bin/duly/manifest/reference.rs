//! `docs/reference/manifest.md` names every key that the parser accepts, and no other; its examples are valid.

use std::path::Path;

use crate::cli::reference::{assert_current, quoted, renewed};
use crate::manifest::entry::{POLICIES, SHARED_KEYS};
use crate::manifest::{LIMIT_KEYS, TASK_KEYS, calendar, parse, template, worker};

#[test]
fn the_reference_of_the_manifest_is_current() {
    let shared = [SHARED_KEYS, POLICIES].concat();
    let tables = [
        ("`[[task]]`", TASK_KEYS),
        ("`[[task]]` and `[defaults]`", &shared),
        ("`[[calendar]]`", calendar::KEYS),
        ("`[[limit]]`", LIMIT_KEYS),
        ("`[[worker]]`", worker::KEYS),
        ("`[[template]]`", template::KEYS),
        ("`parameters.NAME`", template::PARAMETER_KEYS),
        ("`[handler.NAME]`", template::HANDLER_KEYS),
    ];
    let row = |key: &&str| vec![quoted(key), None, None, None];
    let tables = tables.map(|(heading, keys)| (heading.to_owned(), keys.iter().map(row).collect()));
    assert_current("manifest.md", |page| renewed(page, tables.to_vec(), &[]));
}

#[test]
fn the_examples_of_the_reference_are_valid() {
    let page = include_str!("../../../../docs/reference/manifest.md").replace("\r\n", "\n");
    let examples: Vec<&str> = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let declared = parse(example, Path::new("/etc/duly")).unwrap_or_else(|error| panic!("{error}\n{example}"));
        assert!(!declared.tasks.is_empty(), "{example}");
    }
}
