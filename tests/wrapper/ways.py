"""Cases that compare both ways of launching with PyTorch itself: what reaches the driver, what is refused, what PyTorch makes of the operator."""

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from driver import Driver
from subject import SHAPE, base, inputs, load, refusal
from torch._subclasses.fake_tensor import FakeTensorMode

import subject

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}


_numbers = itertools.count()


def both(driver: Driver, **kind: object) -> tuple[ModuleType, ModuleType]:
    """One artifact launched both ways, under two names."""
    number = next(_numbers)
    modules = tuple(load(driver, **kind, launcher=way, namespace=f"both_{number}_{way}") for way in ("ctypes", "compiled"))
    assert tuple(m.launcher for m in modules) == ("ctypes", "compiled"), [m.why_ctypes for m in modules]
    return modules


def outputs(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def launched(driver: Driver, module: ModuleType, tensors: list[torch.Tensor], calls: int = 4) -> list:
    """What calls launched, with names instead of addresses, the tensor maps that were described, and what the outputs are."""
    launches, maps, results = [], [], []
    for _ in range(calls):
        logged, described = driver.number("logged"), driver.number("described")
        result = module.run(*tensors)
        names = {t.data_ptr(): f"parameter {n}" for n, t in enumerate(tensors)}
        names |= {o.data_ptr(): f"output {n}" for n, o in enumerate(outputs(result))}
        for launch in driver.log(logged):
            # What has no name is a workspace: it is told by its place.
            arguments = [names.get(a, f"workspace {n}") for n, a in enumerate(launch.arguments[: driver.number("arguments")])]
            shape = launch.entry, tuple(launch.grid), tuple(launch.block), launch.shared, launch.attribute, launch.allowed
            # Whether a call is replayed hangs on where PyTorch's allocator put the output, so it is not compared.
            launches.append((*shape, launch.stream, launch.context, *arguments))
        for m in driver.maps(described):
            maps.append((names[m.address], *map(tuple, (m.extents, m.strides, m.box, m.steps, m.rest)), m.type, m.rank))
        results.append([(o.shape, o.stride(), o.dtype, o.device, o.requires_grad) for o in outputs(result)])
    return [launches, maps, results, driver.number("shared")]


def both_ways_launch_the_same(driver: Driver) -> None:
    first = base()["launches"][0]
    kinds = [
        {"kernels": kernels, "split_workspace": split, "tensor_map": mapped}
        for kernels in (1, 2, 3)
        for split in (False, True)
        for mapped in (False, True)
    ]
    for kind in kinds:
        tensors = inputs()
        here, there = (launched(driver, module, tensors) for module in both(driver, **kind))
        assert here == there, f"{kind}\n{here}\n{there}"
        assert len(here[0]) == 4 * kind["kernels"] and bool(here[1]) == kind["tensor_map"], kind
        assert {launch[4:6] for launch in here[0] if launch[0] != b"p_0"} <= {(6, 1)}, here[0]
    # Other numbers than those of the base: grids of three dimensions, much shared memory, a workspace that is not the first.
    wide = base()
    wide["buffers"] += [{"name": f"w{n}", "dtype": "f32", "role": "workspace", "index": 0, "bytes": 300 + n} for n in range(2)]
    odd = first | {"grid": [5, 7, 3], "threads": 96, "shared_bytes": 70_000, "arguments": [4, 2, 1, 0, 3], "entry": "p_0", "maps": []}
    tensors = inputs()
    here, there = (launched(driver, module, tensors) for module in both(driver, launches=[odd], buffers=wide["buffers"]))
    assert here == there, f"{here}\n{there}"
    fields = here[0][0]
    assert fields[1:4] == ((5, 7, 3), (96, 1, 1), 70_000) and here[3] == 70_000, here
    assert fields[8:] == ("workspace 0", "output 0", "parameter 1", "parameter 0", "workspace 4"), fields


def workspaces_lie_where_the_manifest_says(driver: Driver) -> None:
    """The second workspace is 512 bytes behind the first; split-K workspaces of kernels follow each other; maps have offsets."""
    wide = base()
    wide["buffers"] += [{"name": f"w{n}", "dtype": "f32", "role": "workspace", "index": 0, "bytes": 300} for n in range(2)]
    first = wide["launches"][0]
    tile = {"buffer": 0, "offset": 256, "extents": [64, 6], "strides": [128], "sizes": [32, 6], "line_bytes": 64}
    launches = [
        first
        | {"entry": f"p_{n}", "arguments": [3, 4], "maps": [tile], "split_workspace": {"bytes": 640, "counters": 128, "together": 2}}
        for n in range(2)
    ]
    for module in both(driver, launches=launches, buffers=wide["buffers"]):
        driver.set("arguments", 4)
        tensors, since, described = inputs(), driver.number("logged"), driver.number("described")
        module.run(*tensors)
        one, other = driver.log(since)
        assert one.arguments[1] - one.arguments[0] == 512
        assert other.arguments[2] - one.arguments[2] == 768, "split-K workspaces overlap"
        assert one.arguments[3] == tensors[0].data_ptr() + 256
        found = driver.maps(described)[0]
        assert (list(found.extents[:2]), list(found.strides[:1]), list(found.box[:2])) == ([64, 6], [128], [32, 6])
        assert list(found.rest) == [0, 2, 3, 0] and found.type == 1 and list(found.steps[:2]) == [1, 1]


def tensors_of_every_kind(driver: Driver) -> None:
    """Parameters of every dtype and rank, and several outputs."""
    shapes = {"f32": [3, 1, 5], "f16": [8, 64], "bf16": [7], "i32": [2, 2, 2, 2], "i64": [1, 1], "bool": [64]}
    parameters = [{"name": f"p{n}", "dtype": d, "shape": s} for n, (d, s) in enumerate(shapes.items())]
    results = [{"name": f"out{n}", "dtype": d, "shape": s} for n, (d, s) in enumerate((("f32", [4, 6]), ("bf16", [5]), ("f16", [1, 1, 2])))]
    buffers = [{"name": p["name"], "dtype": p["dtype"], "role": "parameter", "index": n, "bytes": 64} for n, p in enumerate(parameters)]
    buffers += [{"name": r["name"], "dtype": r["dtype"], "role": "output", "index": n, "bytes": 64} for n, r in enumerate(results)]
    launch = base()["launches"][0] | {"arguments": [8, 5, 4, 3, 2, 1, 0, 6], "maps": [], "entry": "p_0"}
    changes = {"parameters": parameters, "outputs": results, "buffers": buffers, "launches": [launch]}
    tensors = [torch.zeros(p["shape"], dtype=DTYPES[p["dtype"]]) for p in parameters]
    here, there = (launched(driver, module, tensors) for module in both(driver, **changes))
    assert here == there, f"{here}\n{there}"
    assert here[0][0][8:] == ("output 2", *(f"parameter {n}" for n in (5, 4, 3, 2, 1, 0)), "output 0"), here[0][0]
    assert [[*m[0]] for m in here[2][0]] == [[4, 6], [5], [1, 1, 2]]
    # The stride of one element is anything.
    module = both(driver, **changes)[1]
    module.run(tensors[0].as_strided((3, 1, 5), (5, 77, 1)), *tensors[1:])
    for n, t in enumerate(tensors):
        other = torch.float64 if t.dtype is not torch.float64 else torch.float32
        wrong = [*tensors[:n], t.to(other), *tensors[n + 1 :]]
        assert f"`p{n}`: expected {t.dtype}, found torch.float64" in refusal(ValueError, module.run, *wrong)


def wrong_arguments() -> list[tuple[str, list[torch.Tensor]]]:
    (x, y), wrong = inputs(), []
    wrong.append(("`x`: expected torch.float16, found torch.float64", [x.double(), y]))
    wrong.append(("`y`: expected torch.float16, found torch.bfloat16", [x, y.bfloat16()]))
    wrong.append(("`y`: expected shape [8, 64], found [64, 8]", [x, y.view(64, 8)]))
    wrong.append(("`x`: expected shape [8, 64], found [512]", [x.view(-1), y]))
    wrong.append(("`y`: expected a contiguous tensor, found strides [1, 8]", [x, y.view(64, 8).t()]))
    wrong.append(("`x`: expected a contiguous tensor, found strides [0, 1]", [x[:1].expand(8, 64), y]))
    wrong.append(("found torch.float64; `y`: expected shape", [x.double(), y[:4]]))
    wrong.append(("`x`: expected data aligned to 16 bytes", [subject.world.Tensor(SHAPE, torch.float16, shift=2), y]))
    wrong.append(("`y`: expected data aligned to 16 bytes", [x, subject.world.Tensor(SHAPE, torch.float16, shift=8)]))
    wrong.append(("`x`: expected data aligned", [subject.world.Tensor(SHAPE, torch.float16, shift=4), y.double()]))
    wrong.append(("`y`: expected a tensor on cpu like the others, found one on meta", [x, y.to("meta")]))
    return wrong


def both_ways_refuse_in_the_same_words(driver: Driver) -> None:
    here, there = both(driver)
    good = inputs()
    for part, tensors in wrong_arguments():
        told = [
            refusal(ValueError, call, *tensors)
            for module in (here, there)
            for call in (module.run, module.op, getattr(torch.ops, module.manifest["namespace"]).run)
        ]
        assert part in told[0] and set(told) == {told[0]}, f"{part}: {told}"
        with torch.inference_mode():
            assert refusal(ValueError, there.op, *tensors) == told[0]
        there.run(*good)  # nothing of it is left
        if "aligned" not in part and "meta" not in part:
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(t) for t in tensors]
                assert refusal(ValueError, there.run, *fakes) == told[0]
    for module in (here, there):
        assert refusal(TypeError, module.run, good[0]) == "p: expected 2 tensors (x, y), found 1"
    assert str(getattr(here.op, "_schema")).split("::run")[1] == str(getattr(there.op, "_schema")).split("::run")[1]
    before = driver.number("logged")
    for _ in range(2000):
        refusal(ValueError, there.run, good[0], good[1][:4])
    assert driver.number("logged") == before, "what is refused is launched"


