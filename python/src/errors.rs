//! The exceptions of the package.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    tilewright,
    TilewrightError,
    PyException,
    "What this package refuses, or fails at."
);
create_exception!(
    tilewright,
    ProgramError,
    TilewrightError,
    "A text is no program; the message shows each fault in it."
);
create_exception!(
    tilewright,
    EvalError,
    TilewrightError,
    "A program cannot be evaluated on these arrays, or at these extents."
);
create_exception!(
    tilewright,
    SearchError,
    TilewrightError,
    "A search was refused, or found nothing that passes the checks."
);
create_exception!(
    tilewright,
    GpuError,
    SearchError,
    "There is no GPU where one is needed, or it cannot be used."
);
create_exception!(
    tilewright,
    BudgetError,
    SearchError,
    "The budget does not suffice; the message says which would."
);
create_exception!(
    tilewright,
    ArtifactError,
    TilewrightError,
    "An artifact cannot be put there."
);

/// Adds them to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for (name, exception) in [
        ("TilewrightError", py.get_type::<TilewrightError>()),
        ("ProgramError", py.get_type::<ProgramError>()),
        ("EvalError", py.get_type::<EvalError>()),
        ("SearchError", py.get_type::<SearchError>()),
        ("GpuError", py.get_type::<GpuError>()),
        ("BudgetError", py.get_type::<BudgetError>()),
        ("ArtifactError", py.get_type::<ArtifactError>()),
    ] {
        module.add(name, exception)?;
    }
    Ok(())
}
