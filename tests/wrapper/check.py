"""Checks what the wrapper of an artifact does, without a GPU and without PyTorch: libcuda.c and standin.py take their places.

    python tests/wrapper/check.py --binary target/debug/tilewright
    python tests/wrapper/check.py --binary target/debug/tilewright --with ctypes     # PyTorch itself, launched by the wrapper
    python tests/wrapper/check.py --binary target/debug/tilewright --with compiled   # by the library of the installed package

Every case is a process of its own, so that a deadlock is a failure and not a hang. What only PyTorch and a GPU can show is in
tests/gpu/wrapper_test.py.
"""

import argparse
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import subject
from driver import CONTEXT, Driver
from subject import SHAPE, base, inputs, load, refusal

FILE = Path(__file__).resolve()
ROOT = FILE.parent.parent.parent
TIMEOUT = 60  # seconds a case
WAYS = {"stand-in": "standin", "ctypes": "real", "compiled": "real"}  # who launches, and the module that gives what cases need of PyTorch
PROGRAM = "program p\naxis i = 8, j = 64\nx = parameter f16 [i, j]\ny = parameter f16 [i, j]\nreturn f16 [i, j] x + y\n"


# --- Cases --------------------------------------------------------------------------------------------------------------


def a_full_queue_waits_for_python(driver: Driver) -> None:
    for n, kind in enumerate(({"kernels": 1}, {"kernels": 3}, {"split_workspace": True}, {"tensor_map": True})):
        module, x = load(driver, **kind, namespace=f"queue_{n}"), inputs()
        for _ in range(3):
            module.run(*x)
        ended = driver.slow_python(0)
        for _ in range(200):
            module.run(*x)
        assert ended.wait(10), "the queue was never full"
    assert driver.number("graph_launches") > 100, "three kernels were not replayed"
    driver.fake_set_context(CONTEXT)
    assert driver.new_stream() == 1, "recording left a stream behind"


def a_thread_that_waits_holds_up_nobody_else(driver: Driver) -> None:
    """While one thread waits for room the driver may let no other one in, and those must not keep Python's lock."""
    one, other = load(driver, split_workspace=True), load(driver, kernels=3, split_workspace=True, namespace="other")
    x, side, recorded = inputs(), driver.new_stream(), driver.new_stream()
    one.run(*x)
    ended = driver.slow_python(0)

    def fill() -> None:
        for _ in range(100):
            one.run(*x)

    thread = threading.Thread(target=fill)
    thread.start()
    while not driver.number("waited"):
        time.sleep(0.001)
    with driver.on(side):
        one.run(*x)  # another split-K workspace
        for _ in range(3):
            other.run(*x)  # another module, and a graph
    driver.record(recorded, lambda: one.run(*x))
    thread.join()
    assert ended.wait(10)


def a_call_in_the_middle_of_a_call(driver: Driver) -> None:
    """As a signal handler makes it, or a finaliser."""
    module, x, inner = load(driver, split_workspace=True), inputs(), inputs()
    module.run(*x)
    before = driver.number("logged")
    driver.on_launch(lambda: module.run(*inner))
    output = module.run(*x)
    log = driver.log(before)
    mine = [launch for launch in log if launch.arguments[0] == x[0].data_ptr()]
    theirs = [launch for launch in log if launch.arguments[0] == inner[0].data_ptr()]
    assert len(mine) == len(theirs) == 2, "a kernel was launched with another call's arguments"
    assert {launch.arguments[2] for launch in mine} == {output.data_ptr()}
    assert len({launch.split_workspace for launch in mine}) == 1 and len({launch.split_workspace for launch in theirs}) == 1
    assert mine[0].split_workspace != theirs[0].split_workspace, "two calls at a time have one split-K workspace"


def threads_share_a_stream(driver: Driver) -> None:
    module, failed, addresses = load(driver, split_workspace=True), [], []
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(4)

    def work() -> None:
        try:
            x = inputs()
            addresses.append(x[0].data_ptr())
            together.wait()
            for _ in range(200):
                module.run(*x)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    log = driver.log()
    assert len(log) == 1600 and {launch.arguments[0] for launch in log} == set(addresses)
    begun: dict[int, list[int]] = {}  # the calls that have launched one of two kernels, by their split-K workspaces
    for launch in log:
        call = launch.arguments[:4]
        if launch.entry == b"p_0":
            assert launch.split_workspace not in begun, "two calls at a time have one split-K workspace"
            begun[launch.split_workspace] = call
        else:
            assert begun.pop(launch.split_workspace) == call, "a kernel with another call's arguments"


