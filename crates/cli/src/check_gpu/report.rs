//! Prints tables and writes them to files.

use std::path::Path;
use std::str::FromStr;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Aligned columns.
    Table,
    /// Comma-separated values. Each table is preceded by a line of the form `# NAME`.
    Csv,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Format::Table),
            "csv" => Ok(Format::Csv),
            _ => Err(format!("--format {text}: unknown format; use table or csv")),
        }
    }
}

/// A table with a name.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Prints the table.
    pub(super) fn print(&self, format: Format) {
        match format {
            Format::Csv => print!("# {}\n{}\n", self.name, self.csv()),
            Format::Table => print!("{}\n{}\n", self.name, self.aligned()),
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
        let quoted = |cell: &str| match cell.contains([',', '"']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let line = |row: Vec<&str>| row.into_iter().map(quoted).collect::<Vec<_>>().join(",");
        self.lines().map(|row| line(row) + "\n").collect()
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
    fn a_table_is_aligned_and_its_file_is_quoted() {
        let table = Table {
            name: "t".into(),
            columns: &["what", "value"],
            rows: vec![vec!["a, b".into(), "1".into()]],
        };
        assert_eq!(table.csv(), "what,value\n\"a, b\",1\n");
        assert_eq!(table.aligned(), "  what  value\n  a, b  1\n");
    }
}
