//! The calls of libcuda that a launch needs.

#![allow(unsafe_code, reason = "the crate's only calls of the CUDA driver")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use cudarc::driver::sys::{
    CUcontext, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig, CUstream, CUtensorMap,
};
use libloading::os::unix::{Library, RTLD_NOW};

use crate::description::Map;

/// A code of the driver that is not 0, and what it happened at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) what: &'static str,
    pub(crate) code: c_int,
}

// Of a tensor map: elements of two bytes, sectors that L2 reads at a time.
const TENSOR_UINT16: c_uint = 1;
const PROMOTE_256B: c_uint = 3;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const CAPTURE_NONE: c_int = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_RELAXED: c_int = 2;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
const CAPTURE_INVALIDATED: c_int = 901;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Declares the functions, each with its type as in cuda.h, and the look-up of all of them.
macro_rules! table {
    ($($name:ident: fn($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names are the driver's")]
        struct Table { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Table {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: each row's type is that of the function's declaration in cuda.h (the same in CUDA 12.8 to 13).
                unsafe { Ok(Self { $($name: *library.get(stringify!($name))?,)* }) }
            }
        }
    };
}

#[rustfmt::skip]
table! {
    cuGetErrorString:                  fn(c_int, *mut *const c_char);
    cuCtxGetCurrent:                   fn(*mut CUcontext);
    cuCtxSetCurrent:                   fn(CUcontext);
    cuThreadExchangeStreamCaptureMode: fn(*mut c_int);
    cuStreamCreate:                    fn(*mut CUstream, c_uint);
    cuStreamDestroy_v2:                fn(CUstream);
    cuStreamIsCapturing:               fn(CUstream, *mut c_int);
    cuStreamGetCaptureInfo_v2:         fn(CUstream, *mut c_int, *mut u64, *mut CUgraph, *mut c_void, *mut usize);
    cuStreamBeginCapture_v2:           fn(CUstream, c_int);
    cuStreamEndCapture:                fn(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags:       fn(*mut CUgraphExec, CUgraph, u64);
    cuGraphDestroy:                    fn(CUgraph);
    cuGraphLaunch:                     fn(CUgraphExec, CUstream);
    cuTensorMapEncodeTiled:            fn(*mut CUtensorMap, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const u32, *const u32, c_uint, c_uint, c_uint, c_uint);
    cuTensorMapReplaceAddress:         fn(*mut CUtensorMap, *mut c_void);
    cuLaunchKernelEx:                  fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
}

/// The driver.
pub(crate) struct Driver {
    table: Table,
}

/// A context that is current on this thread until this is dropped; then the one that was is, again.
pub(crate) struct Bound<'a> {
    driver: &'a Driver,
    before: CUcontext,
}

/// The graph that records a stream.
pub(crate) struct Capture {
    /// The capture's number.
    pub(crate) id: u64,
    /// The graph.
    pub(crate) graph: CUgraph,
}

fn checked(code: c_int, what: &'static str) -> Result<(), Failed> {
    if code == 0 {
        Ok(())
    } else {
        Err(Failed { what, code })
    }
}

impl Driver {
    /// Opens the library.
    ///
    /// # Errors
    /// It or one of its functions is missing.
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: the wrapper has opened the library, so that nothing is initialised.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) };
        let library = library.map_err(|e| e.to_string())?;
        let table = Table::load(&library).map_err(|e| e.to_string());
        std::mem::forget(library); // its functions are used as long as the process lives
        Ok(Self { table: table? })
    }

    /// What a code of the driver means.
    pub(crate) fn reason(&self, code: c_int) -> String {
        let mut text = null();
        // SAFETY: the answer goes where the pointer says.
        unsafe { (self.table.cuGetErrorString)(code, &mut text) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: what the driver answers with is a text that lives as long as it does.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// Makes a context current on this thread; nothing where it is.
    pub(crate) fn bind(&self, context: CUcontext) -> Result<Option<Bound<'_>>, Failed> {
        let mut before = null_mut();
        // SAFETY: the answer goes where the pointer says.
        let code = unsafe { (self.table.cuCtxGetCurrent)(&mut before) };
        checked(code, "finding the context")?;
        if before == context {
            return Ok(None);
        }
        // SAFETY: the context was retained by the wrapper, for as long as the process lives.
        let code = unsafe { (self.table.cuCtxSetCurrent)(context) };
        checked(code, "setting the context")?;
        Ok(Some(Bound {
            driver: self,
            before,
        }))
    }

    /// Launches a kernel.
    pub(crate) fn launch(
        &self,
        config: &CUlaunchConfig,
        function: CUfunction,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Failed> {
        // SAFETY: the arguments point to what the kernel takes, as the artifact's manifest says, in memory of the launcher.
        let code = unsafe {
            (self.table.cuLaunchKernelEx)(config, function, arguments.as_mut_ptr(), null_mut())
        };
        checked(code, "launching the kernel")
    }

    /// Makes a tensor map describe data at an address: all of it, or of one that describes another address.
    pub(crate) fn describe(
        &self,
        map: *mut CUtensorMap,
        entry: &Map,
        address: u64,
        known: bool,
    ) -> Result<(), Failed> {
        let address = address.wrapping_add(entry.offset) as *mut c_void;
        let steps = [1; 8];
        if entry.sizes.len() > steps.len() {
            // `CUDA_ERROR_INVALID_VALUE`.
            return checked(1, "describing a tensor");
        }
        let code = if known {
            // SAFETY: the map was made by the call below.
            unsafe { (self.table.cuTensorMapReplaceAddress)(map, address) }
        } else {
            // SAFETY: the lists have as many numbers as the rank says, and the map is where its type wants it.
            unsafe {
                (self.table.cuTensorMapEncodeTiled)(
                    map,
                    TENSOR_UINT16,
                    entry.extents.len() as c_uint,
                    address,
                    entry.extents.as_ptr(),
                    entry.strides.as_ptr(),
                    entry.sizes.as_ptr(),
                    steps.as_ptr(),
                    0, // nothing interleaved
                    entry.swizzle,
                    PROMOTE_256B,
                    0, // zeros outside
                )
            }
        };
        checked(code, "describing a tensor")
    }

    /// Whether a graph records a stream.
    pub(crate) fn is_captured(&self, stream: CUstream) -> Result<bool, Failed> {
        let mut status = CAPTURE_NONE;
        // SAFETY: the stream is PyTorch's current one, and the answer goes where the pointer says.
        let code = unsafe { (self.table.cuStreamIsCapturing)(stream, &mut status) };
        checked(code, "launching the kernel")?;
        Ok(status != CAPTURE_NONE)
    }

    /// The graph that records a stream.
    pub(crate) fn capture(&self, stream: CUstream) -> Result<Capture, Failed> {
        let (mut status, mut id, mut graph) = (CAPTURE_NONE, 0, null_mut());
        // SAFETY: the stream is PyTorch's current one, and the answers go where the pointers say.
        let code = unsafe {
            (self.table.cuStreamGetCaptureInfo_v2)(
                stream,
                &mut status,
                &mut id,
                &mut graph,
                null_mut(),
                null_mut(),
            )
        };
        let lost = code == 0 && graph.is_null();
        let code = if lost { CAPTURE_INVALIDATED } else { code };
        checked(code, "launching the kernel")?;
        Ok(Capture { id, graph })
    }

    /// Launches a graph.
    pub(crate) fn replay(&self, graph: CUgraphExec, stream: CUstream) -> Result<(), Failed> {
        // SAFETY: the graph was made by `record` and is never given back; the stream is PyTorch's current one.
        let code = unsafe { (self.table.cuGraphLaunch)(graph, stream) };
        checked(code, "launching the kernels")
    }

    /// The graph of what is launched on a stream of its own, which disturbs nobody's capture.
    ///
    /// # Errors
    /// The capture mode cannot be changed. Nothing where the driver refuses anything else, which a launch will explain if it has to.
    pub(crate) fn record(
        &self,
        launch: impl FnOnce(CUstream) -> Result<(), Failed>,
    ) -> Result<Option<CUgraphExec>, Failed> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the mode is exchanged for the one that was.
        let code = unsafe { (self.table.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        checked(code, "changing the capture mode")?;
        let mut stream = null_mut();
        // SAFETY: the answer goes where the pointer says.
        let code = unsafe { (self.table.cuStreamCreate)(&mut stream, NON_BLOCKING) };
        let replay = if code == 0 {
            let replay = self.record_on(stream, launch);
            // SAFETY: the stream was made above, and nothing runs on it.
            unsafe { (self.table.cuStreamDestroy_v2)(stream) };
            replay
        } else {
            None
        };
        // SAFETY: the mode is the one that was.
        unsafe { (self.table.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        Ok(replay)
    }

    fn record_on(
        &self,
        stream: CUstream,
        launch: impl FnOnce(CUstream) -> Result<(), Failed>,
    ) -> Option<CUgraphExec> {
        // SAFETY: the stream is the one that `record` made.
        let code = unsafe { (self.table.cuStreamBeginCapture_v2)(stream, CAPTURE_RELAXED) };
        if code != 0 {
            return None;
        }
        let launched = launch(stream);
        let (mut graph, mut replay) = (null_mut(), null_mut());
        // SAFETY: the capture was begun above, and the answer goes where the pointer says.
        let mut code = unsafe { (self.table.cuStreamEndCapture)(stream, &mut graph) };
        if code == 0 && launched.is_ok() {
            // SAFETY: the graph was made above, and the answer goes where the pointer says.
            code = unsafe { (self.table.cuGraphInstantiateWithFlags)(&mut replay, graph, 0) };
        }
        if !graph.is_null() {
            // SAFETY: the graph was made above, and what was made of it has a copy.
            unsafe { (self.table.cuGraphDestroy)(graph) };
        }
        (code == 0 && launched.is_ok()).then_some(replay)
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        // SAFETY: the context was current on this thread when this was made.
        unsafe { (self.driver.table.cuCtxSetCurrent)(self.before) };
    }
}
