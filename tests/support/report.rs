//! A table for people: Markdown, on the terminal and in a file.

use super::scripts::target;

pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, head: &[&str]) -> Table {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Table { title: title.to_owned(), rows: vec![head] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        println!("{}", cells.join(" | "));
        self.rows.push(cells);
    }

    pub fn markdown(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let line = |row: &Vec<String>| {
            let cells = (0..columns).map(|i| {
                let cell = row.get(i).cloned().unwrap_or_default();
                format!("{cell:<width$}", width = width(i))
            });
            format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        let rule = (0..columns).map(|i| "-".repeat(width(i))).collect::<Vec<_>>().join(" | ");
        let mut lines = vec![
            format!("## {}", self.title),
            String::new(),
            line(&self.rows[0]),
            format!("| {rule} |"),
        ];
        lines.extend(self.rows[1..].iter().map(line));
        lines.join("\n") + "\n"
    }
}

/// Prints the tables and keeps them in a directory below `target`.
pub fn write(directory: &str, name: &str, tables: &[Table]) {
    let text = tables.iter().map(Table::markdown).collect::<Vec<_>>().join("\n");
    let path = target().join(directory).join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &text).unwrap();
    println!("\n{text}\nwritten to {}", path.display());
}
