"""A GPU kernel that Tilewright searched, as a PyTorch operator.

    import torch, {this folder} as kernel
    y = kernel.run(...)              # the parameters of program.lax, in order; contiguous CUDA tensors

The operator is `torch.ops.<namespace>.run`; it works eagerly, under torch.compile and in CUDA graphs, runs on the current
stream and allocates through PyTorch. Any thread may call it. It has no derivative, and says so where one is asked for. Everything
else about it is in manifest.json. Where this folder's name is no identifier, `importlib.import_module` takes it.

A kernel that was made without a GPU was simulated and never ran: its first import in a process warns. TILEWRIGHT_ALLOW_UNVERIFIED=1 in the
environment silences that; and since an import takes no arguments, Python's own does, too: `python -W ignore:tilewright`.

Where the Python package `tilewright` is installed its library launches the kernels (`launcher == "compiled"`), without Python and in less
time; elsewhere this file does (`launcher == "ctypes"`, and `why_ctypes` says why). Results, refusals and messages are the same. TILEWRIGHT_LAUNCHER in the
environment chooses: `ctypes`, or `compiled`, with which an import fails where that cannot be.

Where blocks of a kernel wait for each other (a launch in manifest.json whose `split_workspace.together` is above 1), all that wait must find room on
the GPU: that is checked for one launch alone. Launches that wait and run at the same time may each hold a part of the room and
wait for ever, so do not let such calls overlap with others of their kind on streams of different priority, nor share the GPU with other
processes through MPS. What a graph recorded has split-K workspaces of its own: do not run two instances of one captured graph at the same time.
"""

import contextlib
import ctypes
import functools
import importlib.util
import json
import keyword
import os
import pathlib
import threading
import warnings

import torch
from torch.autograd import forward_ad

_FOLDER = pathlib.Path(__file__).resolve().parent


def _read():
    """The manifest and the kernels, both of the folder that is there now: a better one may take its place at any time."""
    folder = os.open(_FOLDER, os.O_RDONLY)
    inside = functools.partial(os.open, dir_fd=folder)
    try:
        with open("manifest.json", opener=inside, encoding="utf-8") as file:
            found = json.load(file)
        if found["cubin"] is None:
            return found, None
        with open(found["cubin"]["file"], "rb", opener=inside) as file:
            cubins = [file.read(size) for size in found["cubin"]["bytes"]]
            if len(cubins) != len(found["launches"]) or [len(cubin) for cubin in cubins] != found["cubin"]["bytes"] or file.read(1):
                raise RuntimeError(f"{found['program']}: {found['cubin']['file']} is not the cubins that manifest.json lists: it was changed or cut short")
            return found, cubins
    finally:
        os.close(folder)


manifest, _cubins = _read()

_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
_KIND = "cuda"  # the type of the devices
_CURRENT_STREAM = "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"  # of PyTorch, for the compiled launcher
_ALIGNMENT = 16  # bytes: the widest vector load
_WORKSPACE_ALIGNMENT = 256
_SWIZZLE = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle, by the bytes of a line
_REPLAYED = 3  # launches of a call that are worth a graph
_MOST_REPLAYS = 64  # graphs of all launchers

_PARAMETERS = tuple((p["name"], _DTYPES[p["dtype"]], torch.Size(p["shape"])) for p in manifest["parameters"])
_CAPABILITY = manifest["target"]["capability"]


def _strides(shape):
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


_OUTPUTS = tuple((tuple(o["shape"]), _strides(o["shape"]), _DTYPES[o["dtype"]]) for o in manifest["outputs"])


