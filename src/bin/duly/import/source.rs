//! The parsed content of a source: tasks, refused entries and remarks.

use duly::ImportItem;
use serde::Serialize;

/// The place of an entry in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Place {
    /// The line number, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<usize>,
    /// The ID of the entry in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
}

/// A task to import.
#[derive(Debug)]
pub(crate) struct ParsedTask {
    pub(crate) place: Place,
    /// The text of the entry.
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) item: ImportItem,
}

/// A message about an entry of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Note {
    #[serde(flatten)]
    pub(crate) place: Place,
    /// The text of the entry.
    pub(crate) text: String,
    pub(crate) reason: String,
}

/// The parsed content of a source.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) tasks: Vec<ParsedTask>,
    /// Entries that cannot be imported, with the reason.
    pub(crate) refused: Vec<Note>,
    /// Names of refused entries that may have been imported before; they are not pruned.
    pub(crate) retained: Vec<String>,
    /// Tasks that behave differently from what the user may expect.
    pub(crate) remarks: Vec<Note>,
}

impl Place {
    pub(crate) fn line(number: usize) -> Self {
        Place { line: Some(number), id: None }
    }

    pub(crate) fn id(id: &str) -> Self {
        Place { line: None, id: Some(id.to_owned()) }
    }

    /// Returns the place as text.
    pub(crate) fn text(&self) -> String {
        match (&self.line, &self.id) {
            (Some(line), _) => format!("line {line}"),
            (None, Some(id)) => id.clone(),
            (None, None) => String::new(),
        }
    }
}
