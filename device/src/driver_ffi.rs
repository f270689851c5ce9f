#![allow(
    unsafe_code,
    reason = "one of the crate's three files that call foreign functions"
)]
//! The foreign functions of the CUDA driver, behind a safe face.
//!
//! cudarc's own loader takes no path and panics when the library or a symbol is absent; so the functions are looked up here,
//! once, and only the types and constants are cudarc's. Return codes are read as integers, not as an enumeration: a newer
//! driver may return a code that the enumeration lacks. Each handle is destroyed when dropped, and keeps its context alive.
//!
//! What a kernel does to device memory is outside Rust's memory model: an address that belongs to nobody is an error code of a
//! later call, and the process that met it must end (see [`GpuError::is_sticky`]).

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::rc::Rc;

use codegen::{Launch, TensorMap};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUstream, CUstreamCaptureMode, CUtensorMap,
    CUuuid,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::gpu_error::GpuError;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: c_int = 1;

// Of a tensor map: elements of two bytes, permutations of the chunks of a line, sectors that L2 reads at a time.
const TENSOR_UINT16: c_uint = 1;
const SWIZZLE_32B: c_uint = 1;
const SWIZZLE_64B: c_uint = 2;
const SWIZZLE_128B: c_uint = 3;
const PROMOTE_256B: c_uint = 3;
/// Dimensions of a tensor map.
const MOST_DIMENSIONS: usize = 5;

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
    cuInit:                       fn(c_uint);
    cuDriverGetVersion:           fn(*mut c_int);
    cuGetErrorName:               fn(c_int, *mut *const c_char);
    cuDeviceGetCount:             fn(*mut c_int);
    cuDeviceGet:                  fn(*mut CUdevice, c_int);
    cuDeviceGetName:              fn(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2:           fn(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2:          fn(*mut usize, CUdevice);
    cuDeviceGetAttribute:         fn(*mut c_int, CUdevice_attribute, CUdevice);
    cuDevicePrimaryCtxRetain:     fn(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2: fn(CUdevice);
    cuCtxSetCurrent:              fn(CUcontext);
    cuModuleLoadData:             fn(*mut CUmodule, *const c_void);
    cuModuleUnload:               fn(CUmodule);
    cuModuleGetFunction:          fn(*mut CUfunction, CUmodule, *const c_char);
    cuFuncGetAttribute:           fn(*mut c_int, CUfunction_attribute, CUfunction);
    cuFuncSetAttribute:           fn(CUfunction, CUfunction_attribute, c_int);
    cuFuncGetParamInfo:           fn(CUfunction, usize, *mut usize, *mut usize);
    cuLaunchKernelEx:             fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuTensorMapEncodeTiled:       fn(*mut CUtensorMap, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const u32, *const u32, c_uint, c_uint, c_uint, c_uint);
    cuOccupancyMaxActiveBlocksPerMultiprocessor: fn(*mut c_int, CUfunction, c_int, usize);
    cuMemAlloc_v2:                fn(*mut CUdeviceptr, usize);
    cuMemFree_v2:                 fn(CUdeviceptr);
    cuMemAllocHost_v2:            fn(*mut *mut c_void, usize);
    cuMemFreeHost:                fn(*mut c_void);
    cuMemcpyHtoD_v2:              fn(CUdeviceptr, *const c_void, usize);
    cuMemcpyDtoH_v2:              fn(*mut c_void, CUdeviceptr, usize);
    cuMemcpyDtoD_v2:              fn(CUdeviceptr, CUdeviceptr, usize);
    cuMemsetD8_v2:                fn(CUdeviceptr, u8, usize);
    cuStreamCreate:               fn(*mut CUstream, c_uint);
    cuStreamDestroy_v2:           fn(CUstream);
    cuStreamSynchronize:          fn(CUstream);
    cuStreamBeginCapture_v2:      fn(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture:           fn(CUstream, *mut CUgraph);
    cuEventCreate:                fn(*mut CUevent, c_uint);
    cuEventDestroy_v2:            fn(CUevent);
    cuEventRecord:                fn(CUevent, CUstream);
    cuEventSynchronize:           fn(CUevent);
    cuEventElapsedTime_v2:        fn(*mut f32, CUevent, CUevent);
    cuGraphInstantiateWithFlags:  fn(*mut CUgraphExec, CUgraph, c_ulonglong);
    cuGraphDestroy:               fn(CUgraph);
    cuGraphLaunch:                fn(CUgraphExec, CUstream);
    cuGraphExecDestroy:           fn(CUgraphExec);
}

/// What the driver makes of a [`TensorMap`] and an address.
#[derive(Clone, Copy)]
pub(crate) struct EncodedMap(CUtensorMap);

impl EncodedMap {
    /// Its size, which is that of the kernel's parameter.
    pub(crate) const BYTES: usize = size_of::<CUtensorMap>();

    /// For a buffer at `address`.
    pub(crate) fn new(context: &Context, map: &TensorMap, address: u64) -> Result<Self, GpuError> {
        let rank = map.extents.len();
        let swizzle = match map.line_bytes {
            32 => SWIZZLE_32B,
            64 => SWIZZLE_64B,
            128 => SWIZZLE_128B,
            other => {
                return Err(GpuError::plan(format!(
                    "a tensor map with lines of {other} bytes"
                )));
            }
        };
        if map.sizes.len() != rank || map.strides.len() + 1 != rank || rank > MOST_DIMENSIONS {
            return Err(GpuError::plan(format!("a tensor map of {rank} dimensions")));
        }
        let steps = [1u32; MOST_DIMENSIONS];
        let mut made = CUtensorMap { opaque: [0; 16] };
        // SAFETY: a live map; as many extents and sizes as dimensions, one stride less. The driver checks the values and does not
        // follow the address.
        let code = unsafe {
            (context.table.cuTensorMapEncodeTiled)(
                &mut made,
                TENSOR_UINT16,
                rank as c_uint,
                (address + map.offset) as *mut c_void,
                map.extents.as_ptr(),
                map.strides.as_ptr(),
                map.sizes.as_ptr(),
                steps.as_ptr(),
                0,
                swizzle,
                PROMOTE_256B,
                0,
            )
        };
        context.check("cuTensorMapEncodeTiled", code)?;
        Ok(Self(made))
    }
}

impl Table {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: any integer is allowed; the pointer is to a live variable.
        let found = unsafe { (self.cuGetErrorName)(code, &mut name) };
        let name = if found == 0 && !name.is_null() {
            // SAFETY: a static string of the driver.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        } else {
            "unknown".to_owned()
        };
        Err(GpuError::Call {
            call: call.to_owned(),
            code,
            name,
        })
    }
}

/// A device's primary context, current on the thread that opened it. Not `Send`, and neither is anything that holds it.
pub(crate) struct Context {
    table: Table,
    device: CUdevice,
    /// How many devices there are.
    pub(crate) devices: u32,
}

impl Context {
    /// Opens the driver at a path or under its usual name, and makes the device's context current.
    pub(crate) fn open(library: Option<&Path>, ordinal: u32) -> Result<Rc<Self>, GpuError> {
        let path = library.unwrap_or(Path::new("libcuda.so.1"));
        let none = |error: libloading::Error| GpuError::NoDriver {
            reason: error.to_string(),
        };
        // SAFETY: opening runs the initialisers of NVIDIA's driver library, which have no precondition.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(none)?;
        let table = Table::load(&library).map_err(none)?;
        // No function pointer outlives its library.
        std::mem::forget(library);
        // SAFETY: zero is the only flag.
        match unsafe { (table.cuInit)(0) } {
            NO_DEVICE => return Err(GpuError::NoDevice { ordinal, count: 0 }),
            code => table.check("cuInit", code)?,
        }
        let mut count = 0;
        // SAFETY: a live integer.
        table.check("cuDeviceGetCount", unsafe {
            (table.cuDeviceGetCount)(&mut count)
        })?;
        let index = c_int::try_from(ordinal)
            .ok()
            .filter(|index| *index < count)
            .ok_or(GpuError::NoDevice {
                ordinal,
                count: count.max(0) as u32,
            })?;
        let mut device = 0;
        // SAFETY: a live integer; the index is below the count.
        table.check("cuDeviceGet", unsafe {
            (table.cuDeviceGet)(&mut device, index)
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live pointer; the device is valid.
        table.check("cuDevicePrimaryCtxRetain", unsafe {
            (table.cuDevicePrimaryCtxRetain)(&mut handle, device)
        })?;
        let context = Rc::new(Self {
            table,
            device,
            devices: count.max(0) as u32,
        });
        // SAFETY: the context was retained above.
        context.check("cuCtxSetCurrent", unsafe {
            (context.table.cuCtxSetCurrent)(handle)
        })?;
        Ok(context)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), GpuError> {
        self.table.check(call, code)
    }

    pub(crate) fn driver_version(&self) -> Result<i32, GpuError> {
        let mut version = 0;
        // SAFETY: a live integer.
        self.check("cuDriverGetVersion", unsafe {
            (self.table.cuDriverGetVersion)(&mut version)
        })?;
        Ok(version)
    }

    pub(crate) fn name(&self) -> Result<String, GpuError> {
        let mut bytes = [0_u8; 256];
        // SAFETY: the driver writes at most 255 bytes and a zero.
        self.check("cuDeviceGetName", unsafe {
            (self.table.cuDeviceGetName)(bytes.as_mut_ptr().cast(), 255, self.device)
        })?;
        Ok(CStr::from_bytes_until_nul(&bytes)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default())
    }

    pub(crate) fn uuid(&self) -> Result<[u8; 16], GpuError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: a live structure of 16 bytes.
        self.check("cuDeviceGetUuid", unsafe {
            (self.table.cuDeviceGetUuid_v2)(&mut uuid, self.device)
        })?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    pub(crate) fn memory_bytes(&self) -> Result<u64, GpuError> {
        let mut bytes = 0;
        // SAFETY: a live integer.
        self.check("cuDeviceTotalMem", unsafe {
            (self.table.cuDeviceTotalMem_v2)(&mut bytes, self.device)
        })?;
        Ok(bytes as u64)
    }

    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Result<u32, GpuError> {
        let mut value = 0;
        // SAFETY: a live integer.
        self.check("cuDeviceGetAttribute", unsafe {
            (self.table.cuDeviceGetAttribute)(&mut value, attribute, self.device)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; every handle keeps the context alive, so this is the last call.
        let _ = unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A loaded cubin.
pub(crate) struct Module {
    context: Rc<Context>,
    handle: CUmodule,
}

impl Module {
    pub(crate) fn load(context: &Rc<Context>, cubin: &[u8]) -> Result<Rc<Self>, GpuError> {
        let mut handle = std::ptr::null_mut();
        // The driver finds the end of an image by its header: a text needs a zero, a cut ELF file would be read past its end.
        let image = [cubin, &[0; 64]].concat();
        // SAFETY: the image lives until the call returns, and the driver copies it.
        context.check("cuModuleLoadData", unsafe {
            (context.table.cuModuleLoadData)(&mut handle, image.as_ptr().cast())
        })?;
        Ok(Rc::new(Self {
            context: Rc::clone(context),
            handle,
        }))
    }

    pub(crate) fn function(self: &Rc<Self>, entry: &str) -> Result<Function, GpuError> {
        let name = CString::new(entry).map_err(|_| GpuError::Plan {
            reason: format!("`{entry}` holds a zero character"),
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: live module and string.
        let code = unsafe {
            (self.context.table.cuModuleGetFunction)(&mut handle, self.handle, name.as_ptr())
        };
        self.context
            .check("cuModuleGetFunction", code)
            .map_err(|error| GpuError::Kernel {
                entry: entry.to_owned(),
                error: Box::new(error),
            })?;
        Ok(Function {
            module: Rc::clone(self),
            handle,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once; its functions keep it alive.
        let _ = unsafe { (self.context.table.cuModuleUnload)(self.handle) };
    }
}

/// A kernel of a loaded cubin.
pub(crate) struct Function {
    module: Rc<Module>,
    handle: CUfunction,
}

impl Function {
    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, GpuError> {
        let mut value = 0;
        let context = &self.module.context;
        // SAFETY: live integer and function.
        context.check("cuFuncGetAttribute", unsafe {
            (context.table.cuFuncGetAttribute)(&mut value, attribute, self.handle)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    pub(crate) fn set_attribute(
        &self,
        attribute: CUfunction_attribute,
        value: u32,
    ) -> Result<(), GpuError> {
        let context = &self.module.context;
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: live function; the driver checks the value.
        context.check("cuFuncSetAttribute", unsafe {
            (context.table.cuFuncSetAttribute)(self.handle, attribute, value)
        })
    }

    /// How many blocks find room on the device at the same time.
    pub(crate) fn blocks_together(&self, threads: u32, shared: u32) -> Result<u64, GpuError> {
        let context = &self.module.context;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: a live integer and function; the driver checks the sizes.
        context.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            (context.table.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                self.handle,
                threads,
                shared as usize,
            )
        })?;
        let sms =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(u64::try_from(blocks).unwrap_or(0) * u64::from(sms))
    }

    /// The sizes of the kernel's parameters, in bytes.
    pub(crate) fn parameters(&self) -> Result<Vec<usize>, GpuError> {
        let context = &self.module.context;
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: live integers and function; an index past the last parameter is an error code.
            match unsafe {
                (context.table.cuFuncGetParamInfo)(self.handle, sizes.len(), &mut offset, &mut size)
            } {
                INVALID_VALUE => return Ok(sizes),
                code => context.check("cuFuncGetParamInfo", code)?,
            }
            sizes.push(size);
        }
    }
}

/// Device memory.
pub(crate) struct Memory {
    context: Rc<Context>,
    address: CUdeviceptr,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(context: &Rc<Context>, bytes: u64) -> Result<Self, GpuError> {
        let mut address = 0;
        // SAFETY: a live integer; the size is not zero.
        context.check("cuMemAlloc", unsafe {
            (context.table.cuMemAlloc_v2)(&mut address, bytes.max(1) as usize)
        })?;
        Ok(Self {
            context: Rc::clone(context),
            address,
            bytes,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of `length` bytes at `offset`, which must lie inside.
    fn range(&self, offset: u64, length: u64) -> CUdeviceptr {
        assert!(
            offset
                .checked_add(length)
                .is_some_and(|end| end <= self.bytes),
            "a range should lie inside its allocation"
        );
        self.address + offset
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), GpuError> {
        let to = self.range(offset, data.len() as u64);
        // SAFETY: the range is allocated; the data live until the call returns.
        self.context.check("cuMemcpyHtoD", unsafe {
            (self.context.table.cuMemcpyHtoD_v2)(to, data.as_ptr().cast(), data.len())
        })
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, GpuError> {
        let mut data = vec![0_u8; length as usize];
        self.read_into(offset, &mut data)?;
        Ok(data)
    }

    /// Fills all of `data`.
    pub(crate) fn read_into(&self, offset: u64, data: &mut [u8]) -> Result<(), GpuError> {
        let from = self.range(offset, data.len() as u64);
        // SAFETY: the range is allocated; the slice has that length, and the call returns when the bytes are there.
        self.context.check("cuMemcpyDtoH", unsafe {
            (self.context.table.cuMemcpyDtoH_v2)(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    pub(crate) fn fill(&self, offset: u64, length: u64, byte: u8) -> Result<(), GpuError> {
        let to = self.range(offset, length);
        // SAFETY: the range is allocated.
        self.context.check("cuMemsetD8", unsafe {
            (self.context.table.cuMemsetD8_v2)(to, byte, length as usize)
        })
    }

    pub(crate) fn copy_from(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        length: u64,
    ) -> Result<(), GpuError> {
        let (to, from) = (self.range(offset, length), from.range(from_offset, length));
        // SAFETY: both ranges are allocated.
        self.context.check("cuMemcpyDtoD", unsafe {
            (self.context.table.cuMemcpyDtoD_v2)(to, from, length as usize)
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once. The driver waits for the work that uses it.
        let _ = unsafe { (self.context.table.cuMemFree_v2)(self.address) };
    }
}

/// Memory of the host that the GPU copies to directly: several times faster than to other memory.
pub(crate) struct Pinned {
    context: Rc<Context>,
    memory: *mut u8,
    bytes: usize,
}

impl Pinned {
    pub(crate) fn new(context: &Rc<Context>, bytes: usize) -> Result<Self, GpuError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: a live pointer; the size is not zero.
        context.check("cuMemAllocHost", unsafe {
            (context.table.cuMemAllocHost_v2)(&mut memory, bytes.max(1))
        })?;
        let memory: *mut u8 = memory.cast();
        // SAFETY: so many bytes are there, and nobody else has them. They are given a value before a slice is made of them.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Self {
            context: Rc::clone(context),
            memory,
            bytes,
        })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated, initialised, and borrowed as long as the slice lives. Copies to it end before their calls return.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once.
        let _ = unsafe { (self.context.table.cuMemFreeHost)(self.memory.cast()) };
    }
}

/// A queue of work, ordered with copies and fills (which use the default stream).
pub(crate) struct Stream {
    context: Rc<Context>,
    handle: CUstream,
}

impl Stream {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Self, GpuError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live pointer; zero is the flag of a stream that is ordered with the default stream.
        context.check("cuStreamCreate", unsafe {
            (context.table.cuStreamCreate)(&mut handle, 0)
        })?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
        })
    }

    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: live stream.
        self.context.check("cuStreamSynchronize", unsafe {
            (self.context.table.cuStreamSynchronize)(self.handle)
        })
    }

    /// Launches a kernel whose parameters are exactly these pointers and these maps; the caller compared
    /// [`Function::parameters`]. One that overlaps may begin before the work in front of it has ended.
    pub(crate) fn launch(
        &self,
        function: &Function,
        launch: &Launch,
        pointers: &[u64],
        maps: &[EncodedMap],
    ) -> Result<(), GpuError> {
        let (threads, shared, overlaps) = (launch.threads, launch.shared_bytes, launch.overlaps);
        let (mut values, mut maps) = (pointers.to_vec(), maps.to_vec());
        let values = values.iter_mut().map(|v| std::ptr::from_mut(v).cast());
        let maps = maps.iter_mut().map(|m| std::ptr::from_mut(&mut m.0).cast());
        let mut parameters: Vec<*mut c_void> = values.chain(maps).collect();
        let [x, y, z] = launch.grid;
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.handle,
            attrs: &mut attribute,
            numAttrs: u32::from(overlaps),
        };
        let (launch, list) = (self.context.table.cuLaunchKernelEx, parameters.as_mut_ptr());
        // SAFETY: live stream and function; the configuration and its attribute live until the call returns; as many pointers to
        // eight bytes or to a map as the kernel has parameters, which the driver copies before it returns.
        let code = unsafe { launch(&config, function.handle, list, std::ptr::null_mut()) };
        self.context.check("cuLaunchKernelEx", code)
    }

    /// Records what `work` launches on this stream instead of running it.
    pub(crate) fn capture(
        &self,
        work: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Graph, GpuError> {
        let table = &self.context.table;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: live stream.
        self.context.check("cuStreamBeginCapture", unsafe {
            (table.cuStreamBeginCapture_v2)(self.handle, mode)
        })?;
        let worked = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: live stream, live pointer; the capture is ended even if the work failed.
        let ended = self.context.check("cuStreamEndCapture", unsafe {
            (table.cuStreamEndCapture)(self.handle, &mut graph)
        });
        let mut handle = std::ptr::null_mut();
        let made = worked.and(ended).and_then(|()| {
            // SAFETY: a live graph and pointer; zero is no flag.
            self.context.check("cuGraphInstantiate", unsafe {
                (table.cuGraphInstantiateWithFlags)(&mut handle, graph, 0)
            })
        });
        if !graph.is_null() {
            // SAFETY: made above, destroyed once; the executable graph does not need it.
            let _ = unsafe { (table.cuGraphDestroy)(graph) };
        }
        made?;
        Ok(Graph {
            context: Rc::clone(&self.context),
            handle,
        })
    }

    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), GpuError> {
        // SAFETY: live graph and stream.
        self.context.check("cuGraphLaunch", unsafe {
            (self.context.table.cuGraphLaunch)(graph.handle, self.handle)
        })
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), GpuError> {
        // SAFETY: live event and stream.
        self.context.check("cuEventRecord", unsafe {
            (self.context.table.cuEventRecord)(event.handle, self.handle)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once.
        let _ = unsafe { (self.context.table.cuStreamDestroy_v2)(self.handle) };
    }
}

/// Recorded work.
pub(crate) struct Graph {
    context: Rc<Context>,
    handle: CUgraphExec,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once.
        let _ = unsafe { (self.context.table.cuGraphExecDestroy)(self.handle) };
    }
}

/// A point in a stream's work.
pub(crate) struct Event {
    context: Rc<Context>,
    handle: CUevent,
}

impl Event {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Self, GpuError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live pointer; zero is the flag of an event that takes the time.
        context.check("cuEventCreate", unsafe {
            (context.table.cuEventCreate)(&mut handle, 0)
        })?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
        })
    }

    /// Waits for this event, and says how many microseconds before it `start` was.
    pub(crate) fn wait_since(&self, start: &Self) -> Result<f64, GpuError> {
        let table = &self.context.table;
        // SAFETY: live event.
        self.context.check("cuEventSynchronize", unsafe {
            (table.cuEventSynchronize)(self.handle)
        })?;
        let mut milliseconds = 0.0;
        // SAFETY: live events, both recorded on one stream, and a live float.
        self.context.check("cuEventElapsedTime", unsafe {
            (table.cuEventElapsedTime_v2)(&mut milliseconds, start.handle, self.handle)
        })?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once.
        let _ = unsafe { (self.context.table.cuEventDestroy_v2)(self.handle) };
    }
}
