//! An operator of PyTorch: what it asks of its arguments, and what it does with them.

#![allow(unsafe_code, reason = "LibTorch calls with addresses")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{CUcontext, CUfunction, CUstream};
use smallvec::SmallVec;

use crate::argument_block::{Launcher, Loaded};
use crate::description::{self, Description};
use crate::driver::{Driver, Failed};
use crate::fault::{Fault, told};
use crate::torch::{BYTES, Boxed, CurrentStream, Expected, Tensor, Torch};

/// Asks Python for what is needed once: a number of [`need`], a device, a graph, and where the answer goes. Gives 0, or something else where
/// [`crate::fault::tell`] says why not.
pub(crate) type Ask = unsafe extern "C" fn(u32, c_int, u64, *mut u64) -> c_int;

/// What Python is asked for; it takes Python's lock, and nothing else is locked meanwhile.
mod need {
    /// The kernels of a device: Python calls `tilewright_launcher_loaded`.
    pub(super) const KERNELS: u32 = 0;
    /// The address of a split-K workspace for a stream.
    pub(super) const SPLIT_WORKSPACE: u32 = 1;
    /// The address of one that a graph keeps.
    pub(super) const GRAPH_SPLIT_WORKSPACE: u32 = 2;
    /// Why outputs cannot be allocated.
    pub(super) const ALLOCATION: u32 = 3;
}

/// An operator.
pub(crate) struct Operator {
    torch: Torch,
    description: Description,
    refuse: CString,
    parameters: Vec<Expected>,
    outputs: Vec<Expected>,
    workspace: Option<Expected>,
    device_type: i32,
    ask: Ask,
    current_stream: CurrentStream,
    loaded: Mutex<BTreeMap<i32, Arc<Loaded>>>,
    /// Launchers that no call has, by device and stream; kept as long as the process.
    idle: Mutex<BTreeMap<(i32, u64), Vec<Launcher>>>,
    /// Graphs of all launchers.
    recorded: AtomicUsize,
}

/// A launcher that a call has.
struct Lent<'a> {
    operator: &'a Operator,
    key: (i32, u64),
    launcher: Option<Launcher>,
}

/// The operators of this process.
static OPERATORS: [OnceLock<Operator>; 256] = [const { OnceLock::new() }; 256];
/// How many there are.
static COUNT: Mutex<usize> = Mutex::new(0);

/// What LibTorch calls for the operator of a number: it hands over nothing but arguments, so that each needs a function of its own.
unsafe extern "C-unwind" fn boxed<const N: usize>(stack: *mut u64, inputs: u64, outputs: u64) {
    // SAFETY: as for this function.
    unsafe { call(N, stack, inputs, outputs) }
}

macro_rules! sixteen {
    ($($row:literal)*) => { [$([
        boxed::<{ 16 * $row }>, boxed::<{ 16 * $row + 1 }>, boxed::<{ 16 * $row + 2 }>, boxed::<{ 16 * $row + 3 }>,
        boxed::<{ 16 * $row + 4 }>, boxed::<{ 16 * $row + 5 }>, boxed::<{ 16 * $row + 6 }>, boxed::<{ 16 * $row + 7 }>,
        boxed::<{ 16 * $row + 8 }>, boxed::<{ 16 * $row + 9 }>, boxed::<{ 16 * $row + 10 }>, boxed::<{ 16 * $row + 11 }>,
        boxed::<{ 16 * $row + 12 }>, boxed::<{ 16 * $row + 13 }>, boxed::<{ 16 * $row + 14 }>, boxed::<{ 16 * $row + 15 }>,
    ]),*] };
}
static BOXED: [[Boxed; 16]; 16] = sixteen!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// Calls an operator; where that is refused, throws.
///
/// # Safety
/// The stack holds the arguments, which are ours, and has room for the results.
unsafe fn call(number: usize, stack: *mut u64, inputs: u64, outputs: u64) {
    let Some(operator) = OPERATORS[number].get() else {
        return; // nobody registers a function whose operator is not there
    };
    // SAFETY: LibTorch's stack has room for the larger of the two numbers.
    let stack = unsafe { std::slice::from_raw_parts_mut(stack, inputs.max(outputs) as usize) };
    let done = catch_unwind(AssertUnwindSafe(|| operator.run(stack, inputs as usize)));
    let fault = match done {
        Ok(Ok(())) => return,
        Ok(Err(fault)) => fault,
        Err(_) => operator.fault("the launcher failed"),
    };
    // SAFETY: nothing is left to be dropped here or in `boxed`, whose interface lets exceptions pass.
    unsafe { operator.torch.exceptions.throw(fault) }
}

