//! LibTorch's functions that have a C interface which stays from version to version: the whole of PyTorch that is known here.
//!
//! They are found in the libraries that `import torch` has loaded. Each gives 0, or prints what is wrong and gives something else: none throws.

#![allow(unsafe_code, reason = "the crate's only calls of LibTorch")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_NOW};

use crate::fault::Exceptions;

/// How LibTorch calls an operator: the arguments lie on a stack, as tensors that are ours from then on, and results take their place.
pub(crate) type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);
/// The stream that is PyTorch's current one on a device.
pub(crate) type CurrentStream = unsafe extern "C" fn(c_int, *mut *mut c_void) -> c_int;

/// Declares the functions, each with its type as in LibTorch's `shim.h`, and the look-up of all of them.
macro_rules! table {
    ($($name:ident: fn($($argument:ty),*);)*) => {
        struct Table { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Table {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: each row's type is that of the function's declaration in LibTorch's `shim.h`, which is kept from version to version.
                unsafe { Ok(Self { $($name: *library.get(stringify!($name))?,)* }) }
            }
        }
    };
}

#[rustfmt::skip]
table! {
    aoti_torch_library_init_impl:    fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void);
    aoti_torch_library_impl:         fn(*mut c_void, *const c_char, Boxed);
    aoti_torch_call_dispatcher:      fn(*const c_char, *const c_char, *mut u64);
    aoti_torch_get_data_ptr:         fn(*mut c_void, *mut *mut c_void);
    aoti_torch_get_dim:              fn(*mut c_void, *mut i64);
    aoti_torch_get_sizes:            fn(*mut c_void, *mut *mut i64);
    aoti_torch_get_strides:          fn(*mut c_void, *mut *mut i64);
    aoti_torch_get_dtype:            fn(*mut c_void, *mut i32);
    aoti_torch_get_device_type:      fn(*mut c_void, *mut i32);
    aoti_torch_get_device_index:     fn(*mut c_void, *mut i32);
    aoti_torch_empty_strided:        fn(i64, *const i64, *const i64, i32, i32, i32, *mut *mut c_void);
    aoti_torch_delete_tensor_object: fn(*mut c_void);
}

/// The language's dtypes, and bytes, with the functions that give PyTorch's numbers of them.
#[rustfmt::skip]
const DTYPES: [(&str, &str); 7] = [
    ("f32",  "aoti_torch_dtype_float32"),
    ("f16",  "aoti_torch_dtype_float16"),
    ("bf16", "aoti_torch_dtype_bfloat16"),
    ("i32",  "aoti_torch_dtype_int32"),
    ("i64",  "aoti_torch_dtype_int64"),
    ("bool", "aoti_torch_dtype_bool"),
    (BYTES,  "aoti_torch_dtype_uint8"),
];
/// The dtype of workspaces.
pub(crate) const BYTES: &str = "u8";

/// LibTorch.
pub(crate) struct Torch {
    table: Table,
    library: Library,
    /// What throws.
    pub(crate) exceptions: Exceptions,
}

/// A tensor that is ours: it is let go when this is dropped.
pub(crate) struct Tensor<'a> {
    torch: &'a Torch,
    handle: *mut c_void,
}

/// What a tensor has to be.
#[derive(Debug)]
pub(crate) struct Expected {
    /// PyTorch's number of the dtype.
    pub(crate) dtype: i32,
    /// The extents.
    pub(crate) shape: Vec<i64>,
    /// The strides of a contiguous tensor.
    pub(crate) strides: Vec<i64>,
}

impl Torch {
    /// Finds the functions.
    ///
    /// # Errors
    /// The library or a function is missing: an older version.
    pub(crate) fn load() -> Result<Self, String> {
        // SAFETY: PyTorch has loaded the library, so that nothing is initialised.
        let library = unsafe { Library::open(Some("libtorch_cpu.so"), RTLD_NOW) };
        let library = library.map_err(|e| e.to_string())?;
        Ok(Self {
            table: Table::load(&library).map_err(|e| e.to_string())?,
            library,
            exceptions: Exceptions::load()?,
        })
    }

    /// PyTorch's number of a dtype in the language's spelling.
    ///
    /// # Errors
    /// Nobody knows it.
    pub(crate) fn dtype(&self, name: &str) -> Result<i32, String> {
        let row = DTYPES.iter().find(|(n, _)| *n == name);
        let (_, symbol) = row.ok_or_else(|| format!("the dtype {name} is not known"))?;
        self.constant(symbol)
    }

    /// PyTorch's number of a type of devices.
    ///
    /// # Errors
    /// Nobody knows it.
    pub(crate) fn device_type(&self, kind: &str) -> Result<i32, String> {
        self.constant(&format!("aoti_torch_device_type_{kind}"))
    }

    fn constant(&self, symbol: &str) -> Result<i32, String> {
        // SAFETY: these functions are declared as `int32_t f()`, and do nothing but give a number.
        let number = unsafe {
            self.library
                .get::<unsafe extern "C" fn() -> i32>(symbol)
                .map(|f| f())
        };
        number.map_err(|e| e.to_string())
    }