def _lay_out(sizes):
    """Offsets of pieces in one allocation, and its size."""
    offsets, size = [], 0
    for piece in sizes:
        offsets.append(size)
        size += -(-piece // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    return offsets, size


_WORKSPACE_OFFSETS, _WORKSPACE_BYTES = _lay_out(
    b["bytes"] if b["role"] == "workspace" else 0 for b in manifest["buffers"]
)
_SPLIT_WORKSPACE_OFFSETS, _SPLIT_WORKSPACE_BYTES = _lay_out(launch["split_workspace"]["bytes"] for launch in manifest["launches"])


def _places():
    """(slot, position among a call's addresses, offset): a slot a buffer and then, if there are split-K workspaces, one a
    launch. The addresses are those of the parameters, the outputs, one allocation of workspaces and one of split-K workspaces."""
    outputs = len(_PARAMETERS)
    workspaces = outputs + len(_OUTPUTS)
    split_workspaces = workspaces + (_WORKSPACE_BYTES > 0)
    places = []
    for buffer, offset in zip(manifest["buffers"], _WORKSPACE_OFFSETS):
        if buffer["role"] == "workspace":
            places.append((workspaces, offset))
        else:
            places.append((buffer["index"] + (outputs if buffer["role"] == "output" else 0), 0))
    places += [(split_workspaces, offset) for offset in _SPLIT_WORKSPACE_OFFSETS if _SPLIT_WORKSPACE_BYTES]
    return tuple((slot, at, offset) for slot, (at, offset) in enumerate(places))


_PLACES = _places()


def _launches():
    """The kernels in order: how each is started, the slots whose addresses are its first arguments, and the tensor maps that are the others."""
    launches = []
    for i, launch in enumerate(manifest["launches"]):
        slots = list(launch["arguments"])
        if launch["split_workspace"]["bytes"]:
            slots.append(len(manifest["buffers"]) + i)
        maps = [
            {"slot": m["buffer"], "swizzle": _SWIZZLE[m["line_bytes"]]} | {k: m[k] for k in ("offset", "extents", "strides", "sizes")}
            for m in launch.get("maps", ())
        ]
        started = {k: launch[k] for k in ("grid", "threads", "shared_bytes", "overlaps")}
        launches.append(started | {"slots": slots, "maps": maps})
    return tuple(launches)


_LAUNCHES = _launches()  # what both ways of launching read


# --- Faults -------------------------------------------------------------------------------------------------------------


def _refuse(tensors, kinds=(_KIND,)):
    """Raises the error that says what is wrong with the arguments; returns when nothing is."""
    faults = []
    device = next((t.device for t in tensors if t.device.type in kinds), None)
    for (name, dtype, shape), t in zip(_PARAMETERS, tensors):
        if t.device.type not in kinds:
            faults.append(f"`{name}`: expected a CUDA tensor, found one on {t.device}")
        elif t.device != device:
            faults.append(f"`{name}`: expected a tensor on {device} like the others, found one on {t.device}")
        if t.dtype is not dtype:
            faults.append(f"`{name}`: expected {dtype}, found {t.dtype}")
        if t.shape != shape:
            faults.append(f"`{name}`: expected shape {list(shape)}, found {list(t.shape)}")
        elif not t.is_contiguous():
            faults.append(f"`{name}`: expected a contiguous tensor, found strides {list(t.stride())}")
    if faults:
        raise ValueError(f"{manifest['program']}: " + "; ".join(faults))


def _refuse_pointer(name):
    raise ValueError(
        f"{manifest['program']}: `{name}`: expected data aligned to {_ALIGNMENT} bytes, found a view that starts elsewhere"
    )


def _refuse_derivative():
    raise RuntimeError(
        f"{manifest['program']}: an input requires a gradient, but this kernel has no derivative; "
        "call it under torch.no_grad() or on detached tensors"
    )


def _addresses(tensors, device):
    """Where the arguments' data lies, on one device; raises the error that says what is wrong with them."""
    addresses = []
    for t, (name, dtype, shape) in zip(tensors, _PARAMETERS):
        if t.dtype is not dtype or t.shape != shape or t.get_device() != device or not t.is_contiguous():
            _refuse(tensors)
        address = t.data_ptr()
        if address % _ALIGNMENT:
            _refuse_pointer(name)
        addresses.append(address)
    return addresses


# --- The driver ---------------------------------------------------------------------------------------------------------

_P, _I, _U, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64

# The calls of libcuda that a launch needs, with their arguments; None where callers keep these ready as ctypes wants them, since
# converting them takes longer than the call.
_CALLS = {
    "cuGetErrorString": (_I, _P),
    "cuDeviceGet": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxSetCurrent": (_P,),
    "cuThreadExchangeStreamCaptureMode": (_P,),
    "cuModuleLoadData": (_P, ctypes.c_char_p),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, ctypes.c_size_t),
    "cuTensorMapEncodeTiled": (_P, _U, _U, _N, _P, _P, _P, _P, _U, _U, _U, _U),
    "cuMemAlloc_v2": (_P, ctypes.c_size_t),
    "cuMemsetD8Async": (_N, ctypes.c_ubyte, ctypes.c_size_t, _P),
    "cuStreamCreate": (_P, _U),
    "cuStreamSynchronize": (_P,),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamIsCapturing": None,
    "cuStreamGetCaptureInfo_v2": (_P, _P, _P, _P, _P, _P),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphDestroy": (_P,),
    "cuGraphRetainUserObject": (_P, _P, _U, _U),
    "cuUserObjectCreate": (_P, _P, _P, _U, _U),
    "cuUserObjectRelease": (_P, _U),
    "cuGraphLaunch": None,
    "cuLaunchKernelEx": None,
}
# Those that read or write what is this thread's alone.
_BRIEF_CALLS = {
    "cuCtxGetCurrent": None,
    "cuTensorMapReplaceAddress": (_P, _N),
}
# What split-K workspaces of graphs need of the C library, brief calls too.
_C_CALLS = {
    "malloc": (ctypes.c_size_t,),
    "sem_init": (_P, _I, _U),
    "sem_post": (_P,),
    "sem_trywait": (_P,),
}