def split_workspaces_live_as_long_as_their_graphs(driver: Driver) -> None:
    module, x = load(driver, kernels=1, split_workspace=True), inputs()
    stream, other = driver.new_stream(), driver.new_stream()
    driver.fake_set_context(CONTEXT)
    with driver.on(stream):
        module.run(*x)
    own = driver.log()[-1].split_workspace

    def twice() -> None:
        module.run(*x)
        module.run(*x)

    def split_workspace(replay: ctypes.c_void_p) -> int:
        before = driver.number("logged")
        assert driver.cuGraphLaunch(replay, ctypes.c_void_p(stream)) == 0
        (found,) = {launch.split_workspace for launch in driver.log(before)}  # calls that a stream orders share it
        return found

    graphs = [driver.record(at, twice) for at in (stream, other)]
    replays = [driver.instantiate(graph) for graph in graphs]
    split_workspaces = [split_workspace(replay) for replay in replays]
    assert len({own, *split_workspaces}) == 3, "graphs share a split-K workspace"
    driver.cuGraphDestroy(graphs[0])
    third = driver.record(stream, twice)
    assert split_workspace(driver.instantiate(third)) not in split_workspaces, "what the graph was made into may still run"
    driver.cuGraphExecDestroy(replays[0])
    assert split_workspace(driver.instantiate(driver.record(stream, twice))) == split_workspaces[0], "what a graph that is gone had is not used again"
    made = driver.number("allocated")
    for _ in range(100):
        driver.cuGraphDestroy(driver.record(stream, twice))
    assert driver.number("allocated") <= made + 1, "every graph leaves a split-K workspace behind"


def contexts_are_put_back(driver: Driver) -> None:
    """A thread may have none yet, or another device's."""
    module, x, seen = load(driver, kernels=3, split_workspace=True), inputs(), []
    contexts = (None, CONTEXT + 1, CONTEXT)

    def work() -> None:
        for context in contexts:
            driver.fake_set_context(context)
            for _ in range(3):
                module.run(*x)
            seen.append(driver.fake_context())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert tuple(seen) == contexts, seen
    assert {launch.context for launch in driver.log() if not launch.capture} == {CONTEXT}


def what_fails_leaves_nothing_behind(driver: Driver) -> None:
    x = inputs()

    def clean(call: str) -> None:
        assert driver.fake_mode() == 0, f"{call} left the capture mode changed"
        assert driver.fake_context() is None, f"{call} left its context behind"
        stream = driver.new_stream()
        assert stream == 1, f"{call} left a stream behind"
        driver.destroy_stream(stream)

    calls = (
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuStreamIsCapturing",
        "cuStreamCreate",
        "cuMemAlloc_v2",
        "cuMemsetD8Async",
        "cuStreamSynchronize",
        "cuTensorMapEncodeTiled",
        "cuLaunchKernelEx",
    )
    for n, call in enumerate(calls):
        module = load(driver, split_workspace=True, tensor_map=True, namespace=f"failing_{n}")
        driver.fail(call)
        message = refusal(RuntimeError, module.run, *x)
        assert "a pretended error (CUDA error 999)" in message, message
        clean(call)
        module.run(*x)
        clean(call)
    stream = driver.new_stream()
    for call in ("cuStreamGetCaptureInfo_v2", "cuUserObjectCreate", "cuGraphRetainUserObject"):
        made = driver.number("allocated")
        for _ in range(3):
            driver.fail(call)
            driver.cuGraphDestroy(driver.record(stream, lambda: refusal(RuntimeError, module.run, *x)))
            assert driver.fake_mode() == 0, f"{call} left the capture mode changed"
        driver.cuGraphDestroy(driver.record(stream, lambda: module.run(*x)))
        assert driver.number("allocated") <= made + 1, f"{call} lost a split-K workspace"


def a_recording_that_is_interrupted(driver: Driver) -> None:
    module, x = load(driver, kernels=3), inputs()
    module.run(*x)
    # Whoever starts this in the background has its interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    driver.set("interrupting", 1)
    refusal(KeyboardInterrupt, module.run, *x)
    assert driver.fake_mode() == 0, "the capture mode stays changed"
    assert not driver.number("torn"), "the capture did not end"
    stream = driver.new_stream()
    assert stream == 1, "a stream was left behind"
    before = driver.number("logged")
    for _ in range(3):
        module.run(*x)
    other = inputs()
    module.run(*other)  # launched one by one
    assert [launch.stream for launch in driver.log(before)] == [0] * 12


def a_map_that_was_half_moved(driver: Driver) -> None:
    module, x, other = load(driver, kernels=1, tensor_map=True), inputs(), inputs()
    module.run(*x)
    driver.fail("cuTensorMapReplaceAddress")
    refusal(RuntimeError, module.run, *other)
    for tensors in (other, x, other):
        module.run(*tensors)
        assert driver.log()[-1].arguments[4] == tensors[0].data_ptr(), "the map describes another call's tensor"


