//! Every relative link of the documents leads to a file, and every anchor to a heading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::docs::{read, tree};

/// The folders that hold documents, beside the top.
const FOLDERS: [&str; 6] = ["docs", "clients", "examples", "benches", "fuzz", "packaging"];

/// Returns the documents: those at the top, and all below `FOLDERS`.
pub(crate) fn documents() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![tree().to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let is_read = folder != tree() || FOLDERS.contains(&&*name);
            if path.is_dir() && is_read && !["target", "node_modules"].contains(&&*name) {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.insert(path);
            }
        }
    }
    found
}

/// Returns a document without its fenced blocks.
fn prose(document: &Path) -> String {
    let text = read(document);
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(document: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(document).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim();
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let mut number = 0;
        let mut numbered = anchor.clone();
        while !found.insert(numbered.clone()) {
            number += 1;
            numbered = format!("{anchor}-{number}");
        }
    }
    found
}

/// Returns the targets of the links and images of a text, without text in backquotes: `[text](target)`, and `[label]: target`.
fn targets(text: &str) -> Vec<String> {
    let inline = without_code(text);
    let links = inline.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    links.chain(definitions(text).into_values()).map(str::to_owned).collect()
}

fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("code")
}

/// Returns the definitions of labels: `[label]: target`.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

/// Returns the labels that a text uses and defines nowhere: `[text][label]`, and `[file.md]`.
fn undefined(text: &str) -> Vec<String> {
    let (defined, inline) = (definitions(text), without_code(text));
    let prose = inline.lines().filter(|line| !(line.starts_with('[') && line.contains("]: ")));
    // The text of a link is no label, whether a target or a label follows.
    let opened = prose.flat_map(|line| line.split('[').skip(1).zip(line.split('[').skip(2).chain([""])));
    let is_text = |rest: &str, next: &str| rest.contains("](") || (rest.ends_with(']') && !next.is_empty());
    let labels = opened.filter(|(rest, next)| !is_text(rest, next)).filter_map(|(rest, _)| rest.split_once(']'));
    let labels = labels.map(|(label, _)| label).filter(|label| label.ends_with(".md") || label.contains(".md#"));
    labels.filter(|label| !defined.contains_key(label)).map(str::to_owned).collect()
}

#[test]
fn every_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let (mut count, mut wrong) = (0, Vec::new());
    for document in documents() {
        let text = prose(&document);
        assert_eq!(undefined(&text), Vec::<String>::new(), "{}: labels without a target", document.display());
        for target in targets(&text) {
            if target.starts_with("https://") || target.starts_with("http://") {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').map_or((&*target, None), |(file, anchor)| (file, Some(anchor)));
            let path = if file.is_empty() { document.clone() } else { document.with_file_name("").join(file) };
            let is_anchor =
                |anchor: &str| path.extension().is_some_and(|kind| kind == "md") && anchors(&path).contains(anchor);
            if !path.exists() || !anchor.is_none_or(is_anchor) {
                wrong.push(format!("{}: {target}", document.strip_prefix(tree()).expect("a path below").display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 300, "only {count} links were found");
    // A folder that is not in the list would not be looked at.
    let listed = documents().into_iter().collect::<Vec<_>>();
    for file in ["clients/node/README.md", "examples/nanoclaw/README.md", "packaging/README.md", "fuzz/README.md"] {
        assert!(listed.contains(&tree().join(file)), "{file} is not among the documents");
    }
}

#[test]
fn links_are_read() {
    assert_eq!(targets("a [b](c.md) and [`d`](e.md#f), `[g](h)`"), ["c.md", "e.md#f"]);
    assert_eq!(targets("a [b][c.md]\n\n[c.md]: ../c.md#d"), ["../c.md#d"]);
    assert_eq!(undefined("a [b][c.md#d], `[h.md]`, [e.md] and [f](g.md)\n\n[e.md]: e.md"), ["c.md#d"]);
    let anchors = anchors(&tree().join("docs/page.md"));
    assert!(anchors.contains("health-and-metrics"), "{anchors:?}");
}