class _Driver:
    """The calls of libcuda.

    Python's lock is released (`CDLL`) by every call that may wait for room in a full launch queue, or for a lock of the driver that another
    thread holds while it waits for room: the queue may not move before Python code has run, a host function on a stream or another rank in
    this process. Brief calls keep it (`PyDLL`), since releasing it takes longer than they do.
    """

    def __init__(self):
        try:
            for library, calls in (
                (ctypes.CDLL("libcuda.so.1"), _CALLS),
                (ctypes.PyDLL("libcuda.so.1"), _BRIEF_CALLS),
                (ctypes.PyDLL(None), _C_CALLS),
            ):
                for name, arguments in calls.items():
                    call = getattr(library, name)
                    call.argtypes = arguments
                    setattr(self, name, call)
            self.malloc.restype = _P
        except (OSError, AttributeError) as error:
            raise RuntimeError(
                f"{manifest['program']}: expected a CUDA driver of version 12 or newer, found none: {error}"
            ) from error

    def check(self, code, what):
        if code:
            text = ctypes.c_char_p()
            self.cuGetErrorString(code, ctypes.byref(text))
            reason = text.value.decode() if text.value else "unknown error"
            raise RuntimeError(f"{manifest['program']}: {what} failed: {reason} (CUDA error {code})")


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, with an integer as its value."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CAPTURE_NONE = 0  # CU_STREAM_CAPTURE_STATUS_NONE
_ERROR_CAPTURE_INVALIDATED = 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
_MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE

_driver = None
_devices = {}  # device index -> its context, and function handles in launch order
_locks = {}  # device index -> what loads one at a time there; loading may have to wait for kernels that wait for another device


@contextlib.contextmanager
def _relaxed():
    """Allows this thread to load and to allocate while a stream is captured, which other modes forbid."""
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    _driver.check(_driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "changing the capture mode")
    try:
        yield
    finally:
        _driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@contextlib.contextmanager
def _bound(context):
    """Makes a context current on this thread, and afterwards the one that was."""
    before = ctypes.c_void_p()
    _driver.check(_driver.cuCtxGetCurrent(ctypes.byref(before)), "finding the context")
    _driver.check(_driver.cuCtxSetCurrent(context), "setting the context")
    try:
        yield
    finally:
        _driver.cuCtxSetCurrent(before)


def _load(device):
    """The context of one device, and the kernels in it; loaded once a process."""
    global _driver
    with _locks.setdefault(device, threading.RLock()):  # a signal handler may call in the middle of a call
        if device in _devices:
            return _devices[device]
        if _cubins is None:
            raise RuntimeError(
                f"{manifest['program']}: this artifact holds CUDA source but no compiled kernel, because no NVRTC was found "
                "when it was made; make it again where NVRTC is installed"
            )
        major, minor = torch.cuda.get_device_capability(device)
        if major * 10 + minor != _CAPABILITY:
            raise RuntimeError(
                f"{manifest['program']}: built for {manifest['target']['name']} (compute capability "
                f"{_CAPABILITY // 10}.{_CAPABILITY % 10}), but cuda:{device} is {torch.cuda.get_device_name(device)} "
                f"(compute capability {major}.{minor})"
            )
        if _driver is None:
            _driver = _Driver()
        number, context = ctypes.c_int(), ctypes.c_void_p()
        _driver.check(_driver.cuDeviceGet(ctypes.byref(number), device), "finding the device")
        _driver.check(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "finding the context")
        with _bound(context), _relaxed():
            _devices[device] = context.value, _functions(device)
        return _devices[device]


def _functions(device):
    """Function handles in launch order."""
    functions = []
    for launch, cubin in zip(manifest["launches"], _cubins):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _driver.check(_driver.cuModuleLoadData(ctypes.byref(module), cubin), f"loading kernel {launch['entry']}")
        _driver.check(
            _driver.cuModuleGetFunction(ctypes.byref(function), module, launch["entry"].encode()),
            f"finding kernel {launch['entry']}",
        )
        _driver.check(
            _driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, launch["shared_bytes"]),
            f"reserving {launch['shared_bytes']} bytes of shared memory",
        )
        _check_room(device, launch, function)
        functions.append(function)
    return functions


def _check_room(device, launch, function):
    """Refuses a GPU on which blocks that wait for each other would not find room at the same time."""
    together = launch["split_workspace"]["together"]
    if together <= 1:
        return
    blocks = ctypes.c_int()
    _driver.check(
        _driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, launch["threads"], launch["shared_bytes"]
        ),
        "asking for the room on the GPU",
    )
    room = blocks.value * torch.cuda.get_device_properties(device).multi_processor_count
    if room < together:
        raise RuntimeError(
            f"{manifest['program']}: {together} blocks of {launch['entry']} wait for each other, but cuda:{device} has room for {room}"
        )


# --- Split-K workspaces -------------------------------------------------------------------------------------------------
#
# Where blocks of a launch wait for each other: counters that are 0 before a launch and 0 again after it. Launches that may run at
# the same time need split-K workspaces of their own: a launcher has one for its stream, and one for each graph that records it there.
#
# A graph keeps its split-K workspace until it is gone, with all that was made of it. The driver then calls a function: on a thread of its own,
# where nothing of CUDA may be called, so that it cannot free memory, and where Python's lock would be waited for, after Python's end for
# ever. So it is the C library's `sem_post`, and a split-K workspace whose semaphore was posted goes to the next graph. Memory of the graph's own
# pool that a node of the graph clears would be simpler, but every replay would pay for the node.