def the_kernels_are_those_of_the_manifest(driver: Driver) -> None:
    """A better artifact may take the folder's place between the import and the first call."""
    module = load(driver)
    cubin = Path(module.__file__).parent / "kernel.cubin"
    first = cubin.read_bytes()[:16]
    cubin.write_bytes(bytes(16))
    module.run(*inputs())
    assert bytes((ctypes.c_ubyte * 16).in_dll(driver.library, "fake_image")) == first


def no_driver(driver: Driver) -> None:
    module = load(driver)
    call, module.ctypes.CDLL = module.ctypes.CDLL, lambda name: open("/nowhere/" + name)
    message = refusal(RuntimeError, module.run, *inputs())
    assert "p: expected a CUDA driver of version 12 or newer, found none" in message, message
    module.ctypes.CDLL = call
    module.run(*inputs())


def only_imports(driver: Driver) -> None:
    """No case of its own: what the next one starts."""
    load(driver)


def what_never_ran_warns_once(driver: Driver) -> None:
    os.environ.pop("TILEWRIGHT_ALLOW_UNVERIFIED")

    def found(**changes: object) -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load(driver, **changes)
        return caught

    (warning,) = found(namespace="simulated")
    assert warning.category is UserWarning and warning.filename == subject.__file__, warning
    for part in ("tilewright: p was simulated and never ran on a GPU", "tilewright verify", "TILEWRIGHT_ALLOW_UNVERIFIED=1"):
        assert part in str(warning.message), warning.message
    assert not found(namespace="simulated"), "a second copy warns again"
    assert not found(namespace="ran", evidence=base()["evidence"] | {"kernel": {}})
    for value, silent in (("1", True), ("0", False)):
        os.environ["TILEWRIGHT_ALLOW_UNVERIFIED"] = value
        assert (not found(namespace=f"allowed_{value}")) == silent
    way = next(way for way, module in WAYS.items() if module == subject.world.__name__)
    command = [str(FILE), "--with", way, "--case", "only_imports"]
    for options, code in ((["-W", "error"], 1), (["-W", "error", "-W", "ignore:tilewright"], 0)):
        assert subprocess.run([sys.executable, *options, *command], capture_output=True).returncode == code, options


def faults_are_the_same_without_data(driver: Driver) -> None:
    module, (x, y) = load(driver), inputs()
    fake = module.op.kernels["Fake"]

    def tensor(kind: str, index: int | None = None) -> object:
        return subject.world.Tensor(SHAPE, subject.world.float16, subject.world.Device(kind, index))

    for tensors, part in (
        ((tensor("cpu"), y), "p: `x`: expected a CUDA tensor, found one on cpu"),
        ((tensor("cpu"), tensor("cpu")), "`y`: expected a CUDA tensor, found one on cpu"),
        ((x, tensor("cuda", 1)), "p: `y`: expected a tensor on cuda:0 like the others, found one on cuda:1"),
        ((x, subject.world.Tensor(SHAPE, subject.world.float64)), "p: `y`: expected torch.float16, found torch.float64"),
        ((x, subject.world.Tensor((64, 8), subject.world.float16)), "p: `y`: expected shape [8, 64], found [64, 8]"),
        ((x, subject.world.Tensor(SHAPE, subject.world.float16, strides=(1, 8))), "p: `y`: expected a contiguous tensor, found strides [1, 8]"),
    ):
        message = refusal(ValueError, module.op, *tensors)
        assert message.endswith(part) if part.startswith("p:") else part in message, message
        assert refusal(ValueError, fake, *tensors) == message
    assert fake(x, y).device == x.device
    assert fake(tensor("meta"), tensor("meta")).device == subject.world.Device("meta")
    assert "cuda:0" in refusal(ValueError, fake, tensor("meta"), y)
    assert "`y`: expected data aligned to 16 bytes" in refusal(ValueError, module.run, x, subject.world.Tensor(SHAPE, subject.world.float16, shift=2))
    assert "expected 2 tensors (x, y), found 1" in refusal(TypeError, module.run, x)


def results_are_of_their_dtypes(driver: Driver) -> None:
    world = subject.world
    dtypes = {"i32": world.int32, "i64": world.int64, "bool": world.boolean, "f16": world.float16}
    for n, (name, dtype) in enumerate(dtypes.items()):
        (output,) = base()["outputs"]
        module = load(driver, namespace=f"stored_{n}", outputs=[output | {"dtype": name}])
        for _ in range(2):  # what is laid out first is laid out again
            found = module.run(*inputs())
            assert found.dtype is dtype and found.shape == SHAPE, name