    /// Registers what computes an operator that is defined, for a dispatch key, for as long as the process lives.
    ///
    /// # Errors
    /// LibTorch refuses; it has printed why.
    pub(crate) fn implement(
        &self,
        namespace: &CStr,
        name: &CStr,
        key: &CStr,
        function: Boxed,
    ) -> Result<(), String> {
        let mut library = null_mut();
        let file = c"tilewright".as_ptr();
        // SAFETY: the texts end with 0, and the answer goes where the pointer says.
        let made = unsafe {
            (self.table.aoti_torch_library_init_impl)(
                namespace.as_ptr(),
                key.as_ptr(),
                file,
                0,
                &mut library,
            )
        };
        if made == 0 {
            let implement = self.table.aoti_torch_library_impl;
            // SAFETY: the library is what was just made, and is never given back, which would undo this.
            if unsafe { implement(library, name.as_ptr(), function) } == 0 {
                return Ok(());
            }
        }
        Err("LibTorch refuses an operator".to_owned())
    }

    /// Calls an operator that gives nothing. Whether it did what it should.
    pub(crate) fn call(&self, name: &CStr, arguments: Vec<Tensor<'_>>) -> bool {
        let mut stack: Vec<u64> = arguments
            .into_iter()
            .map(|t| t.into_raw() as u64)
            .chain([0])
            .collect();
        // SAFETY: the stack holds the operator's arguments, which are LibTorch's from here on, and has room for a result.
        unsafe {
            (self.table.aoti_torch_call_dispatcher)(name.as_ptr(), c"".as_ptr(), stack.as_mut_ptr())
                == 0
        }
    }

    /// A tensor whose elements hold anything.
    pub(crate) fn empty(
        &self,
        expected: &Expected,
        device_type: i32,
        device: i32,
    ) -> Option<Tensor<'_>> {
        let mut handle = null_mut();
        // SAFETY: the extents and strides are as many as is said, and the answer goes where the pointer says.
        let code = unsafe {
            (self.table.aoti_torch_empty_strided)(
                expected.shape.len() as i64,
                expected.shape.as_ptr(),
                expected.strides.as_ptr(),
                expected.dtype,
                device_type,
                device,
                &mut handle,
            )
        };
        (code == 0).then_some(Tensor {
            torch: self,
            handle,
        })
    }

    /// Takes the tensor that an operator was called with, or that it gives.
    ///
    /// # Safety
    /// The handle is LibTorch's, and nobody else's.
    pub(crate) unsafe fn own(&self, handle: u64) -> Tensor<'_> {
        Tensor {
            torch: self,
            handle: handle as *mut c_void,
        }
    }
}

impl Tensor<'_> {
    /// Where its data lies.
    pub(crate) fn address(&self) -> Option<u64> {
        let mut address = null_mut();
        // SAFETY: the tensor lives, and the answer goes where the pointer says.
        let code = unsafe { (self.torch.table.aoti_torch_get_data_ptr)(self.handle, &mut address) };
        (code == 0).then_some(address as u64)
    }

    /// The number of its device, which has to be of this type.
    pub(crate) fn device(&self, device_type: i32) -> Option<i32> {
        let (mut found, mut index) = (0, 0);
        // SAFETY: the tensor lives, and the answers go where the pointers say.
        let codes = unsafe {
            (self.torch.table.aoti_torch_get_device_type)(self.handle, &mut found)
                | (self.torch.table.aoti_torch_get_device_index)(self.handle, &mut index)
        };
        // A device without a number is the first of its type.
        (codes == 0 && found == device_type).then_some(index.max(0))
    }

    /// Whether dtype, extents and strides are as expected; the stride of one element is anything.
    pub(crate) fn is(&self, expected: &Expected) -> bool {
        let (mut dtype, mut rank) = (0, 0);
        let (mut sizes, mut strides) = (null_mut(), null_mut());
        let (table, handle) = (&self.torch.table, self.handle);
        // SAFETY: the tensor lives, and the answers go where the pointers say.
        let codes = unsafe {
            (table.aoti_torch_get_dtype)(handle, &mut dtype)
                | (table.aoti_torch_get_dim)(handle, &mut rank)
                | (table.aoti_torch_get_sizes)(handle, &mut sizes)
                | (table.aoti_torch_get_strides)(handle, &mut strides)
        };
        if codes != 0 || dtype != expected.dtype || rank != expected.shape.len() as i64 {
            return false;
        }
        (0..expected.shape.len()).all(|d| {
            // SAFETY: there are as many as the tensor has dimensions, and they live as long as it.
            let (size, stride) = unsafe { (*sizes.add(d), *strides.add(d)) };
            size == expected.shape[d] && (size == 1 || stride == expected.strides[d])
        })
    }

    /// Gives it to whoever is called or has called.
    pub(crate) fn into_raw(self) -> *mut c_void {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the tensor is ours, and nobody uses it any more.
        unsafe { (self.torch.table.aoti_torch_delete_tensor_object)(self.handle) };
    }
}

impl Expected {
    /// A contiguous tensor.
    pub(crate) fn contiguous(dtype: i32, shape: &[i64]) -> Self {
        let mut strides = vec![1; shape.len()];
        for d in (1..shape.len()).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        Self {
            dtype,
            shape: shape.to_vec(),
            strides,
        }
    }
}