_SEMAPHORE_BYTES = 64  # more than a `sem_t` of any C library

_lent = {}  # device index -> (address, semaphore) of every split-K workspace that was made for a graph; kept as long as the process


def _new_split_workspace():
    """Zeroed memory that no allocator and no graph knows."""
    split_workspace, stream = ctypes.c_uint64(), ctypes.c_void_p()
    with _relaxed():
        _driver.check(_driver.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "making a stream")
        try:
            _driver.check(_driver.cuMemAlloc_v2(ctypes.byref(split_workspace), _SPLIT_WORKSPACE_BYTES), "allocating a split-K workspace")
            _driver.check(_driver.cuMemsetD8Async(split_workspace, 0, _SPLIT_WORKSPACE_BYTES, stream), "clearing a split-K workspace")
            _driver.check(_driver.cuStreamSynchronize(stream), "clearing a split-K workspace")
        finally:
            _driver.cuStreamDestroy_v2(stream)
    return split_workspace.value


def _lend_split_workspace(device, graph):
    """The address of a split-K workspace that a graph under capture keeps."""
    lent = _lent.setdefault(device, [])
    for address, gone in lent:
        if _driver.sem_trywait(gone) == 0:
            break
    else:
        # The driver may post when Python's own memory is no more.
        address, gone = _new_split_workspace(), _driver.malloc(_SEMAPHORE_BYTES)
        _driver.sem_init(gone, 0, 0)
        lent.append((address, gone))
    keeper = ctypes.c_void_p()
    code = _driver.cuUserObjectCreate(ctypes.byref(keeper), gone, _driver.sem_post, 1, _NO_DESTRUCTOR_SYNC)
    if code:
        _driver.sem_post(gone)
        _driver.check(code, "lending a split-K workspace to a graph")
    code = _driver.cuGraphRetainUserObject(graph, keeper, 1, _MOVE)
    if code:
        _driver.cuUserObjectRelease(keeper, 1)
        _driver.check(code, "lending a split-K workspace to a graph")
    return address


# --- Launching from Python ----------------------------------------------------------------------------------------------

_TENSOR_UINT16 = 1  # CU_TENSOR_MAP_DATA_TYPE_UINT16
_PROMOTE_256B = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B


class _Map:
    """A tensor of elements of two bytes, as the hardware copies boxes of it: an argument that the driver makes."""

    def __init__(self, entry):
        self.slot, self.offset = entry["slot"], entry["offset"]
        self.memory = ctypes.create_string_buffer(128 + 64)
        self.pointer = (ctypes.addressof(self.memory) + 63) // 64 * 64
        self.address = None
        rank = len(entry["extents"])
        self.shape = (
            (ctypes.c_uint64 * rank)(*entry["extents"]),
            (ctypes.c_uint64 * (rank - 1))(*entry["strides"]),
            (ctypes.c_uint * rank)(*entry["sizes"]),
            (ctypes.c_uint * rank)(*[1] * rank),
        )
        self.swizzle = entry["swizzle"]

    def move(self, address):
        """Makes it describe data at another address."""
        known, self.address = self.address, None  # whatever interrupts this, it is not taken for done
        if known is None:
            code = _driver.cuTensorMapEncodeTiled(
                self.pointer,
                _TENSOR_UINT16,
                len(self.shape[0]),
                address + self.offset,
                *self.shape,
                0,  # nothing interleaved
                self.swizzle,
                _PROMOTE_256B,
                0,  # zeros outside
            )
        else:
            code = _driver.cuTensorMapReplaceAddress(self.pointer, address + self.offset)
        _driver.check(code, "describing a tensor")
        self.address = address


_recorded = []  # they are kept as long as the process


class _Replays:
    """Graphs of a launcher's calls whose buffers lie where they lay before: one call of the driver each, instead of one a launch.

    A graph is made when the same addresses come for the second time. There are few, and none is given up for another: where addresses
    keep changing, and where the driver does not record a call, kernels are launched one by one. Nobody's capture is disturbed.
    """

    def __init__(self):
        self.seen, self.graphs = set(), {}

    def find(self, launcher, addresses):
        """A graph of a call with these addresses, which has none yet, where they come for the second time."""
        if len(_recorded) >= _MOST_REPLAYS:
            return None
        if addresses not in self.seen:
            if len(self.seen) == _MOST_REPLAYS:
                self.seen.clear()
            self.seen.add(addresses)
            return None
        launcher.fill(addresses)
        graph = self.record(launcher)
        if graph is None:
            launcher.replays = None
            return None
        _recorded.append(graph)
        self.graphs[addresses] = graph
        return graph

    @staticmethod
    def record(launcher):
        """The graph of the launches; none where the driver refuses, which a launch will explain if it has to."""
        stream, graph, replay = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        with _relaxed():
            if _driver.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING):
                return None
            try:
                if _driver.cuStreamBeginCapture_v2(stream, _CAPTURE_RELAXED):
                    return None
                try:
                    launcher.launch_on(stream)
                except RuntimeError:
                    return None
                finally:
                    refused = _driver.cuStreamEndCapture(stream, ctypes.byref(graph))
                if refused or _driver.cuGraphInstantiateWithFlags(ctypes.byref(replay), graph, 0):
                    return None
                return replay
            finally:
                if graph.value:
                    _driver.cuGraphDestroy(graph)
                _driver.cuStreamDestroy_v2(stream)


