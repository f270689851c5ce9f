//! Libraries that pretend, for tests without a GPU; see `libcuda.c` and `libnvml.c`.

use std::process::Command;

use tempfile::TempPath;

/// Builds the driver. Each call gives another file, and so another driver with a state of its own, when opened; the file goes
/// when the path is dropped. `None` if there is
/// no C compiler.
pub(crate) fn driver(flags: &[&str]) -> Option<TempPath> {
    library("libcuda.c", flags)
}

/// Builds a file of this folder as [`driver`] does.
#[allow(clippy::print_stderr, reason = "a skipped test should be seen")]
pub(crate) fn library(source: &str, flags: &[&str]) -> Option<TempPath> {
    let library = tempfile::Builder::new()
        .prefix("fake")
        .suffix(".so")
        .tempfile()
        .expect("a temporary file")
        .into_temp_path();
    let source = format!("{}/tests/fake/{source}", env!("CARGO_MANIFEST_DIR"));
    match Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .args(flags)
        .status()
    {
        Ok(status) => {
            assert!(status.success(), "the fake library should compile");
            Some(library)
        }
        Err(error) => {
            eprintln!("SKIPPED: no C compiler: {error}");
            None
        }
    }
}

/// What the fake driver takes for a cubin.
pub(crate) const CUBIN: &[u8] = b"\x7fELF";

/// A launch of one of the fake driver's kernels.
pub(crate) fn launch(entry: &str, arguments: &[u32]) -> codegen::Launch {
    let launch = serde_json::json!({ "entry": entry, "grid": [7, 5, 3], "threads": 96, "shared_bytes": 100_000, "arguments": arguments, "split_workspace": codegen::SplitWorkspace::default(), "overlaps": false });
    serde_json::from_value(launch).expect("a launch")
}
