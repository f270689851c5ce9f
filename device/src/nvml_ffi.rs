#![allow(
    unsafe_code,
    reason = "one of the crate's three files that call foreign functions"
)]
//! The foreign functions of NVML, behind a safe face.
//!
//! What is absent (the library, one of its functions, the device, a sensor) is `None`: nobody is worse off for it than by a
//! figure that is not known.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::path::Path;
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `NVML_CLOCK_SM`.
const CLOCK_SM: c_uint = 1;
/// `NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE`.
const VERSION_BYTES: usize = 80;

/// What a device's handle points to is NVML's.
enum Opaque {}

/// Declares functions, each with its type as in nvml.h, and the look-up of all of them.
macro_rules! table {
    ($table:ident $($name:ident: fn($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names are the library's")]
        struct $table { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl $table {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: each row's type is that of the function's declaration in nvml.h, the same in each version that has it (CUDA 8 to 13; of events 11 to 13).
                unsafe { Ok(Self { $($name: *library.get(stringify!($name))?,)* }) }
            }
        }
    };
}

#[rustfmt::skip]
table! {
    Table
    nvmlInit_v2:                     fn();
    nvmlSystemGetDriverVersion:      fn(*mut c_char, c_uint);
    nvmlDeviceGetHandleByUUID:       fn(*const c_char, *mut *mut Opaque);
    nvmlDeviceGetClockInfo:          fn(*mut Opaque, c_uint, *mut c_uint);
    nvmlDeviceGetPowerUsage:         fn(*mut Opaque, *mut c_uint);
    nvmlDeviceGetEnforcedPowerLimit: fn(*mut Opaque, *mut c_uint);
}

#[rustfmt::skip]
table! {
    Events
    nvmlEventSetCreate:       fn(*mut *mut Opaque);
    nvmlDeviceRegisterEvents: fn(*mut Opaque, c_ulonglong, *mut Opaque);
    nvmlEventSetWait_v2:      fn(*mut Opaque, *mut Event, c_uint);
    nvmlEventSetFree:         fn(*mut Opaque);
}

/// `nvmlEventTypeXidCriticalError`.
const XID: c_ulonglong = 8;

/// `nvmlEventData_t`.
#[repr(C)]
struct Event {
    device: *mut Opaque,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A device, for as long as the process lives: the library is never shut down.
pub(crate) struct Device {
    table: Table,
    events: Option<Events>,
    handle: NonNull<Opaque>,
}

/// The errors that the driver tells of a device, from when this was made on.
pub(crate) struct Xids {
    events: Events,
    set: NonNull<Opaque>,
}

impl Xids {
    /// The number of the next error, which is waited for so many milliseconds.
    pub(crate) fn next(&self, milliseconds: u32) -> Option<u64> {
        let mut event = Event {
            device: std::ptr::null_mut(),
            kind: 0,
            data: 0,
            gpu_instance: 0,
            compute_instance: 0,
        };
        // SAFETY: the set is of this library, which stays initialised, and lives as long as this does; a live event.
        found(unsafe {
            (self.events.nvmlEventSetWait_v2)(self.set.as_ptr(), &mut event, milliseconds)
        })?;
        Some(event.data)
    }
}

impl Drop for Xids {
    fn drop(&mut self) {
        // SAFETY: the set is ours, and nothing has it any more.
        unsafe { (self.events.nvmlEventSetFree)(self.set.as_ptr()) };
    }
}

impl Device {
    /// Opens the library and finds the device of this identifier.
    pub(crate) fn open(library: &Path, uuid: &str) -> Option<Self> {
        let uuid = CString::new(uuid).ok()?;
        // SAFETY: opening runs the initialisers of NVIDIA's management library, which have no precondition.
        let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) }.ok()?;
        let (table, events) = (Table::load(&library).ok()?, Events::load(&library).ok());
        // No function pointer outlives its library.
        std::mem::forget(library);
        // SAFETY: it takes nothing, and may be called more than once.
        found(unsafe { (table.nvmlInit_v2)() })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is initialised; a string that ends in zero, a live pointer.
        found(unsafe { (table.nvmlDeviceGetHandleByUUID)(uuid.as_ptr(), &mut handle) })?;
        let handle = NonNull::new(handle)?;
        Some(Self {
            table,
            events,
            handle,
        })
    }

    /// Watches for errors of the device.
    pub(crate) fn xids(self) -> Option<Xids> {
        let events = self.events?;
        let mut set = std::ptr::null_mut();
        // SAFETY: the library is initialised; a live pointer.
        found(unsafe { (events.nvmlEventSetCreate)(&mut set) })?;
        let set = NonNull::new(set)?;
        let xids = Xids { events, set };
        // SAFETY: the handle and the set are of this library.
        found(unsafe {
            (xids.events.nvmlDeviceRegisterEvents)(self.handle.as_ptr(), XID, set.as_ptr())
        })?;
        Some(xids)
    }

    /// The driver's version.
    pub(crate) fn driver(&self) -> Option<String> {
        let mut bytes = [0_u8; VERSION_BYTES];
        // SAFETY: the library writes at most as many bytes as it is told, a zero among them.
        found(unsafe {
            let most = VERSION_BYTES as c_uint;
            (self.table.nvmlSystemGetDriverVersion)(bytes.as_mut_ptr().cast(), most)
        })?;
        let text = CStr::from_bytes_until_nul(&bytes).ok()?;
        Some(text.to_string_lossy().into_owned())
    }

    /// The clock of the multiprocessors, in MHz.
    pub(crate) fn sm_mhz(&self) -> Option<u32> {
        let mut mhz = 0;
        // SAFETY: the handle is of a device of this library, which stays initialised; a live integer.
        found(unsafe {
            (self.table.nvmlDeviceGetClockInfo)(self.handle.as_ptr(), CLOCK_SM, &mut mhz)
        })?;
        Some(mhz)
    }

    /// What the board draws, in milliwatts.
    pub(crate) fn milliwatts(&self) -> Option<u32> {
        let mut milliwatts = 0;
        // SAFETY: as above.
        found(unsafe {
            (self.table.nvmlDeviceGetPowerUsage)(self.handle.as_ptr(), &mut milliwatts)
        })?;
        Some(milliwatts)
    }

    /// What the board may draw, in milliwatts: the least of all limits.
    pub(crate) fn limit_milliwatts(&self) -> Option<u32> {
        let mut milliwatts = 0;
        // SAFETY: as above.
        found(unsafe {
            (self.table.nvmlDeviceGetEnforcedPowerLimit)(self.handle.as_ptr(), &mut milliwatts)
        })?;
        Some(milliwatts)
    }
}

/// Whether a call gave what it was asked for.
fn found(code: c_int) -> Option<()> {
    (code == 0).then_some(())
}