class _Launcher:
    """Argument blocks on one stream, filled anew by each call.

    One call has it at a time. Calls that meet, of several threads or of a signal handler in the middle of a call, have a launcher each
    and so a split-K workspace each: their kernels may mix on the stream, and one may begin before the one in front of it has ended.
    """

    def __init__(self, device, stream):
        self.device, self.stream = device, ctypes.c_void_p(stream)
        self.context, functions = _load(device)
        self.slots = (ctypes.c_uint64 * len(_PLACES))()
        base = ctypes.addressof(self.slots)
        self.calls, self.configs, self.maps = [], [], []
        overlap = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1, b"")
        for launch, function in zip(_LAUNCHES, functions):
            pointers = [base + 8 * slot for slot in launch["slots"]]
            maps = [_Map(entry) for entry in launch["maps"]]
            self.maps += maps
            pointers += [m.pointer for m in maps]
            block = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
            grid, threads = (ctypes.c_uint * 3)(*launch["grid"]), (ctypes.c_uint * 3)(launch["threads"], 1, 1)
            config = _Config(grid, threads, launch["shared_bytes"], stream, ctypes.pointer(overlap), int(launch["overlaps"]))
            self.configs.append(config)
            self.calls.append((ctypes.byref(config), function, block, None))
        # PyTorch's public functions allocate without Python's lock: memory may have to be waited for, too.
        where = torch.device(_KIND, device)
        self.outputs = [functools.partial(torch.empty_strided, *o[:2], dtype=o[2], device=where) for o in _OUTPUTS]
        self.workspace = functools.partial(torch.empty_strided, (_WORKSPACE_BYTES,), (1,), dtype=torch.uint8, device=where)
        self.replays = _Replays() if len(_LAUNCHES) >= _REPLAYED else None
        self.stateful = self.replays is not None or _SPLIT_WORKSPACE_BYTES > 0
        # What the driver is asked in every call, and where its answers go.
        self.current, self.status = ctypes.c_void_p(), ctypes.c_int()
        self.ask_context = (ctypes.byref(self.current),)
        self.ask_status = self.stream, ctypes.byref(self.status)
        self.split_workspace, self.lent_split_workspace, self.lent_capture = None, None, None

    def run(self, addresses):
        """Launches the kernels on parameters at these addresses and returns the outputs."""
        outputs = [allocate() for allocate in self.outputs]
        addresses += [o.data_ptr() for o in outputs]
        if _WORKSPACE_BYTES:
            # Freed on return: later work on this stream cannot overtake the kernels that use it.
            workspace = self.workspace()
            addresses.append(workspace.data_ptr())
        _driver.cuCtxGetCurrent(*self.ask_context)
        if self.current.value == self.context:
            self.submit(addresses)
        else:  # a new thread, or another device's
            with _bound(self.context):
                self.submit(addresses)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def submit(self, addresses):
        """Launches the kernels: addresses of the parameters, the outputs and the workspace, as far as there are any."""
        if self.stateful:
            captured = self.is_captured()
            if _SPLIT_WORKSPACE_BYTES:
                addresses.append(self.graph_split_workspace() if captured else self.stream_split_workspace())
            if self.replays is not None and not captured and self.replay(tuple(addresses)):
                return
        self.fill(addresses)
        self.launch()

    def is_captured(self):
        """Whether a graph records the stream."""
        code = _driver.cuStreamIsCapturing(*self.ask_status)
        if code:
            _driver.check(code, "launching the kernel")
        return self.status.value != _CAPTURE_NONE

    def graph_split_workspace(self):
        """The split-K workspace of the graph that records the stream."""
        capture, graph = ctypes.c_uint64(), ctypes.c_void_p()
        code = _driver.cuStreamGetCaptureInfo_v2(
            self.stream, *map(ctypes.byref, (self.status, capture, graph)), None, None
        )
        if not code and graph.value is None:
            code = _ERROR_CAPTURE_INVALIDATED
        _driver.check(code, "launching the kernel")
        if self.lent_capture != capture.value:
            self.lent_capture = None
            self.lent_split_workspace = _lend_split_workspace(self.device, graph)
            self.lent_capture = capture.value
        return self.lent_split_workspace

    def stream_split_workspace(self):
        """The split-K workspace of the stream. A stream that was destroyed may leave it to another one with the same handle, as PyTorch's
        allocator lets it inherit memory."""
        if self.split_workspace is None:
            self.split_workspace = _new_split_workspace()
        return self.split_workspace

    def fill(self, addresses):
        """Puts addresses of the parameters, the outputs, the workspace and the split-K workspaces, as far as there are any, into the slots."""
        slots = self.slots
        for slot, at, offset in _PLACES:
            slots[slot] = addresses[at] + offset

    def replay(self, addresses):
        """Whether a graph was launched that has these addresses; it is recorded when they come for the second time."""
        graph = self.replays.graphs.get(addresses)
        if graph is None:
            graph = self.replays.find(self, addresses)
            if graph is None:
                return False
        code = _driver.cuGraphLaunch(graph, self.stream)
        if code:
            _driver.check(code, "launching the kernels")
        return True

    def launch(self):
        """Launches the kernels with what the slots hold."""
        for described in self.maps:
            if described.address != self.slots[described.slot]:
                described.move(self.slots[described.slot])
        launch = _driver.cuLaunchKernelEx
        for call in self.calls:
            code = launch(*call)
            if code:
                _driver.check(code, "launching the kernel")

    def launch_on(self, stream):
        """Launches the kernels on another stream, this once."""
        try:
            for config in self.configs:
                config.stream = stream.value
            self.launch()
        finally:
            for config in self.configs:
                config.stream = self.stream.value