def both_ways_fail_in_the_same_words(driver: Driver) -> None:
    """The driver's faults, the device's, and what cannot be allocated."""
    calls = ("cuModuleLoadData", "cuFuncSetAttribute", "cuMemAlloc_v2", "cuStreamIsCapturing", "cuTensorMapEncodeTiled", "cuLaunchKernelEx")
    for call in calls:
        told = []
        for module in both(driver, split_workspace=True, tensor_map=True):
            driver.fail(call)
            told.append(refusal(RuntimeError, module.run, *inputs()))
            module.run(*inputs())
        assert told[0] == told[1], told
    for module in both(driver):
        capability, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device: (10, 0)
        message = refusal(RuntimeError, module.run, *inputs())
        torch.cuda.get_device_capability = capability
        assert message == "p: built for h200 (compute capability 9.0), but cuda:0 is a pretender (compute capability 10.0)", message
        module.run(*inputs())
    for module in both(driver, kernels=1, outputs=[{"name": "out0", "dtype": "f16", "shape": [1 << 50]}]):
        message = refusal(RuntimeError, module.run, *inputs())
        assert "can't allocate memory" in message, message


def what_is_raised_while_the_library_asks(driver: Driver) -> None:
    module = load(driver, launcher="compiled", namespace="raising")

    class Odd(Exception):
        pass

    for kind in (Odd, KeyboardInterrupt, MemoryError, torch.OutOfMemoryError):
        error, load_device = kind("on the way"), module._load

        def fail(device: int) -> None:
            raise error

        module._load = fail
        try:
            module.run(*inputs())
        except BaseException as found:
            assert found is error, repr(found)
        else:
            raise AssertionError(f"expected {kind.__name__}, found a result")
        module._load = load_device
    module.run(*inputs())


