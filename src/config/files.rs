//! Reads the configuration file and its drop-ins. Blocking; called before the async runtime starts.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::document::{Layers, Problems};
use super::kubelet_configuration::{Decoding, Part, read};
use crate::base::document::DocumentNode;

/// Maximum number of warnings about one file.
const MAX_WARNINGS: usize = 50;
/// Maximum size of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum depth of directories below the drop-in directory.
const MAX_DEPTH: usize = 8;

/// Reads `--config` and `--config-dir`; returns the parsed files, and warnings.
///
/// # Errors
/// A file that cannot be read or is unusable as a whole, with all problems in all files. Mistaken values alone are
/// returned as problems of the layers.
pub(super) fn read_layers(
    config: Option<&Path>,
    config_dir: Option<&Path>,
    decoding: Decoding,
) -> anyhow::Result<(Layers, Vec<String>)> {
    let mut drop_ins = Vec::new();
    let mut warnings = Vec::new();
    if let Some(directory) = config_dir {
        let mut skipped = Vec::new();
        collect_drop_ins(directory, 0, &mut drop_ins, &mut skipped)?;
        if !skipped.is_empty() {
            let names = skipped.join(", ");
            warnings.push(format!("files without .conf in the drop-in directory ignored: {names}"));
        }
    }
    let mut problems = Vec::new();
    let mut all_usable = true;
    let mut layer = |path: &Path, part| -> anyhow::Result<Option<DocumentNode>> {
        let text = read_text(path)?;
        match read(&path.to_string_lossy(), &text, part, decoding) {
            Ok((layer, found)) => {
                let more = found.len().saturating_sub(MAX_WARNINGS);
                let shown = found.iter().take(MAX_WARNINGS);
                warnings.extend(shown.map(ToString::to_string));
                if more > 0 {
                    warnings.push(format!("{}: {more} more like these", path.display()));
                }
                Ok(Some(layer))
            }
            Err(mistaken) => {
                problems.extend(mistaken.problems.0);
                all_usable &= mistaken.rest.is_some();
                Ok(mistaken.rest)
            }
        }
    };
    let mut layers = Layers::default();
    if let Some(path) = config {
        layers.file = layer(path, Part::File)?;
    }
    for path in &drop_ins {
        layers.drop_ins.extend(layer(path, Part::DropIn)?);
    }
    if all_usable {
        layers.problems = problems;
        Ok((layers, warnings))
    } else {
        Err(Problems(problems).into())
    }
}

/// Appends the `*.conf` files below `directory` in lexical order as upstream does: subdirectories are visited in
/// order among the files, and links to directories are not followed.
fn collect_drop_ins(
    directory: &Path,
    depth: usize,
    paths: &mut Vec<PathBuf>,
    skipped: &mut Vec<String>,
) -> anyhow::Result<()> {
    let context = || format!("cannot read the drop-in directory {}", directory.display());
    let mut entries = fs::read_dir(directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(context)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type().with_context(context)?.is_dir() {
            if depth >= MAX_DEPTH {
                bail!("{}: drop-ins are not looked for this deep", path.display());
            }
            collect_drop_ins(&path, depth + 1, paths, skipped)?;
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            paths.push(path);
        } else {
            skipped.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let context = || format!("cannot read the configuration file {}", path.display());
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .with_context(context)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("{}: larger than {MAX_FILE_BYTES} bytes", path.display());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("{}:{line}: not valid UTF-8", path.display())
    })
}