_idle = {}  # (device index, stream) -> launchers that no call has; kept as long as the process


def _raw_stream_slowly(device):
    return torch.cuda.current_stream(device).cuda_stream


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream_slowly)  # what compiled code of PyTorch calls


# --- The compiled launcher ----------------------------------------------------------------------------------------------
#
# A library of the package `tilewright` that implements operators through LibTorch's stable C interface. It reads what the launcher above
# reads, and asks Python for what happens once: loading, split-K workspaces, and the words for what is wrong.

_INTERFACE = 1  # the version of the library's functions and of the description
_KERNELS, _SPLIT_WORKSPACE, _GRAPH_SPLIT_WORKSPACE, _ALLOCATION = range(4)  # what it asks for
_DIRECT, _FAULTS = "run_directly", "tell_faults"  # operators beside `run`: the kernel alone, and what the library calls to refuse arguments
_raised = threading.local()  # `error`: what was raised while the library asked, and what it cannot raise itself


class _Unavailable(RuntimeError):
    """Why the compiled launcher cannot be used."""


class _Compiled:
    """The library, and the operator in it; lives as long as the process."""

    def __init__(self):
        try:
            package = importlib.util.find_spec("tilewright")  # found and not imported
        except (ImportError, ValueError):
            package = None
        if package is None or not package.submodule_search_locations:
            raise _Unavailable("the package tilewright is not installed")
        path = pathlib.Path(next(iter(package.submodule_search_locations)), "bin", "libtilewright_launcher.so")
        if not path.is_file():
            raise _Unavailable(f"{path} is missing")
        try:
            library = ctypes.CDLL(str(path))
            interface = library.tilewright_launcher_interface
            interface.restype = ctypes.c_uint32
            if interface() != _INTERFACE:
                raise _Unavailable(f"{path} has version {interface()} of its interface, and this artifact knows version {_INTERFACE}")
            reason = ctypes.c_char_p, ctypes.c_size_t
            self.functions = {}
            for name, arguments in (
                ("add", (ctypes.c_char_p, _ASK, _P, *reason)),
                ("implement", (ctypes.c_int64, ctypes.c_char_p, *reason)),
                ("loaded", (ctypes.c_int64, _I, _N, _P, ctypes.c_size_t, *reason)),
                ("recorded", (ctypes.c_int64, *reason)),
            ):
                function = getattr(library, f"tilewright_launcher_{name}")
                function.argtypes, function.restype = arguments, ctypes.c_int64
                self.functions[name] = function
            self.tell_library = library.tilewright_launcher_tell
            self.tell_library.argtypes, self.tell_library.restype = (ctypes.c_bool, ctypes.c_char_p), None
            stream = ctypes.cast(getattr(ctypes.CDLL(_CURRENT_STREAM[0]), _CURRENT_STREAM[1]), _P)
        except (OSError, AttributeError) as error:
            raise _Unavailable(str(error)) from error
        description = {
            "program": manifest["program"],
            "namespace": manifest["namespace"],
            "kind": _KIND,
            "refuse": _FAULTS,
            "alignment": _ALIGNMENT,
            "parameters": [{k: p[k] for k in ("dtype", "shape")} for p in manifest["parameters"]],
            "outputs": [{k: o[k] for k in ("dtype", "shape")} for o in manifest["outputs"]],
            "workspace_bytes": _WORKSPACE_BYTES,
            "split_workspace_bytes": _SPLIT_WORKSPACE_BYTES,
            "places": [(at, offset) for _, at, offset in _PLACES],
            "launches": _LAUNCHES,
            "replayed": _REPLAYED,
            "most_replays": _MOST_REPLAYS,
        }
        self.ask = _ASK(self.answer)
        self.number = self.call("add", json.dumps(description).encode(), self.ask, stream)

    def call(self, name, *arguments):
        """Calls a function of the library."""
        reason = ctypes.create_string_buffer(1024)
        found = self.functions[name](*arguments, reason, len(reason))
        if found < 0:
            raise _Unavailable(f"the compiled launcher refuses: {reason.value.decode(errors='replace')}")
        return found

    def implement(self, name):
        """Makes an operator that is defined launch the kernels."""
        self.call("implement", self.number, name.encode())

    def recorded(self):
        """How many graphs there are."""
        return self.call("recorded", self.number)

    def answer(self, need, device, graph, at):
        """What the library asks for in the middle of a call."""
        try:
            if need == _KERNELS:
                context, functions = _load(device)
                handles = (ctypes.c_uint64 * max(1, len(functions)))(*[f.value for f in functions])
                self.call("loaded", self.number, device, context, handles, len(functions))
            elif need == _SPLIT_WORKSPACE:
                at[0] = _new_split_workspace()
            elif need == _GRAPH_SPLIT_WORKSPACE:
                at[0] = _lend_split_workspace(device, ctypes.c_void_p(graph))
            elif need == _ALLOCATION:
                # What PyTorch's public functions raise is what is to be said. Where they raise nothing, the library tries once more.
                for shape, strides, dtype in (*_OUTPUTS, ((_WORKSPACE_BYTES,), (1,), torch.uint8)):
                    torch.empty_strided(shape, strides, dtype=dtype, device=torch.device(_KIND, device))
            return 0
        except BaseException as error:  # interrupts, too: the call ends with them
            self.tell(error)
            return 1

    def tell(self, error):
        """Lets the call that this thread is in the middle of end with an error."""
        if type(error) not in (ValueError, RuntimeError):
            _raised.error = error
        self.tell_library(isinstance(error, ValueError), str(error).encode(errors="replace"))


