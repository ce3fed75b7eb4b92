//! What a source holds: tasks that can come, what cannot, and what is to be known of what comes.

use duly::ImportItem;
use serde::Serialize;

/// Where in the source something stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Place {
    /// The line, from 1, of a source that has lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<usize>,
    /// What the source itself calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
}

/// A task that can come, as far as the source goes.
#[derive(Debug)]
pub(crate) struct Coming {
    pub(crate) place: Place,
    /// How it is written there.
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) brought: ImportItem,
}

/// What is to be said of something in the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Said {
    #[serde(flatten)]
    pub(crate) place: Place,
    /// How it is written there.
    pub(crate) text: String,
    pub(crate) reason: String,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) tasks: Vec<Coming>,
    /// What cannot come, and why.
    pub(crate) refused: Vec<Said>,
    /// The names of those of them that may have come before, and are still there: nothing to prune.
    pub(crate) staying: Vec<String>,
    /// What comes otherwise than somebody may think.
    pub(crate) remarks: Vec<Said>,
}

impl Place {
    pub(crate) fn line(number: usize) -> Self {
        Place { line: Some(number), id: None }
    }

    pub(crate) fn id(id: &str) -> Self {
        Place { line: None, id: Some(id.to_owned()) }
    }

    /// As people read it.
    pub(crate) fn shown(&self) -> String {
        match (&self.line, &self.id) {
            (Some(line), _) => format!("line {line}"),
            (None, Some(id)) => id.clone(),
            (None, None) => String::new(),
        }
    }
}
