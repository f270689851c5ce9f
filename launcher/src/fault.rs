//! What is wrong with a call, as the exception that Python sees.

#![allow(
    unsafe_code,
    reason = "an exception of C++ is thrown by a foreign function"
)]

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use libloading::os::unix::{Library, RTLD_NOW};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `ValueError`: the arguments.
    Value(String),
    /// `RuntimeError`: anything else.
    Runtime(String),
}

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// The functions of the C++ library that throw.
///
/// LibTorch's own throws nothing but what becomes a `RuntimeError`. What these throw, pybind11 translates, and their names have been the
/// same since version 3.4 of the library's interface.
pub(crate) struct Exceptions {
    invalid_argument: Throw,
    runtime_error: Throw,
}

thread_local! {
    /// What Python said is wrong, in the middle of a call of this thread.
    static TOLD: RefCell<Option<Fault>> = const { RefCell::new(None) };
    /// The text of an exception while it is thrown, which copies it.
    static THROWN: RefCell<CString> = RefCell::default();
}

/// Keeps what Python says is wrong with the call that this thread is in.
pub(crate) fn tell(fault: Fault) {
    TOLD.set(Some(fault));
}

/// What Python said is wrong since this was asked last.
pub(crate) fn told() -> Option<Fault> {
    TOLD.take()
}

impl Exceptions {
    /// Finds them in the library that PyTorch uses.
    ///
    /// # Errors
    /// There is none, or another one.
    pub(crate) fn load() -> Result<Self, String> {
        // SAFETY: PyTorch has loaded the library, so that nothing is initialised.
        let library = unsafe { Library::open(Some("libstdc++.so.6"), RTLD_NOW) };
        let library = library.map_err(|e| e.to_string())?;
        // SAFETY: `void std::__throw_invalid_argument(const char*)` and `__throw_runtime_error`, which do not return.
        let found = unsafe {
            library
                .get(b"_ZSt24__throw_invalid_argumentPKc")
                .and_then(|invalid_argument| {
                    Ok(Self {
                        invalid_argument: *invalid_argument,
                        runtime_error: *library.get(b"_ZSt21__throw_runtime_errorPKc")?,
                    })
                })
        };
        std::mem::forget(library);
        found.map_err(|e| e.to_string())
    }

    /// Throws an exception.
    ///
    /// # Safety
    /// All frames below have nothing to drop, and are such that an exception may pass.
    pub(crate) unsafe fn throw(&self, fault: Fault) -> ! {
        let (throw, text) = match fault {
            Fault::Value(text) => (self.invalid_argument, text),
            Fault::Runtime(text) => (self.runtime_error, text),
        };
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        THROWN.set(text);
        let pointer = THROWN.with_borrow(|text| text.as_ptr());
        // SAFETY: the text lives until this thread throws again, and what is thrown has a copy.
        unsafe { throw(pointer) }
    }
}