_ASK = ctypes.CFUNCTYPE(_I, ctypes.c_uint32, _I, _N, ctypes.POINTER(_N))


def _meant(error):
    """The error that was raised in the middle of a call, of which the library can only pass on the text."""
    raised = _raised.__dict__.pop("error", None)
    return raised if raised is not None and str(raised) == str(error) else error


def _tell_faults(*tensors):
    try:
        _addresses(tensors, tensors[0].get_device())
    except ValueError as error:
        _compiled.tell(error)


# --- The operator -------------------------------------------------------------------------------------------------------


def _call(tensors):
    """The outputs for CUDA tensors."""
    device = tensors[0].get_device() if tensors else torch.cuda.current_device()
    addresses = _addresses(tensors, device)
    key = device, _raw_stream(device)
    try:
        idle = _idle[key]
    except KeyError:
        idle = _idle.setdefault(key, [])
    try:
        launcher = idle.pop()
    except IndexError:
        launcher = _Launcher(*key)
    try:
        return launcher.run(addresses)
    finally:
        idle.append(launcher)


def _run_cuda(*tensors):
    return _call(tensors)


def _run_cpu(*tensors):
    _refuse(tensors)


def _run_fake(*tensors):
    # The meta device has neither data nor GPUs: the rest is checked as ever.
    _refuse(tensors, (_KIND, "meta"))
    device = tensors[0].device if tensors else torch.device(_KIND)
    outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, _, dtype in _OUTPUTS]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_CUDA_ALONE = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KIND.upper())) & _BELOW_AUTOGRAD).raw_repr()
_plain = set()  # sets of dispatch keys, as numbers, that leave nothing but the kernel to do


