//! The address of a database of PostgreSQL: `postgres://user@host/database?schema=duly`.

use std::str::FromStr;

use postgres::Config;

use crate::error::Error;

/// The schema of the tables, unless the address names another.
const SCHEMA: &str = "duly";

/// An address that was read and checked.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    schema: String,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let config = Config::from_str(text).map_err(|error| Error::store("read the address of the database", error))?;
        Ok(Address { config, schema: SCHEMA.to_owned() })
    }

    /// Returns the address of another schema of the same database.
    #[cfg(test)]
    pub(crate) fn in_schema(self, schema: &str) -> Self {
        Address { schema: schema.to_owned(), ..self }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the name of the schema for a statement.
    pub(crate) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }
}

/// Without the password.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "postgres://{}?schema={}", self.config.get_dbname().unwrap_or_default(), self.schema)
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
