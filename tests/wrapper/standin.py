"""As much of PyTorch as the wrapper touches: tensors are addresses, and an operator is what was registered for it."""

import sys
from types import ModuleType, SimpleNamespace

from driver import Driver

GRANULE = 512  # bytes, as PyTorch's allocator has it


class Size(tuple):
    pass


class DType:
    def __init__(self, name: str, size: int) -> None:
        self.name, self.itemsize = name, size

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32, float16, bfloat16 = DType("float32", 4), DType("float16", 2), DType("bfloat16", 2)
int32, int64, boolean = DType("int32", 4), DType("int64", 8), DType("bool", 1)
float64, uint8 = DType("float64", 8), DType("uint8", 1)


class Device:
    def __init__(self, kind: str, index: int | None = None) -> None:
        self.type = kind
        self.index = 0 if kind == "cuda" and index is None else index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class _Memory:
    """What was given back is given out again."""

    def __init__(self) -> None:
        self.end, self.free = 1 << 40, {}

    def take(self, size: int) -> int:
        try:
            return self.free[size].pop()
        except (KeyError, IndexError):
            address, self.end = self.end, self.end + size
            return address


memory = _Memory()


class Tensor:
    def __init__(self, shape, dtype, device=None, strides=None, shift=0, requires_grad=False, tangent=None) -> None:
        self.shape, self.dtype, self.device = Size(shape), dtype, device or Device("cuda")
        self.requires_grad, self.tangent = requires_grad, tangent
        self._strides, elements = [], 1
        for extent in reversed(self.shape):
            self._strides.insert(0, elements)
            elements *= extent
        self._contiguous = strides is None or list(strides) == self._strides
        self._strides = list(strides or self._strides)
        self._size = -(-(elements * dtype.itemsize + shift) // GRANULE) * GRANULE
        self._address, self._shift = memory.take(self._size), shift

    def __del__(self) -> None:
        memory.free.setdefault(self._size, []).append(self._address)

    def data_ptr(self) -> int:
        return self._address + self._shift

    def get_device(self) -> int:
        return self.device.index if self.device.type == "cuda" else -1

    def is_contiguous(self) -> bool:
        return self._contiguous

    def stride(self) -> tuple:
        return tuple(self._strides)


class Keys:
    """A set of dispatch keys."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __and__(self, other: "Keys") -> "Keys":
        return Keys(*self.names & other.names)

    def raw_repr(self) -> int:
        return hash(self.names)


class Operator:
    def __init__(self, schema: str) -> None:
        self.schema, self.kernels, self.default = schema, {}, self

    def __call__(self, *tensors: Tensor):
        backends = ["CPU" if t.device.type == "cpu" else "CUDA" for t in tensors] or ["BackendSelect"]
        if "Autograd" in self.kernels:
            return self.kernels["Autograd"](Keys("Autograd", *backends), *tensors)
        return self.redispatch(Keys(*backends), *tensors)

    def redispatch(self, keys: Keys, *tensors: Tensor):
        for name in ("BackendSelect", "CUDA", "CPU"):
            if name in keys.names and name in self.kernels:
                return self.kernels[name](*tensors)
        raise NotImplementedError(f"no kernel for {sorted(keys.names)}")


class Library:
    def __init__(self, namespace: str, kind: str) -> None:
        self.namespace = ops.__dict__.setdefault(namespace, SimpleNamespace())

    def define(self, schema: str, tags: tuple) -> None:
        self.namespace.run = Operator(schema)

    def impl(self, name: str, kernel, key: str, *, with_keyset: bool = False) -> None:
        assert with_keyset == (key == "Autograd")
        self.namespace.run.kernels[key] = kernel


def register_fake(name: str, kernel, lib: Library) -> None:
    lib.namespace.run.kernels["Fake"] = kernel


class _Namespaces(SimpleNamespace):
    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace()  # as PyTorch's: any namespace is there, and its operators are not


def empty_strided(shape, strides, *, dtype, device) -> Tensor:
    return Tensor(shape, dtype, device, strides)


def empty(shape, *, dtype, device) -> Tensor:
    return Tensor(shape, dtype, device)


ops = _Namespaces()
state = SimpleNamespace(grad=True)


def change(text: str) -> str:
    """The wrapper as it is."""
    return text


def install(driver: Driver) -> None:
    """Makes `import torch` find this."""
    forward_ad = ModuleType("torch.autograd.forward_ad")
    forward_ad._current_level = -1
    forward_ad.unpack_dual = lambda t: SimpleNamespace(tangent=t.tangent)
    autograd = ModuleType("torch.autograd")
    autograd.forward_ad = forward_ad
    torch = ModuleType("torch")
    vars(torch).update(
        Size=Size,
        float32=float32,
        float16=float16,
        bfloat16=bfloat16,
        int32=int32,
        int64=int64,
        bool=boolean,
        uint8=uint8,
        device=Device,
        empty=empty,
        empty_strided=empty_strided,
        ops=ops,
        autograd=autograd,
        is_grad_enabled=lambda: state.grad,
        library=SimpleNamespace(Library=Library, register_fake=register_fake),
        Tag=SimpleNamespace(pt2_compliant_tag=1, needs_exact_strides=2),
        cuda=SimpleNamespace(
            current_device=lambda: 0,
            get_device_capability=lambda device: (9, 0),
            get_device_name=lambda device: "a pretender",
            get_device_properties=lambda device: SimpleNamespace(multi_processor_count=132),
        ),
        _C=SimpleNamespace(
            DispatchKey=SimpleNamespace(CUDA="CUDA"),
            DispatchKeySet=Keys,
            _after_autograd_keyset=Keys("CUDA", "CPU", "BackendSelect"),
            _cuda_getCurrentRawStream=lambda device: driver.stream(),
        ),
    )
    sys.modules.update({"torch": torch, "torch.autograd": autograd, "torch.autograd.forward_ad": forward_ad})
