//! `eval` and `simulate`: arrays in, arrays out.

use crate::cli::{Arrays, Failure, place, show};
use ir::{Program, Tensor};
use std::path::Path;
use tilewright::npz::{self, Array, Wanted};
use verify::SimulateOptions;

/// Element operations a second of one core: what was measured, and where they are sums of products several times as many.
const EVALUATED: f64 = 4e8;
const INTERPRETED: f64 = 1e8;

/// Says that there is something to wait for, where it is more than a minute.
fn warn_of_wait(operations: u64, a_second: f64) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let minutes = operations as f64 / (60.0 * a_second * cores as f64);
    if minutes > 1.0 {
        let operations = operations as f64;
        tracing::warn!(
            "{operations:.1e} element operations: up to {minutes:.0} minutes on {cores} cores"
        );
    }
}

/// The f64 reference.
pub(crate) fn eval(program: &Path, arrays: &Arrays) -> Result<String, Failure> {
    let program = place::program(program)?;
    // What is refused is refused before an input is read.
    warn_of_wait(
        ir::eval::operations(&program).map_err(Failure::refused)?,
        EVALUATED,
    );
    let inputs = read(&program, arrays)?;
    let outputs = ir::eval(&program, &inputs).map_err(Failure::refused)?;
    write(arrays, &program, outputs)
}

/// An artifact's tile program, interpreted, whether or not it was changed since; a warning says that it was.
pub(crate) fn simulate(folder: &Path, arrays: &Arrays) -> Result<String, Failure> {
    let contents = show::Contents::read(folder)?;
    if let Err(e) = contents.artifact.check() {
        tracing::warn!("what is simulated is not what was verified: {e}");
    }
    let operations = verify::interpret::operations(&contents.tile);
    warn_of_wait(operations.map_err(Failure::refused)?, INTERPRETED);
    let inputs = read(&contents.program, arrays)?;
    let outputs = verify::simulate(&contents.tile, &inputs, SimulateOptions::default())
        .map_err(Failure::refused)?;
    write(arrays, &contents.program, outputs)
}

/// Reads one array a parameter; the numbers are taken as they are, not rounded to the parameters' dtypes.
fn read(program: &Program, arrays: &Arrays) -> Result<Vec<Tensor>, Failure> {
    npz::writable(&arrays.outputs).map_err(Failure::refused)?;
    let wanted: Vec<Wanted> = program
        .parameters()
        .map(|(_, name, _, dims)| Wanted {
            name: name.to_owned(),
            shape: program.shape(dims),
        })
        .collect();
    npz::read(&arrays.inputs, &wanted)
        .map_err(Failure::refused)?
        .into_iter()
        .zip(program.parameters())
        .map(|(array, (_, name, dtype, _))| {
            if let Some(found) = dtype.foreign(&array.data) {
                let dtype = dtype.name();
                let fault = format!("array `{name}`: expected elements of {dtype}, found {found}");
                return Err(Failure::refused(fault));
            }
            let shape = array.shape.iter().map(|n| *n as usize).collect();
            Tensor::new(shape, array.data).map_err(Failure::refused)
        })
        .collect()
}

/// Floats as the f64 that they are; integers and booleans as they are stored.
fn write(arrays: &Arrays, program: &Program, outputs: Vec<Tensor>) -> Result<String, Failure> {
    let outputs: Vec<Array> = outputs
        .into_iter()
        .zip(&program.outputs)
        .enumerate()
        .map(|(n, (tensor, output))| Array {
            name: format!("out{n}"),
            shape: tensor.shape.iter().map(|n| *n as u64).collect(),
            data: tensor.data,
            dtype: output.dtype,
        })
        .collect();
    npz::write(&arrays.outputs, &outputs).map_err(Failure::refused)?;
    let names: Vec<&str> = outputs.iter().map(|a| a.name.as_str()).collect();
    Ok(format!(
        "{} written to {}\n",
        names.join(", "),
        arrays.outputs.display()
    ))
}
