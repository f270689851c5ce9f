"""What libcuda.c shows and lets be set."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

CONTEXT = 0x1000  # the context of device 0
SPLIT_WORKSPACE_BYTES = 768  # of a kernel, as the wrapper lays them out


class Launch(ctypes.Structure):
    """A kernel that reached a queue. Its arguments are x, y, the output, the workspace, and the split-K workspace or the map if there is one."""

    _fields_ = (
        ("stream", ctypes.c_uint64),
        ("capture", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 8),
        ("entry", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("attribute", ctypes.c_int),
        ("allowed", ctypes.c_int),
    )

    @property
    def split_workspace(self) -> int:
        """Where the split-K workspaces of its call begin."""
        return self.arguments[4] - SPLIT_WORKSPACE_BYTES * int(self.entry.decode()[2:])


class Map(ctypes.Structure):
    """A tensor map that was described."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 5),
        ("type", ctypes.c_uint),
        ("rank", ctypes.c_uint),
        ("box", ctypes.c_uint * 5),
        ("steps", ctypes.c_uint * 5),
        ("rest", ctypes.c_uint * 4),
    )


class Driver:
    """The library that pretends. Its calls are attributes."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.fake_context.restype = ctypes.c_void_p
        self.library.fake_set_context.argtypes = [ctypes.c_void_p]
        self.library.fake_set_stream.argtypes = [ctypes.c_void_p]
        self.kept: list[object] = []  # the library calls them for as long as the process lives

    def __getattr__(self, name: str) -> Callable:
        return getattr(self.library, name)

    def number(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    def locked(self) -> str:
        """A call that may wait and that was made with Python's lock."""
        return ctypes.c_char_p.in_dll(self.library, "fake_locked").value.decode()

    def log(self, since: int = 0) -> list[Launch]:
        return list((Launch * self.number("logged")).in_dll(self.library, "fake_log"))[since:]

    def maps(self, since: int = 0) -> list[Map]:
        return list((Map * self.number("described")).in_dll(self.library, "fake_maps"))[since:]

    def fail(self, call: str) -> None:
        """Lets the next such call fail."""
        self.kept.append(call.encode())
        ctypes.c_char_p.in_dll(self.library, "fake_failing").value = self.kept[-1]

    def on_launch(self, function: Callable[[], None]) -> None:
        """Calls a function in the middle of the next launch."""
        at = ctypes.c_void_p.in_dll(self.library, "fake_on_launch")

        def once() -> None:
            at.value = None
            function()

        hook = ctypes.CFUNCTYPE(None)(once)
        self.kept.append(hook)
        at.value = ctypes.cast(hook, ctypes.c_void_p).value

    def slow_python(self, stream: int) -> threading.Event:
        """Puts a host function on a stream: it needs Python's lock again and again, and ends some time after the queue is full. What this
        returns is set then."""
        ended = threading.Event()

        def function(_: object) -> None:
            while not self.number("waited"):
                time.sleep(0.001)
            for _ in range(20):
                time.sleep(0.001)
            ended.set()

        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        self.kept.append(call)
        self.set("waited", 0)
        assert self.library.cuLaunchHostFunc(ctypes.c_void_p(stream), call, None) == 0
        return ended

    def new_stream(self) -> int:
        """The handle is the lowest that is free."""
        stream, before = ctypes.c_void_p(), self.fake_context()
        self.fake_set_context(CONTEXT)
        assert self.library.cuStreamCreate(ctypes.byref(stream), 1) == 0
        self.fake_set_context(before)
        return stream.value

    def destroy_stream(self, stream: int) -> None:
        assert self.library.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0

    def record(self, stream: int, call: Callable[[], object]) -> ctypes.c_void_p:
        """The graph of what a call launches on a stream."""
        graph = ctypes.c_void_p()
        assert self.library.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
        with self.on(stream):
            call()
        assert self.library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        return graph

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        replay = ctypes.c_void_p()
        assert self.library.cuGraphInstantiateWithFlags(ctypes.byref(replay), graph, ctypes.c_ulonglong(0)) == 0
        return replay

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Makes a stream PyTorch's current one on this thread."""
        before = self.stream()
        self.fake_set_stream(stream)
        try:
            yield
        finally:
            self.fake_set_stream(before)

    def stream(self) -> int:
        """PyTorch's current one on this thread."""
        stream = ctypes.c_void_p()
        self.fake_current_stream(0, ctypes.byref(stream))
        return stream.value or 0