/// Adds an operator, and gives its number.
///
/// # Errors
/// The description or PyTorch is not what this knows, or there are too many.
pub(crate) fn add(
    description: &str,
    ask: Ask,
    current_stream: CurrentStream,
) -> Result<usize, String> {
    let operator = Operator::new(Description::read(description)?, ask, current_stream)?;
    let mut count = locked(&COUNT);
    let free = OPERATORS
        .get(*count)
        .ok_or_else(|| format!("there are {} operators already", OPERATORS.len()))?;
    if free.set(operator).is_err() {
        return Err("an operator has the number of another one".to_owned());
    }
    *count += 1;
    Ok(*count - 1)
}

/// The operator of a number.
///
/// # Errors
/// There is none.
pub(crate) fn get(number: usize) -> Result<&'static Operator, String> {
    let operator = OPERATORS.get(number).and_then(OnceLock::get);
    operator.ok_or_else(|| format!("there is no operator {number}"))
}

/// Makes LibTorch call an operator by a name that is defined.
///
/// # Errors
/// LibTorch refuses.
pub(crate) fn implement(number: usize, name: &str) -> Result<(), String> {
    let operator = get(number)?;
    let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
    let description = &operator.description;
    operator.torch.implement(
        &text(&description.namespace)?,
        &text(name)?,
        &text(&description.kind.to_uppercase())?,
        BOXED[number / 16][number % 16],
    )
}

impl Operator {
    fn new(
        description: Description,
        ask: Ask,
        current_stream: CurrentStream,
    ) -> Result<Self, String> {
        let torch = Torch::load()?;
        let expected = |dtype: &str, shape: &[i64]| {
            Ok::<_, String>(Expected::contiguous(torch.dtype(dtype)?, shape))
        };
        let all = |list: &[description::Tensor]| -> Result<Vec<_>, String> {
            list.iter().map(|t| expected(&t.dtype, &t.shape)).collect()
        };
        let bytes = description.workspace_bytes;
        Ok(Self {
            parameters: all(&description.parameters)?,
            outputs: all(&description.outputs)?,
            workspace: (bytes > 0).then(|| expected(BYTES, &[bytes])).transpose()?,
            device_type: torch.device_type(&description.kind)?,
            refuse: CString::new(format!("{}::{}", description.namespace, description.refuse))
                .map_err(|e| e.to_string())?,
            torch,
            description,
            ask,
            current_stream,
            loaded: Mutex::default(),
            idle: Mutex::default(),
            recorded: AtomicUsize::new(0),
        })
    }

    /// Takes the context of a device and the kernels in it.
    ///
    /// # Errors
    /// The driver lacks something, or there are not as many kernels as launches.
    pub(crate) fn set_loaded(
        &self,
        device: i32,
        context: u64,
        functions: &[u64],
    ) -> Result<(), String> {
        if functions.len() != self.description.launches.len() {
            let wanted = self.description.launches.len();
            return Err(format!(
                "expected {wanted} kernels, found {}",
                functions.len()
            ));
        }
        let loaded = Loaded {
            driver: Driver::open()?,
            context: context as CUcontext,
            functions: functions.iter().map(|f| *f as CUfunction).collect(),
        };
        locked(&self.loaded).insert(device, Arc::new(loaded));
        Ok(())
    }

