//! The parsed content of a source: tasks, refused entries and remarks.

use std::borrow::Cow;

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
pub(crate) struct ParsedTask<'a> {
    pub(crate) place: Place,
    /// The text of the entry, as messages show it.
    pub(crate) text: Cow<'a, str>,
    pub(crate) name: String,
    /// Returns the task of this name. A source of a hundred thousand tasks takes less memory than these tasks.
    pub(crate) item: Box<dyn Fn(&str) -> ImportItem + 'a>,
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
#[derive(Default)]
pub(crate) struct Parsed<'a> {
    pub(crate) tasks: Vec<ParsedTask<'a>>,
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
