"""A GPU kernel that Tilewright searched and verified, as a PyTorch operator.

    import torch, {this folder} as kernel
    y = kernel.run(...)              # the parameters of program.lax, in order; contiguous CUDA tensors

The operator is `torch.ops.<namespace>.run`; it works eagerly, under torch.compile and in CUDA graphs, runs on the current
stream and allocates through PyTorch. It has no derivative. Everything else about it is in manifest.json.

Where blocks of a kernel wait for each other (a launch in manifest.json whose `board.together` is above 1), all that wait must find room on
the GPU: that is checked for one launch alone. Launches that wait and run at the same time may each hold a part of the room and
wait for ever, so do not let such calls overlap with others of their kind on streams of different priority, nor share the GPU with other
processes through MPS. Each call that a graph records keeps a board of its own until the process ends, and the graph's: do not run two
instances of one captured graph at the same time.
"""

import ctypes
import json
import keyword
import pathlib
import threading

import torch

_FOLDER = pathlib.Path(__file__).resolve().parent
manifest = json.loads((_FOLDER / "manifest.json").read_text())

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_ALIGNMENT = 16  # bytes: the widest vector load
_WORKSPACE_ALIGNMENT = 256

_PARAMETERS = tuple(
    (i, p["name"], _DTYPES[p["dtype"]], torch.Size(p["shape"])) for i, p in enumerate(manifest["parameters"])
)


def _strides(shape):
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


_PARAMETER_DTYPES = [dtype for _, _, dtype, _ in _PARAMETERS]
_PARAMETER_LAYOUTS = [(tuple(shape), _strides(shape)) for _, _, _, shape in _PARAMETERS]
_OUTPUTS = tuple((tuple(o["shape"]), _strides(o["shape"]), _DTYPES[o["dtype"]]) for o in manifest["outputs"])
_CAPABILITY = manifest["target"]["capability"]


def _slots(role):
    """(position in the caller's list, buffer index) of every buffer of one role."""
    return tuple((b["index"], i) for i, b in enumerate(manifest["buffers"]) if b["role"] == role)


def _workspace():
    """Offsets of the workspaces in one allocation, and its size."""
    offsets, size = [], 0
    for i, b in enumerate(manifest["buffers"]):
        if b["role"] == "workspace":
            offsets.append((i, size))
            size += -(-b["bytes"] // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    return tuple(offsets), size


_WORKSPACE_SLOTS, _WORKSPACE_BYTES = _workspace()


# --- Faults -------------------------------------------------------------------------------------------------------------


def _refuse(tensors):
    """Raises the error that says what is wrong with the arguments; returns when nothing is."""
    faults = []
    device = tensors[0].device if tensors else None
    for (_, name, dtype, shape), t in zip(_PARAMETERS, tensors):
        if t.device.type != "cuda":
            faults.append(f"`{name}`: expected a CUDA tensor, found one on {t.device}")
        elif t.device != device:
            faults.append(f"`{name}`: expected a tensor on {device} like the first, found one on {t.device}")
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


# --- The driver ---------------------------------------------------------------------------------------------------------


class _Driver:
    """The calls of libcuda that a launch needs."""

    def __init__(self):
        # PyDLL keeps the interpreter lock: these calls are shorter than releasing it.
        lib = ctypes.PyDLL("libcuda.so.1")
        self.library = lib
        self.launch = lib.cuLaunchKernelEx  # four arguments: ctypes takes its time for each
        p, i = ctypes.c_void_p, ctypes.c_int
        u, n = ctypes.c_uint, ctypes.c_uint64
        lib.cuModuleLoadData.argtypes = [p, ctypes.c_char_p]
        lib.cuModuleGetFunction.argtypes = [p, p, ctypes.c_char_p]
        lib.cuFuncSetAttribute.argtypes = [p, i, i]
        lib.cuCtxGetCurrent.argtypes = [p]
        lib.cuCtxSetCurrent.argtypes = [p]
        lib.cuDevicePrimaryCtxRetain.argtypes = [p, i]
        lib.cuThreadExchangeStreamCaptureMode.argtypes = [p]
        lib.cuOccupancyMaxActiveBlocksPerMultiprocessor.argtypes = [p, p, i, ctypes.c_size_t]
        lib.cuTensorMapEncodeTiled.argtypes = [p, u, u, n, p, p, p, p, u, u, u, u]
        lib.cuTensorMapReplaceAddress.argtypes = [p, n]
        lib.cuMemAlloc_v2.argtypes = [p, ctypes.c_size_t]
        lib.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, p]
        lib.cuStreamCreate.argtypes = [p, ctypes.c_uint]
        lib.cuStreamSynchronize.argtypes = [p]
        lib.cuStreamDestroy_v2.argtypes = [p]
        lib.cuStreamBeginCapture_v2.argtypes = [p, i]
        lib.cuStreamEndCapture.argtypes = [p, p]
        lib.cuGraphInstantiateWithFlags.argtypes = [p, p, ctypes.c_ulonglong]
        lib.cuGraphDestroy.argtypes = [p]
        lib.cuGraphLaunch.argtypes = [p, p]
        self.replay = lib.cuGraphLaunch

    def check(self, code, what):
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
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
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_driver = None
_modules = {}  # device index -> function handles in launch order
_lock = threading.Lock()