    /// How many graphs there are.
    pub(crate) fn recorded(&self) -> usize {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Computes the outputs, which take the arguments' place.
    fn run(&self, stack: &mut [u64], inputs: usize) -> Result<(), Fault> {
        // SAFETY: LibTorch gives the arguments to whom it calls.
        let own = |handle: &u64| unsafe { self.torch.own(*handle) };
        let tensors: SmallVec<[Tensor<'_>; 16]> = stack[..inputs].iter().map(own).collect();
        let mut addresses = SmallVec::<[u64; 32]>::new();
        let device = tensors.first().and_then(|t| t.device(self.device_type));
        for (tensor, expected) in tensors.iter().zip(&self.parameters) {
            let address = tensor
                .address()
                .filter(|a| a % self.description.alignment == 0);
            match address {
                Some(address)
                    if tensor.is(expected) && tensor.device(self.device_type) == device =>
                {
                    addresses.push(address);
                }
                Some(_) | None => return Err(self.refuse(tensors)),
            }
        }
        let Some(device) = device.filter(|_| tensors.len() == self.parameters.len()) else {
            return Err(self.refuse(tensors));
        };

        let mut lent = self.lend(device, self.stream(device)?)?;
        let mut results = SmallVec::<[Tensor<'_>; 8]>::new();
        // Freed on return: later work on this stream cannot overtake the kernels that use the workspace.
        for expected in self.outputs.iter().chain(&self.workspace) {
            let result = self.allocate(expected, device)?;
            let address = result.address();
            addresses.push(address.ok_or_else(|| self.fault("an output has no address"))?);
            results.push(result);
        }
        if let Some(launcher) = &mut lent.launcher {
            self.submit(launcher, device, &mut addresses)?;
        }
        drop(lent);
        drop(tensors);
        results.truncate(self.outputs.len());
        for (at, result) in stack.iter_mut().zip(results) {
            *at = result.into_raw() as u64;
        }
        Ok(())
    }

    /// Launches the kernels: addresses of the parameters, the outputs and the workspace, as far as there are any.
    fn submit(
        &self,
        launcher: &mut Launcher,
        device: i32,
        addresses: &mut SmallVec<[u64; 32]>,
    ) -> Result<(), Fault> {
        let (loaded, description) = (launcher.loaded(), &self.description);
        let driver = &loaded.driver;
        let failed = |f| self.failed(driver, f);
        // A new thread has no context, or another device's.
        let bound = driver.bind(loaded.context).map_err(failed)?;
        if launcher.is_stateful(description) {
            let captured = driver.is_captured(launcher.stream()).map_err(failed)?;
            if description.split_workspace_bytes > 0 {
                addresses.push(if captured {
                    self.graph_split_workspace(launcher, driver, device)?
                } else {
                    self.stream_split_workspace(launcher, device)?
                });
            }
            if !captured
                && launcher
                    .replay(description, addresses, &self.recorded)
                    .map_err(failed)?
            {
                return Ok(());
            }
        }
        launcher.launch(description, addresses).map_err(failed)?;
        drop(bound);
        Ok(())
    }

    /// The split-K workspace of the stream. A stream that was destroyed may leave it to another one with the same handle, as PyTorch's
    /// allocator lets it inherit memory.
    fn stream_split_workspace(&self, launcher: &mut Launcher, device: i32) -> Result<u64, Fault> {
        if let Some(address) = launcher.split_workspace {
            return Ok(address);
        }
        let address = self.ask(need::SPLIT_WORKSPACE, device, 0)?;
        launcher.split_workspace = Some(address);
        Ok(address)
    }

    /// The split-K workspace of the graph that records the stream.
    fn graph_split_workspace(
        &self,
        launcher: &mut Launcher,
        driver: &Driver,
        device: i32,
    ) -> Result<u64, Fault> {
        let capture = driver
            .capture(launcher.stream())
            .map_err(|f| self.failed(driver, f))?;
        if let Some((id, address)) = launcher.lent_split_workspace
            && id == capture.id
        {
            return Ok(address);
        }
        launcher.lent_split_workspace = None;
        let address = self.ask(need::GRAPH_SPLIT_WORKSPACE, device, capture.graph as u64)?;
        launcher.lent_split_workspace = Some((capture.id, address));
        Ok(address)
    }

    fn allocate(&self, expected: &Expected, device: i32) -> Result<Tensor<'_>, Fault> {
        for _ in 0..2 {
            if let Some(tensor) = self.torch.empty(expected, self.device_type, device) {
                return Ok(tensor);
            }
            self.ask(need::ALLOCATION, device, 0)?;
        }
        Err(self.fault("allocating the outputs failed"))
    }

    fn stream(&self, device: i32) -> Result<CUstream, Fault> {
        let mut stream: *mut c_void = null_mut();
        // SAFETY: the answer goes where the pointer says.
        if unsafe { (self.current_stream)(device, &mut stream) } != 0 {
            return Err(self.fault("finding the current stream failed"));
        }
        Ok(stream.cast())
    }

    /// A launcher that no other call has. Calls that meet have one each, and so a split-K workspace each.
    fn lend(&self, device: i32, stream: CUstream) -> Result<Lent<'_>, Fault> {
        let key = (device, stream as u64);
        let idle = locked(&self.idle).get_mut(&key).and_then(Vec::pop);
        let launcher = match idle {
            Some(launcher) => launcher,
            None => Launcher::new(&self.description, self.load(device)?, stream),
        };
        Ok(Lent {
            operator: self,
            key,
            launcher: Some(launcher),
        })
    }

    /// The kernels of a device; loaded once a process.
    fn load(&self, device: i32) -> Result<Arc<Loaded>, Fault> {
        let found = || locked(&self.loaded).get(&device).map(Arc::clone);
        if let Some(loaded) = found() {
            return Ok(loaded);
        }
        self.ask(need::KERNELS, device, 0)?;
        found().ok_or_else(|| self.fault("loading the kernels failed"))
    }

    fn ask(&self, need: u32, device: i32, graph: u64) -> Result<u64, Fault> {
        let mut answer = 0;
        // SAFETY: the function lives as long as the process, and its answer goes where the pointer says.
        if unsafe { (self.ask)(need, device, graph, &mut answer) } == 0 {
            return Ok(answer);
        }
        Err(told().unwrap_or_else(|| self.fault("Python gave no answer")))
    }

    /// What is wrong with the arguments, in Python's words.
    fn refuse(&self, tensors: SmallVec<[Tensor<'_>; 16]>) -> Fault {
        let called = self.torch.call(&self.refuse, tensors.into_vec());
        told().filter(|_| called).unwrap_or_else(|| {
            Fault::Value(format!(
                "{}: the arguments are refused",
                self.description.program
            ))
        })
    }

    fn failed(&self, driver: &Driver, Failed { what, code }: Failed) -> Fault {
        let reason = driver.reason(code);
        self.fault(&format!("{what} failed: {reason} (CUDA error {code})"))
    }

    fn fault(&self, what: &str) -> Fault {
        Fault::Runtime(format!("{}: {what}", self.description.program))
    }
}

// SAFETY: its functions are LibTorch's and Python's, which any thread may call.
unsafe impl Send for Operator {}
// SAFETY: as above.
unsafe impl Sync for Operator {}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(launcher) = self.launcher.take() {
            let mut idle = locked(&self.operator.idle);
            idle.entry(self.key).or_default().push(launcher);
        }
    }
}

/// What a lock protects; it is whole after every statement, whatever another thread met.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