def no_derivative_by_any_name(driver: Driver) -> None:
    module, (x, y) = load(driver), inputs()
    wanted = subject.world.Tensor(SHAPE, subject.world.float16, requires_grad=True)
    for call in (module.run, module.op):
        assert "has no derivative" in refusal(RuntimeError, call, wanted, y)
        subject.world.state.grad = False
        call(wanted, y)
        subject.world.state.grad = True
    sys.modules["torch.autograd.forward_ad"]._current_level = 0
    assert "has no derivative" in refusal(RuntimeError, module.op, subject.world.Tensor(SHAPE, subject.world.float16, tangent=y), y)
    module.op(x, y)


def a_program_without_parameters(driver: Driver) -> None:
    manifest = base()
    launch = manifest["launches"][0] | {"arguments": [0], "maps": []}
    module = load(driver, parameters=[], buffers=manifest["buffers"][2:], launches=[launch])
    assert module.run().data_ptr() == driver.log()[-1].arguments[0]
    assert module.op.kernels["Fake"]().device.type == "cuda"


def names_that_python_reserves(driver: Driver) -> None:
    x, y = base()["parameters"]
    module = load(driver, parameters=[x | {"name": "in"}, y | {"name": "in_"}])
    assert module.op.schema == "run(Tensor in_, Tensor in__) -> Tensor"


CASES = (
    a_full_queue_waits_for_python,
    a_thread_that_waits_holds_up_nobody_else,
    a_call_in_the_middle_of_a_call,
    threads_share_a_stream,
    split_workspaces_live_as_long_as_their_graphs,
    contexts_are_put_back,
    what_fails_leaves_nothing_behind,
    a_recording_that_is_interrupted,
    a_map_that_was_half_moved,
    the_kernels_are_those_of_the_manifest,
    no_driver,
    what_never_ran_warns_once,
)
STAND_IN_CASES = (
    faults_are_the_same_without_data,
    results_are_of_their_dtypes,
    no_derivative_by_any_name,
    a_program_without_parameters,
    names_that_python_reserves,
)


def cases(way: str) -> dict:
    """Those of a way of launching, by name."""
    found = CASES
    if way == "stand-in":
        found += STAND_IN_CASES
    elif way == "compiled":
        found += importlib.import_module("ways").CASES
    return {case.__name__: case for case in found}


# --- Running them -------------------------------------------------------------------------------------------------------


def prepare(binary: Path, scratch: Path) -> None:
    """The library, and an artifact that never ran."""
    library = scratch / "libcuda.so.1"
    sources = str(FILE.with_name("libcuda.c"))
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o", str(library), sources], check=True)
    program = scratch / "p.lax"
    program.write_text(PROGRAM)
    words = ["optimize", program, "--target", "h200", "--no-gpu", "--no-db", "--budget", "1s", "-o", scratch / "base"]
    done = subprocess.run([str(binary), *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise SystemExit(f"optimize ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")


def fault(case: str, way: str, scratch: Path) -> str | None:
    """What is wrong with a case."""
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(scratch),
        "SCRATCH": str(scratch),
        "TILEWRIGHT_ALLOW_UNVERIFIED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if way != "stand-in":
        environment["TILEWRIGHT_LAUNCHER"] = way
        environment["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # LibTorch prints what it cannot allocate before anybody is told
    command = [sys.executable, str(FILE), "--with", way, "--case", case]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT} s"
    return None if done.returncode == 0 and not done.stderr else f"exit code {done.returncode}\n{done.stderr.strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--with", dest="way", choices=WAYS, default="stand-in", help="who launches; all but the stand-in need PyTorch")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--case", help="run this case here, where the environment is prepared")
    arguments = parser.parse_args()
    if arguments.case:
        driver = Driver()
        subject.world = importlib.import_module(WAYS[arguments.way])
        subject.world.install(driver)
        cases(arguments.way).get(arguments.case, only_imports)(driver)
        assert not driver.locked(), f"{driver.locked()} was called with Python's lock"
        return 0
    names = [name for name in cases(arguments.way) if arguments.only in name]
    with tempfile.TemporaryDirectory() as scratch:
        prepare(arguments.binary, Path(scratch))
        with ThreadPoolExecutor(2) as pool:
            faults = list(pool.map(lambda name: fault(name, arguments.way, Path(scratch)), names))
    for name, found in zip(names, faults):
        print(f"FAIL {name}: {found}" if found else f"ok   {name}")
    print(f"{len(names)} cases, {sum(f is not None for f in faults)} failed")
    return 1 if not names or any(faults) else 0


if __name__ == "__main__":
    sys.exit(main())
