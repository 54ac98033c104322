//! Prints tables and writes them to files.

use crate::format::{Format, csv, object};
use serde_json::Value;
use std::path::Path;

/// A table with a name.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Prints the table. CSV begins with a line of the form `# NAME`, and each JSON object contains
    /// the name.
    pub(super) fn print(&self, format: Format) {
        match format {
            Format::Csv => print!("# {}\n{}\n", self.name, self.csv()),
            Format::Table => print!("{}\n{}\n", self.name, self.aligned()),
            Format::Json => self.rows.iter().for_each(|row| {
                let mut object = object(self.columns, row);
                object.insert("table".to_owned(), self.name.as_str().into());
                println!("{}", Value::from(object));
            }),
        }
    }

    /// Writes the table to `folder/NAME.csv`.
    ///
    /// # Errors
    /// Returns a message if the file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join(format!("{}.csv", self.name));
        std::fs::write(&path, self.csv())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(String::as_str).collect());
        std::iter::once(self.columns.to_vec()).chain(rows)
    }

    fn csv(&self) -> String {
        self.lines().map(|row| csv(&row)).collect()
    }

    fn aligned(&self) -> String {
        let width = |column: usize| {
            let cells = self.lines().filter_map(|row| Some(row.get(column)?.len()));
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: Vec<&str>| {
            let cells = row.into_iter().zip(&widths);
            let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            format!("  {}\n", line.trim_end())
        };
        self.lines().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_aligned_and_csv_is_quoted() {
        let table = Table {
            name: "t".into(),
            columns: &["what", "value"],
            rows: vec![vec!["a, b".into(), "1".into()]],
        };
        assert_eq!(table.csv(), "what,value\n\"a, b\",1\n");
        assert_eq!(table.aligned(), "  what  value\n  a, b  1\n");
    }
}
