#![allow(
    unsafe_code,
    reason = "one of the crate's three files that call foreign functions"
)]
//! The foreign functions of NVRTC, behind a safe face.
//!
//! cudarc's own loader takes no path, panics when the library or a symbol is absent, and has no getter for cubins; so the nine
//! functions are looked up here, and only the handle's type is cudarc's. Return codes are read as integers, not as an
//! enumeration: a newer library may return a code that the enumeration lacks.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use cudarc::nvrtc::sys::nvrtcProgram;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process at once. The finalizers of the libraries that it opened do not run: another thread may be inside one, and a
/// finalizer that pulls its state away makes it crash or wait for ever.
pub(crate) fn end_process() -> ! {
    // SAFETY: POSIX has the function, and says that it may be called at any time from any thread.
    unsafe { _exit(0) }
}

/// `NVRTC_ERROR_COMPILATION`: the text was refused, and the log says why.
pub(crate) const COMPILATION: c_int = 6;

/// A call of the library that returned an error code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: c_int,
}

/// The library, opened; it stays open until the process ends.
pub(crate) struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut nvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> c_int,
    compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int,
    log: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Api {
    /// Opens the library at a path or by a bare name. `builtins`, if any, is opened first and for everybody: NVRTC opens it by
    /// bare name at its first compilation, which finds it only when it is already loaded or in the system's search path.
    pub(crate) fn open(library: &Path, builtins: Option<&Path>) -> Result<Self, libloading::Error> {
        if let Some(builtins) = builtins {
            // SAFETY: opening runs the library's initialisers; the path names NVIDIA's builtins, which have no precondition.
            std::mem::forget(unsafe { Library::open(Some(builtins), RTLD_NOW | RTLD_GLOBAL) }?);
        }
        // SAFETY: as above. The handle is leaked below, so that no function pointer outlives its library.
        let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) }?;
        // SAFETY: each field's type is that of the function's declaration in nvrtc.h (the same in CUDA 11.1 to 13).
        let functions = unsafe {
            Self {
                version: *library.get("nvrtcVersion")?,
                create: *library.get("nvrtcCreateProgram")?,
                destroy: *library.get("nvrtcDestroyProgram")?,
                compile: *library.get("nvrtcCompileProgram")?,
                log_size: *library.get("nvrtcGetProgramLogSize")?,
                log: *library.get("nvrtcGetProgramLog")?,
                cubin_size: *library.get("nvrtcGetCUBINSize")?,
                cubin: *library.get("nvrtcGetCUBIN")?,
                error: *library.get("nvrtcGetErrorString")?,
            }
        };
        std::mem::forget(library);
        Ok(functions)
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> Result<(i32, i32), Failure> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        check("nvrtcVersion", unsafe {
            (self.version)(&mut major, &mut minor)
        })?;
        Ok((major, minor))
    }

    /// The library's words for a code.
    pub(crate) fn describe(&self, code: c_int) -> String {
        // SAFETY: any integer is allowed.
        let text = unsafe { (self.error)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, so a static string of the library.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// A program of one source text that includes nothing.
    pub(crate) fn program(&self, source: &CStr, name: &CStr) -> Result<Program<'_>, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the strings live until the call returns (NVRTC copies them); with zero headers both lists may be null.
        let code = unsafe {
            (self.create)(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        check("nvrtcCreateProgram", code)?;
        Ok(Program {
            library: self,
            handle,
        })
    }
}

/// A program handle; destroyed when dropped.
pub(crate) struct Program<'l> {
    library: &'l Api,
    handle: nvrtcProgram,
}

impl Program<'_> {
    /// Compiles; afterwards the log can be read, whatever the result.
    pub(crate) fn compile(&self, options: &[CString]) -> Result<(), Failure> {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
        // SAFETY: the handle is live; `count` pointers to strings that outlive the call.
        check("nvrtcCompileProgram", unsafe {
            (self.library.compile)(self.handle, count, options.as_ptr())
        })
    }

    /// What the compiler and the assembler said.
    pub(crate) fn log(&self) -> Result<String, Failure> {
        let mut size = 0;
        // SAFETY: live handle, live integer.
        check("nvrtcGetProgramLogSize", unsafe {
            (self.library.log_size)(self.handle, &mut size)
        })?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the library writes exactly the `size` bytes that it announced.
        check("nvrtcGetProgramLog", unsafe {
            (self.library.log)(self.handle, bytes.as_mut_ptr().cast())
        })?;
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The machine code; empty if the architecture was a virtual one.
    pub(crate) fn cubin(&self) -> Result<Vec<u8>, Failure> {
        let mut size = 0;
        // SAFETY: live handle, live integer.
        check("nvrtcGetCUBINSize", unsafe {
            (self.library.cubin_size)(self.handle, &mut size)
        })?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the library writes exactly the `size` bytes that it announced.
        check("nvrtcGetCUBIN", unsafe {
            (self.library.cubin)(self.handle, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle was created by this library and is destroyed once. A failure leaks it, which is harmless.
        let _ = unsafe { (self.library.destroy)(&mut self.handle) };
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 {
        Ok(())
    } else {
        Err(Failure { call, code })
    }
}
