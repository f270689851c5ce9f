"""PyTorch itself where standin.py would be: tensors on the CPU stand for those on a GPU, and libcuda.c for the driver."""

from types import SimpleNamespace

import torch
from driver import Driver

float16, float64 = torch.float16, torch.float64
# What of the wrapper is another on the CPU: the type of the devices, and who says which stream is the current one.
CHANGES = {
    '_KIND = "cuda"  #': '_KIND = "cpu"  #',
    '_CURRENT_STREAM = "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"': '_CURRENT_STREAM = "libcuda.so.1", "fake_current_stream"',
    '_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream_slowly)': "_raw_stream = torch._pretended_stream",
}


def Tensor(shape, dtype, strides=None, shift=0, requires_grad=False) -> torch.Tensor:
    """As the stand-in's: `shift` is in bytes."""
    elements = torch.Size(shape).numel()
    if strides is not None:
        return torch.zeros(elements, dtype=dtype).as_strided(shape, strides)
    flat = torch.zeros(elements + shift // dtype.itemsize, dtype=dtype)
    return flat[shift // dtype.itemsize :].view(shape).requires_grad_(requires_grad)


def change(text: str) -> str:
    """The wrapper, for the CPU."""
    for old, new in CHANGES.items():
        assert text.count(old) == 1, f"not once in the wrapper: {old}"
        text = text.replace(old, new)
    return text


def install(driver: Driver) -> None:
    torch._pretended_stream = lambda device: driver.stream()
    torch.Tensor.get_device = lambda self: 0
    torch.cuda.get_device_capability = lambda device: (9, 0)
    torch.cuda.get_device_name = lambda device: "a pretender"
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