def _run_autograd(keys, *tensors):
    """Refuses derivatives of every kind: of an operator without one PyTorch says at best when it is too late, and of a functional one
    nothing, but zero. Nothing is dispatched again where only `_run_cuda` is left, which is nearly always."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                _refuse_derivative()
    if forward_ad._current_level >= 0:
        for t in tensors:
            if forward_ad.unpack_dual(t).tangent is not None:
                _refuse_derivative()
    if _direct is not None and not _is_exported():
        # What PyTorch compiles calls the kernel alone from here on. What it exports calls `run`: other inputs may want a derivative.
        return _run_directly(tensors)
    if keys.raw_repr() in _plain and _direct is None:
        return _call(tensors)
    below = keys & _BELOW_AUTOGRAD
    if below.raw_repr() == _CUDA_ALONE:
        _plain.add(keys.raw_repr())
    return op.redispatch(below, *tensors)


def _run_directly(tensors):
    """The outputs where nothing wants a derivative."""
    try:
        return _direct(*tensors)
    except RuntimeError as error:
        raise _meant(error) from None


def _schema(operator):
    names = []
    for name, _, _ in _PARAMETERS:
        while keyword.iskeyword(name) or name in names:
            name += "_"
        names.append(name)
    returns = "Tensor" if len(_OUTPUTS) == 1 else "(" + ", ".join(["Tensor"] * len(_OUTPUTS)) + ")"
    arguments = ", ".join(f"Tensor {n}" for n in names)
    return f"{operator}({arguments}) -> {'()' if operator == _FAULTS else returns}"


def _never_ran():
    """Whether no GPU has run these kernels."""
    return manifest["evidence"]["kernel"] is None


def _warn():
    if _never_ran() and os.environ.get("TILEWRIGHT_ALLOW_UNVERIFIED") != "1":
        warnings.warn(
            f"tilewright: {manifest['program']} was simulated and never ran on a GPU: its results are unverified; run "
            f"`tilewright verify {_FOLDER}` on a machine with {manifest['target']['device']}. TILEWRIGHT_ALLOW_UNVERIFIED=1 "
            "and python -W ignore:tilewright silence this",
            stacklevel=4,  # whoever imports
        )


def _choose():
    """The compiled launcher, or None and why it is not used."""
    wanted = os.environ.get("TILEWRIGHT_LAUNCHER", "")
    if wanted not in ("", "ctypes", "compiled"):
        raise ValueError(f"TILEWRIGHT_LAUNCHER: expected `ctypes` or `compiled`, found `{wanted}`")
    if wanted == "ctypes":
        return None, "TILEWRIGHT_LAUNCHER=ctypes"
    if not _PARAMETERS:
        return None, "a program without parameters: no tensor says where to launch"
    try:
        return _Compiled(), None
    except _Unavailable as error:
        if wanted == "compiled":
            raise RuntimeError(f"{manifest['program']}: TILEWRIGHT_LAUNCHER=compiled cannot be: {error}") from error
        return None, str(error)


def _register():
    """Defines the operator; a second copy of the same artifact in the process shares the first one's. Gives it, that of the kernel alone,
    the compiled launcher, and why there is none."""
    namespace = manifest["namespace"]
    operators = getattr(torch.ops, namespace)
    try:
        op = operators.run.default
    except AttributeError:
        pass
    else:
        unknown = None, None, "another copy of this artifact, which knows no other way, was imported first"
        return op, *getattr(operators, "launcher_of_artifact", unknown)
    _warn()
    compiled, why = _choose()
    library = torch.library.Library(namespace, "FRAGMENT")
    tags = [torch.Tag.pt2_compliant_tag]
    exact = getattr(torch.Tag, "needs_exact_strides", None)
    if exact is not None:
        tags.append(exact)
    for name in ("run", _DIRECT) if compiled else ("run",):
        library.define(_schema(name), tags=tuple(tags))
        if compiled:
            compiled.implement(name)
        elif _PARAMETERS:
            library.impl(name, _run_cuda, _KIND.upper())
        else:
            # No tensor says which backend: this is where an operator chooses one.
            library.impl(name, _run_cuda, "BackendSelect")
        if _PARAMETERS and _KIND != "cpu":
            library.impl(name, _run_cpu, "CPU")
        torch.library.register_fake(f"{namespace}::{name}", _run_fake, lib=library)
    if _PARAMETERS:
        library.impl("run", _run_autograd, "Autograd", with_keyset=True)
    direct = None
    if compiled:
        library.define(_schema(_FAULTS), tags=())
        library.impl(_FAULTS, _tell_faults, "CompositeExplicitAutograd")
        direct = getattr(operators, _DIRECT).default
    operators = getattr(torch.ops, namespace)
    operators.library_of_artifact = library  # a Library undoes its work when it dies: it lives as long as the namespace
    operators.launcher_of_artifact = direct, compiled, why
    return operators.run.default, direct, compiled, why


op, _direct, _compiled, why_ctypes = _register()
launcher = "ctypes" if _compiled is None else "compiled"
if _direct is not None:
    _launch = getattr(_direct, "_op", _direct)  # the operator without a call of Python's
    _PLAIN = torch.Tensor, torch.nn.Parameter  # of any other type PyTorch decides what a call means
    _is_traced = torch.compiler.is_dynamo_compiling
    _is_exported = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    _are_transformed = torch._C._are_functorch_transforms_active


def run(*tensors):
    """Calls the kernel: one contiguous CUDA tensor a parameter, in the order of `manifest["parameters"]`."""
    if len(tensors) != len(_PARAMETERS):
        raise TypeError(
            f"{manifest['program']}: expected {len(_PARAMETERS)} tensors "
            f"({', '.join(p[0] for p in _PARAMETERS)}), found {len(tensors)}"
        )
    if _direct is None or _is_traced() or forward_ad._current_level >= 0 or _are_transformed():
        return op(*tensors)
    derivable = torch.is_grad_enabled()
    for t in tensors:
        if type(t) not in _PLAIN or (derivable and t.requires_grad):
            return op(*tensors)
    try:
        return _launch(*tensors)
    except RuntimeError as error:
        raise _meant(error) from None