def _load(device):
    """The kernels on one device; loaded once a process."""
    with _lock:
        if device in _modules:
            return _modules[device]
        if manifest["cubin"] is None:
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
        lib = _driver.library
        image = (_FOLDER / manifest["cubin"]["file"]).read_bytes()
        module = ctypes.c_void_p()
        # Loading is legal while another stream is captured, but only in the relaxed mode.
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            _driver.check(lib.cuModuleLoadData(ctypes.byref(module), image), "loading the kernel")
            functions = []
            for launch in manifest["launches"]:
                function = ctypes.c_void_p()
                _driver.check(
                    lib.cuModuleGetFunction(ctypes.byref(function), module, launch["entry"].encode()),
                    f"finding kernel {launch['entry']}",
                )
                _driver.check(
                    lib.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, launch["shared_bytes"]),
                    f"reserving {launch['shared_bytes']} bytes of shared memory",
                )
                _check_room(device, launch, function)
                functions.append(function)
        finally:
            lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        _modules[device] = functions
        return functions


def _check_room(device, launch, function):
    """Refuses a GPU on which blocks that wait for each other would not find room at the same time."""
    together = launch["board"]["together"]
    if together <= 1:
        return
    blocks = ctypes.c_int()
    _driver.check(
        _driver.library.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, launch["threads"], launch["shared_bytes"]
        ),
        "asking for the room on the GPU",
    )
    room = blocks.value * torch.cuda.get_device_properties(device).multi_processor_count
    if room < together:
        raise RuntimeError(
            f"{manifest['program']}: {together} blocks of {launch['entry']} wait for each other, but cuda:{device} has room for {room}"
        )


# --- Boards -------------------------------------------------------------------------------------------------------------
#
# Where blocks of a launch wait for each other: counters that are 0 before a launch and 0 again after it. Launches that may run at
# the same time need boards of their own: one a stream, and one for each call that a graph records. Nobody says when a graph goes,
# so boards stay as long as the process.