def pytorch_finds_a_sound_operator(driver: Driver) -> None:
    for module in both(driver):
        tensors = inputs()
        direct = module.op if module._direct is None else module._direct
        for operator in (module.op, direct):
            # What outputs hold is nobody's word: no kernel runs here.
            found = torch.library.opcheck(
                operator, tuple(tensors), test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
            )
            assert set(found.values()) == {"SUCCESS"}, found
        with FakeTensorMode() as mode:
            fake = module.run(*[mode.from_tensor(t) for t in tensors])
        real = module.run(*tensors)
        assert (fake.shape, fake.dtype, fake.stride(), fake.device) == (real.shape, real.dtype, real.stride(), real.device)
        assert module.run(*[t.to("meta") for t in tensors]).device.type == "meta"


def compiled_and_exported(driver: Driver) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # what PyTorch says of itself
    for module in both(driver, kernels=1):
        tensors = inputs()
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            function = torch.compile(lambda x, y: module.run(x, y), fullgraph=True, backend=backend)
            for _ in range(3):
                before = driver.number("logged")
                function(*tensors)
                (launch,) = driver.log(before)
                assert launch.arguments[:2] == [t.data_ptr() for t in tensors]
            wanted = tensors[0].clone().requires_grad_()
            assert "has no derivative" in refusal(Exception, function, wanted, tensors[1])
            with torch.no_grad():
                function(wanted, tensors[1])
            named = torch.compile(lambda x, y: module.op(x, y), fullgraph=True, backend=backend)
            named(*tensors)
            assert "has no derivative" in refusal(Exception, named, wanted, tensors[1])

        class Layer(torch.nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return module.run(x, y)

        for strict in (False, True):
            exported = torch.export.export(Layer(), tuple(tensors), strict=strict)
            for graph in (exported.graph, exported.run_decompositions({}).graph):
                called = [node.target for node in graph.nodes if node.op == "call_function"]
                assert called == [module.op], called
            before = driver.number("logged")
            exported.module()(*tensors)
            assert driver.number("logged") == before + 1
            assert "has no derivative" in refusal(RuntimeError, exported.module(), wanted, tensors[1])


def derivatives_are_refused_by_both(driver: Driver) -> None:
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)
    for module in both(driver, kernels=1):
        x, y = inputs()
        wanted = x.clone().requires_grad_()
        parameter = torch.nn.Parameter(x.clone())
        for call in (module.run, module.op):
            for tensor in (wanted, parameter):
                assert "has no derivative" in refusal(RuntimeError, call, tensor, y)
                with torch.no_grad():
                    assert not call(tensor, y).requires_grad
                with torch.inference_mode():
                    call(tensor, y)
            assert "has no derivative" in refusal(RuntimeError, torch.func.grad(lambda t: call(t, y).float().sum()), x)
            assert "has no derivative" in refusal(RuntimeError, torch.func.jvp, lambda t: call(t, y), (x,), (x,))
            nested = torch.func.grad(lambda t: torch.vmap(call)(t, y[None].expand(2, *y.shape)).float().sum())
            assert "has no derivative" in refusal(RuntimeError, nested, x.expand(2, *x.shape))
            before = driver.number("logged")
            assert torch.vmap(call)(x.expand(3, *x.shape), y.expand(3, *y.shape)).shape == (3, *SHAPE)
            assert driver.number("logged") == before + 3
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, x)
                assert "has no derivative" in refusal(RuntimeError, call, dual, y)
                call(x, y)


