//! Programs: parsed, printed, evaluated.

use crate::errors::{EvalError, ProgramError};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::path::PathBuf;
use tilewright::files;
use tilewright::ir::{self, Dim, Tensor};

/// Name, dtype, axes of each dimension, shape.
type Declared = (String, &'static str, Vec<Vec<String>>, Vec<u64>);

/// A program.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct Program {
    pub(crate) program: ir::Program,
}

#[pymethods]
impl Program {
    /// Parses a text; `file` is what messages call it.
    #[staticmethod]
    fn parse(text: &str, file: &str) -> PyResult<Self> {
        match ir::parse(text, file) {
            Ok(program) => Ok(Self { program }),
            Err(e) => Err(ProgramError::new_err(e.to_string().trim_end().to_owned())),
        }
    }

    /// The text of a file, read as the command line reads it.
    #[staticmethod]
    fn read_text(path: PathBuf) -> PyResult<String> {
        files::read_text(&path, ir::limits::MAX_SOURCE as u64)
            .map_err(|e| PyOSError::new_err(format!("{}: {e}", path.display())))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.program.name
    }

    /// Names and extents, as they are declared.
    #[getter]
    fn axes(&self) -> Vec<(String, u64)> {
        let axes = self.program.axes.iter();
        axes.map(|a| (a.name.clone(), a.extent)).collect()
    }

    #[getter]
    fn parameters(&self) -> Vec<Declared> {
        (self.program.parameters())
            .map(|(_, name, dtype, dims)| self.declared(name.to_owned(), dtype.name(), dims))
            .collect()
    }

    #[getter]
    fn outputs(&self) -> Vec<Declared> {
        (self.program.outputs.iter().enumerate())
            .map(|(n, o)| self.declared(format!("out{n}"), o.dtype.name(), &o.dims))
            .collect()
    }

    /// Element operations of [`Self::eval`].
    fn operations(&self) -> PyResult<u64> {
        ir::eval::operations(&self.program).map_err(|e| EvalError::new_err(e.to_string()))
    }

    /// Evaluates it in f64: shapes and elements of the inputs, in the order of the parameters; those of the outputs, in f64 of floats and else in the
    /// output's dtype.
    fn eval<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<(Vec<usize>, Vec<u8>)>,
    ) -> PyResult<Vec<(Vec<usize>, Bound<'py, PyByteArray>)>> {
        let outputs = py.detach(|| {
            let inputs = inputs.into_iter().map(|(shape, bytes)| {
                let (words, _) = bytes.as_chunks::<8>();
                let data = words.iter().map(|w| f64::from_ne_bytes(*w)).collect();
                Tensor::new(shape, data)
            });
            let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
            ir::eval(&self.program, &inputs).map_err(|e| e.to_string())
        });
        let outputs: Vec<Tensor> = outputs.map_err(EvalError::new_err)?;
        let array = |(tensor, output): (Tensor, &ir::Output)| {
            let bytes: Vec<u8> = match output.dtype.is_float() {
                true => tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
                false => output.dtype.encode(&tensor.data),
            };
            (tensor.shape, PyByteArray::new(py, &bytes))
        };
        Ok((outputs.into_iter().zip(&self.program.outputs))
            .map(array)
            .collect())
    }

    /// The canonical text: sugar expanded.
    fn __str__(&self) -> String {
        self.program.to_string()
    }
}

impl Program {
    fn declared(&self, name: String, dtype: &'static str, dims: &[Dim]) -> Declared {
        let axis = |a: &ir::AxisId| self.program.axes[a.0 as usize].name.clone();
        let axes = dims.iter().map(|d| d.0.iter().map(axis).collect());
        (name, dtype, axes.collect(), self.program.shape(dims))
    }
}
