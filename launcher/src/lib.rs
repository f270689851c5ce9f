//! Launches the kernels of artifacts from PyTorch, without Python.
//!
//! An artifact's wrapper (`src/wrapper.py`) loads this library where the Python package `tilewright` is installed, describes its launches, and
//! defines an operator; this implements it, by LibTorch's functions that have a C interface (`torch`). A call checks its arguments,
//! allocates through PyTorch and launches on its current stream, all without Python's lock. A launcher is taken from a list and put back: the list
//! alone is locked meanwhile, never a launch.
//!
//! | module | what it holds |
//! |---|---|
//! | `description` | what a wrapper says of its launches |
//! | `operator` | operators, and a call of one |
//! | `argument_block` | what the driver reads, filled anew by each call; graphs that are replayed |
//! | `torch` | LibTorch |
//! | `driver` | libcuda |
//! | `fault` | what is wrong, as an exception |
//!
//! What happens once, Python is asked for: loading, split-K workspaces, and what is wrong with arguments. So both ways of launching say the
//! same of the same fault. This library reads no environment variables, prints nothing and knows nothing of what kernels compute.

#![allow(unsafe_code, reason = "its functions are called from Python's ctypes")]

mod argument_block;
mod description;
mod driver;
mod fault;
mod operator;
mod torch;

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::catch_unwind;

use fault::Fault;
use operator::Ask;
use torch::CurrentStream;

/// The version of the functions below and of the description; a wrapper takes no other one.
const INTERFACE: u32 = 1;

/// The version of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn tilewright_launcher_interface() -> u32 {
    INTERFACE
}

/// Adds the operator of a description. Gives its number, or -1 and writes why not.
///
/// # Safety
/// The description ends with 0, the two functions live as long as the process, and there is room for so many bytes of a reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilewright_launcher_add(
    description: *const c_char,
    ask: Ask,
    current_stream: CurrentStream,
    reason: *mut c_char,
    room: usize,
) -> i64 {
    let added = guarded(|| {
        // SAFETY: the caller's.
        let text = unsafe { text(description) }?;
        operator::add(text, ask, current_stream).map(|n| n as i64)
    });
    // SAFETY: the caller's.
    unsafe { answered(added, -1, reason, room) }
}

/// Makes an operator what LibTorch calls by a name that is defined. Gives 0, or -1 and writes why not.
///
/// # Safety
/// The name ends with 0, and there is room for so many bytes of a reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilewright_launcher_implement(
    number: i64,
    name: *const c_char,
    reason: *mut c_char,
    room: usize,
) -> i64 {
    let done = guarded(|| {
        // SAFETY: the caller's.
        let name = unsafe { text(name) }?;
        operator::implement(index(number)?, name).map(|()| 0)
    });
    // SAFETY: the caller's.
    unsafe { answered(done, -1, reason, room) }
}

/// Gives an operator the context of a device and the kernels in it, in launch order. Gives 0, or -1 and writes why not.
///
/// # Safety
/// There are so many functions, they and the context are the driver's and live as long as the process, and there is room for so many bytes of
/// a reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilewright_launcher_loaded(
    number: i64,
    device: c_int,
    context: u64,
    functions: *const u64,
    count: usize,
    reason: *mut c_char,
    room: usize,
) -> i64 {
    let done = guarded(|| {
        if functions.is_null() {
            return Err("expected kernels, found none".to_owned());
        }
        // SAFETY: the caller's.
        let functions = unsafe { std::slice::from_raw_parts(functions, count) };
        let operator = operator::get(index(number)?)?;
        operator.set_loaded(device, context, functions).map(|()| 0)
    });
    // SAFETY: the caller's.
    unsafe { answered(done, -1, reason, room) }
}

/// How many graphs an operator's calls were recorded as, or -1 and writes why that is not known.
///
/// # Safety
/// There is room for so many bytes of a reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilewright_launcher_recorded(
    number: i64,
    reason: *mut c_char,
    room: usize,
) -> i64 {
    let found = guarded(|| Ok(operator::get(index(number)?)?.recorded() as i64));
    // SAFETY: the caller's.
    unsafe { answered(found, -1, reason, room) }
}

/// Says what is wrong with the call that this thread is in the middle of: of its arguments, or else.
///
/// # Safety
/// The text ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tilewright_launcher_tell(arguments: bool, what: *const c_char) {
    // What cannot be kept is not told, and the call says so.
    let _ = guarded(|| {
        // SAFETY: the caller's.
        let what = unsafe { text(what) }?.to_owned();
        fault::tell(if arguments {
            Fault::Value(what)
        } else {
            Fault::Runtime(what)
        });
        Ok(0)
    });
}

/// What is said; panics become errors.
fn guarded(
    what: impl FnOnce() -> Result<i64, String> + std::panic::UnwindSafe,
) -> Result<i64, String> {
    catch_unwind(what).unwrap_or_else(|_| Err("the launcher failed".to_owned()))
}

fn index(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|e| e.to_string())
}

/// # Safety
/// The text ends with 0, and lives as long as what is made of it.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err("expected a text, found none".to_owned());
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|e| e.to_string())
}

/// # Safety
/// There is room for so many bytes of a reason.
unsafe fn answered(
    answer: Result<i64, String>,
    instead: i64,
    reason: *mut c_char,
    room: usize,
) -> i64 {
    let fault = match answer {
        Ok(answer) => return answer,
        Err(fault) => CString::new(fault.replace('\0', " ")).unwrap_or_default(),
    };
    let bytes = fault.as_bytes_with_nul();
    if !reason.is_null() && room > 0 {
        let count = bytes.len().min(room);
        // SAFETY: there is room, as the caller says; what is cut off ends with 0, too.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), reason, count);
            *reason.add(count - 1) = 0;
        }
    }
    instead
}