def _boards():
    """Offsets of the launches' boards in one allocation, and its size."""
    offsets, size = [], 0
    for launch in manifest["launches"]:
        offsets.append(size if launch["board"]["bytes"] else None)
        size += -(-launch["board"]["bytes"] // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    return tuple(offsets), size


_BOARD_OFFSETS, _BOARD_BYTES = _boards()


def _places():
    """(slot, offset, position among a call's addresses): parameters, outputs, one allocation of workspaces, one of boards."""
    outputs = len(_PARAMETERS)
    workspace = outputs + len(_OUTPUTS)
    boards = workspace + (1 if _WORKSPACE_BYTES else 0)
    places = [(slot, 0, p) for p, slot in _slots("parameter")]
    places += [(slot, 0, outputs + o) for o, slot in _slots("output")]
    places += [(slot, offset, workspace) for slot, offset in _WORKSPACE_SLOTS]
    first = len(manifest["buffers"])
    places += [(first + i, offset, boards) for i, offset in enumerate(_BOARD_OFFSETS) if offset is not None]
    return tuple(places)


_PLACES = _places()
_boards_of = {}  # (device index, stream) -> address; kept as long as the process


def _new_board():
    """Zeroed memory that no allocator and no graph knows. Legal while a stream is captured, but only in the relaxed mode."""
    lib = _driver.library
    board, stream = ctypes.c_uint64(), ctypes.c_void_p()
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        _driver.check(lib.cuMemAlloc_v2(ctypes.byref(board), _BOARD_BYTES), "allocating a board")
        _driver.check(lib.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "making a stream")
        _driver.check(lib.cuMemsetD8Async(board, 0, _BOARD_BYTES, stream), "clearing a board")
        _driver.check(lib.cuStreamSynchronize(stream), "clearing a board")
        lib.cuStreamDestroy_v2(stream)
    finally:
        lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    return board.value


def _board(device, stream):
    if _capturing():
        return _new_board()  # replays of the graph keep using it
    key = (device, stream)
    if key not in _boards_of:
        _boards_of[key] = _new_board()
    return _boards_of[key]


_TENSOR_UINT16 = 1  # CU_TENSOR_MAP_DATA_TYPE_UINT16
_PROMOTE_256B = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_SWIZZLE = {32: 1, 64: 2, 128: 3}  # by the bytes of a line


class _Map:
    """A tensor of elements of two bytes, as the hardware copies boxes of it: an argument that the driver makes."""

    def __init__(self, entry):
        self.slot, self.offset = entry["buffer"], entry["offset"]
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
        self.swizzle = _SWIZZLE[entry["line_bytes"]]

    def move(self, address):
        """Makes it describe data at another address."""
        lib = _driver.library
        if self.address is None:
            code = lib.cuTensorMapEncodeTiled(
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
            code = lib.cuTensorMapReplaceAddress(self.pointer, address + self.offset)
        _driver.check(code, "describing a tensor")
        self.address = address


_REPLAYED = 3  # launches of a call that are worth a graph
_MOST_REPLAYS = 64  # graphs of all threads
_recorded = []  # they are kept as long as the process


class _Replays:
    """Graphs of a thread's calls whose buffers lie where they lay before: one call of the driver each, instead of one a launch.

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
        lib = _driver.library
        stream, graph, replay = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            if lib.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING):
                return None
            if lib.cuStreamBeginCapture_v2(stream, _CAPTURE_RELAXED):
                return None
            try:
                launcher.launch(stream.value)
                failed = 0
            except RuntimeError:
                failed = 1
            if lib.cuStreamEndCapture(stream, ctypes.byref(graph)) or failed:
                return None
            if lib.cuGraphInstantiateWithFlags(ctypes.byref(replay), graph, 0):
                return None
            return replay
        finally:
            if graph.value:
                lib.cuGraphDestroy(graph)
            if stream.value:
                lib.cuStreamDestroy_v2(stream)
            lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


class _Launcher:
    """Argument blocks of one thread on one device, filled anew by each call."""

    def __init__(self, device):
        global _driver
        torch.cuda.current_stream(device)  # initialises PyTorch's side
        if _driver is None:
            _driver = _Driver()
        with torch.cuda.device(device):
            self.bind_context(device)
            functions = _load(device)
        # A slot a buffer, then one a launch for its board.
        buffers = len(manifest["buffers"])
        self.slots = (ctypes.c_uint64 * (buffers + len(manifest["launches"])))()
        base = ctypes.addressof(self.slots)
        self.stream = None
        self.calls, self.configs, self.maps = [], [], []
        self.replays = _Replays() if len(manifest["launches"]) >= _REPLAYED else None
        overlap = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1, b"")
        for i, (launch, function) in enumerate(zip(manifest["launches"], functions)):
            pointers = [base + 8 * b for b in launch["arguments"]]
            if _BOARD_OFFSETS[i] is not None:
                pointers.append(base + 8 * (buffers + i))
            maps = [_Map(entry) for entry in launch.get("maps", ())]
            self.maps += maps
            pointers += [m.pointer for m in maps]
            block = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
            grid, threads = (ctypes.c_uint * 3)(*launch["grid"]), (ctypes.c_uint * 3)(launch["threads"], 1, 1)
            config = _Config(grid, threads, launch["shared_bytes"], None, ctypes.pointer(overlap), int(launch["overlaps"]))
            self.configs.append(config)
            self.calls.append((ctypes.byref(config), function, block, None))

    def fill(self, addresses):
        """Puts addresses of the parameters, the outputs, the workspace and the boards, as far as there are any, into the slots."""
        slots = self.slots
        for slot, offset, at in _PLACES:
            slots[slot] = addresses[at] + offset

    def replay(self, addresses, stream):
        """Whether a graph was launched that has these addresses; it is recorded when they come for the second time."""
        graph = self.replays.graphs.get(addresses)
        if graph is None:
            graph = self.replays.find(self, addresses)
            if graph is None:
                return False
        code = _driver.replay(graph, stream)
        if code:
            _driver.check(code, "launching the kernels")
        return True

    def launch(self, stream):
        """Launches the kernels with what the slots hold."""
        if stream != self.stream:
            self.stream = stream
            for config in self.configs:
                config.stream = stream
        for described in self.maps:
            if described.address != self.slots[described.slot]:
                described.move(self.slots[described.slot])
        launch = _driver.launch
        for call in self.calls:
            code = launch(*call)
            if code:
                _driver.check(code, "launching the kernel")

    @staticmethod
    def bind_context(device):
        """Makes the primary context current on a thread that has none yet."""
        lib = _driver.library
        context = ctypes.c_void_p()
        lib.cuCtxGetCurrent(ctypes.byref(context))
        if not context.value:
            _driver.check(lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "finding the context")
            _driver.check(lib.cuCtxSetCurrent(context), "setting the context")


_threads = threading.local()


def _private(name):
    """A function that compiled code of PyTorch calls, where this version has it."""
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), name, None)


def _check_layout_slowly(tensor, shape, strides):
    if tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise AssertionError


def _allocate_slowly(shape, strides, dtype):
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


_check_layout = _private("assert_size_stride") or _check_layout_slowly
_allocate = _private("_empty_strided_cuda") or _allocate_slowly  # on the current device
_raw_stream = torch._C._cuda_getCurrentRawStream if hasattr(torch._C, "_cuda_getCurrentRawStream") else None
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
_current_device = torch._C._cuda_getDevice if hasattr(torch._C, "_cuda_getDevice") else (lambda: 0)


# --- The operator -------------------------------------------------------------------------------------------------------


def _run_cuda(*tensors):
    device = tensors[0].get_device() if tensors else _current_device()
    # Lists are compared in a fraction of the time that a loop takes.
    if (
        [t.dtype for t in tensors] != _PARAMETER_DTYPES
        or [t.get_device() for t in tensors].count(device) != len(tensors)
    ):
        _refuse(tensors)
    try:
        for t, (shape, strides) in zip(tensors, _PARAMETER_LAYOUTS):
            _check_layout(t, shape, strides)
    except AssertionError:
        _refuse(tensors)
    if _current_device() != device:
        with torch.cuda.device(device):
            return _launch(device, tensors)
    return _launch(device, tensors)


def _launch(device, tensors):
    try:
        launcher = _threads.launchers[device]
    except (AttributeError, KeyError):
        launcher = _Launcher(device)
        _threads.__dict__.setdefault("launchers", {})[device] = launcher
    addresses = [t.data_ptr() for t in tensors]
    for p, pointer in enumerate(addresses):
        if pointer % _ALIGNMENT:
            _refuse_pointer(_PARAMETERS[p][1])
    outputs = [_allocate(shape, strides, dtype) for shape, strides, dtype in _OUTPUTS]
    addresses += [o.data_ptr() for o in outputs]
    if _WORKSPACE_BYTES:
        # Freed on return: later work on this stream cannot overtake the kernels that use it.
        workspace = _allocate((_WORKSPACE_BYTES,), (1,), torch.uint8)
        addresses.append(workspace.data_ptr())
    stream = _raw_stream(device)
    if _BOARD_BYTES:
        addresses.append(_board(device, stream))
    if launcher.replays is None or _capturing() or not launcher.replay(tuple(addresses), stream):
        launcher.fill(addresses)
        launcher.launch(stream)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _run_fake(*tensors):
    for (_, name, dtype, shape), t in zip(_PARAMETERS, tensors):
        if t.dtype is not dtype:
            raise ValueError(f"{manifest['program']}: `{name}`: expected {dtype}, found {t.dtype}")
        if tuple(t.shape) != tuple(shape):
            raise ValueError(
                f"{manifest['program']}: `{name}`: expected shape {list(shape)}, found {list(t.shape)}"
            )
    device = tensors[0].device if tensors else torch.device("cuda")
    outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, _, dtype in _OUTPUTS]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _run_cpu(*tensors):
    _refuse(tensors)


def _schema():
    names = [n + "_" if keyword.iskeyword(n) else n for _, n, _, _ in _PARAMETERS]
    returns = "Tensor" if len(_OUTPUTS) == 1 else "(" + ", ".join(["Tensor"] * len(_OUTPUTS)) + ")"
    arguments = ", ".join(f"Tensor {n}" for n in names)
    return f"run({arguments}) -> {returns}"


def _register():
    """Defines the operator; a second copy of the same artifact in the process shares the first one's."""
    namespace = manifest["namespace"]
    try:
        return getattr(torch.ops, namespace).run.default
    except AttributeError:
        pass
    library = torch.library.Library(namespace, "FRAGMENT")
    tags = [torch.Tag.pt2_compliant_tag]
    exact = getattr(torch.Tag, "needs_exact_strides", None)
    if exact is not None:
        tags.append(exact)
    library.define(_schema(), tags=tuple(tags))
    library.impl("run", _run_cuda, "CUDA")
    library.impl("run", _run_cpu, "CPU")
    torch.library.register_fake(f"{namespace}::run", _run_fake, lib=library)
    operators = getattr(torch.ops, namespace)
    operators.library_of_artifact = library  # a Library undoes its work when it dies: it lives as long as the namespace
    return operators.run.default


op = _register()


def run(*tensors):
    """Calls the kernel: one contiguous CUDA tensor a parameter, in the order of `manifest["parameters"]`."""
    if len(tensors) != len(_PARAMETERS):
        raise TypeError(
            f"{manifest['program']}: expected {len(_PARAMETERS)} tensors "
            f"({', '.join(p[1] for p in _PARAMETERS)}), found {len(tensors)}"
        )
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                raise RuntimeError(
                    f"{manifest['program']}: an input requires a gradient, but this kernel has no derivative; "
                    "call it under torch.no_grad() or on detached tensors"
                )
    return op(*tensors)