def who_launches_can_be_chosen(driver: Driver) -> None:
    def found(launcher: str, **changes: object) -> tuple[str, str | None]:
        module = load(driver, launcher=launcher, **changes)
        module.run(*([] if changes.get("parameters") == [] else inputs()))
        return module.launcher, module.why_ctypes

    assert found("", namespace="by_itself") == ("compiled", None)
    assert found("compiled", namespace="compiled") == ("compiled", None)
    assert found("ctypes", namespace="ctypes") == ("ctypes", "TILEWRIGHT_LAUNCHER=ctypes")
    assert found("", namespace="ctypes") == ("ctypes", "TILEWRIGHT_LAUNCHER=ctypes"), "a second copy is launched another way"
    assert "expected `ctypes` or `compiled`, found `rust`" in refusal(ValueError, found, "rust")
    manifest = base()
    launch = manifest["launches"][0] | {"arguments": [0], "maps": []}
    constant = {"parameters": [], "buffers": manifest["buffers"][2:], "launches": [launch]}
    torch.cuda.current_device = lambda: 0
    assert found("compiled", namespace="constant", **constant)[0] == "ctypes"
    path = sys.path[:]
    sys.path[:] = [p for p in path if not (Path(p or ".") / "tilewright").is_dir()]
    try:
        assert found("", namespace="alone") == ("ctypes", "the package tilewright is not installed")
        message = refusal(RuntimeError, lambda: found("compiled", namespace="alone_too"))
        assert message == "p: TILEWRIGHT_LAUNCHER=compiled cannot be: the package tilewright is not installed", message
    finally:
        sys.path[:] = path


CASES: tuple[Callable[[Driver], None], ...] = (
    both_ways_launch_the_same,
    workspaces_lie_where_the_manifest_says,
    tensors_of_every_kind,
    both_ways_refuse_in_the_same_words,
    both_ways_fail_in_the_same_words,
    what_is_raised_while_the_library_asks,
    pytorch_finds_a_sound_operator,
    compiled_and_exported,
    derivatives_are_refused_by_both,
    who_launches_can_be_chosen,
)
