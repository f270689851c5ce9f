//! The native half of the Python package `tilewright`: programs and searches, as values that Python holds.
//!
//! Nothing here is meant for people: `python/tilewright` wraps it, and has the documentation. Errors are Python exceptions whose
//! message is what the command line prints. Nothing here knows PyTorch or NumPy: tensors cross as bytes of f64.

mod errors;
mod program;
mod search;

use pyo3::prelude::*;

/// What a name that neither an axis nor a value can have is taken by; nothing where it is free.
#[pyfunction]
fn taken(name: &str) -> Option<&'static str> {
    tilewright::ir::text::taken(name)
}

/// The names of the targets.
#[pyfunction]
fn targets() -> Vec<String> {
    tilewright::targets().into_iter().map(|t| t.name).collect()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add(module)?;
    module.add_class::<program::Program>()?;
    module.add_class::<search::Search>()?;
    module.add_class::<search::Found>()?;
    module.add_function(wrap_pyfunction!(taken, module)?)?;
    module.add_function(wrap_pyfunction!(targets, module)?)
}
