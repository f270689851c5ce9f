"""Times pairs of artifacts of one program in turns on the GPU, by the harness of measure.py.

Run as a process it answers one JSON request a line. A kernel that faults takes only this process down.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import lax
import measure

STAYS = 0.7  # the share of L2 up to which inputs count as being there: `figure` in src/pipeline/judge.rs
FAR = 0.1  # more than two verified results may differ, as rms over rms, whatever the dtype


def inputs_of(header: lax.Header) -> list[Tensor]:
    """Normal inputs; zeros where whole numbers are wanted, since what they count or name is not known; masks that let everything through."""
    fill = {torch.bool: torch.ones_like, torch.int32: torch.zeros_like, torch.int64: torch.zeros_like}
    return [fill.get(x.dtype, torch.clone)(x) for x in measure.make_inputs(SimpleNamespace(row=0, scale={}), header)]


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Both artifacts' times, and those of the second one as a multiple of the first one's."""
    folders = {name: Path(request[name]) for name in ("first", "second")}
    texts = [(folder / "program.lax").read_text() for folder in folders.values()]
    if texts[0] != texts[1]:
        raise ValueError(f"{folders['first']} and {folders['second']} are of two programs")
    header = lax.read(folders["first"] / "program.lax")
    inputs = inputs_of(header)
    functions = {name: measure.load(folder.resolve()).run for name, folder in folders.items()}
    outputs = [measure.as_tuple(function(*inputs)) for function in functions.values()]
    rms = measure.relative_rms(outputs[1], tuple(x.double() for x in outputs[0]))
    if rms > FAR:
        raise ValueError(f"the results differ by {rms:.1e}")
    sets = measure.input_sets(inputs)
    contenders = {name: measure.Contender(function, sets) for name, function in functions.items()}
    times = measure.timed(contenders, request["rounds"])
    nbytes = sum(x.numel() * x.element_size() for x in inputs)
    both = nbytes > STAYS * torch.cuda.get_device_properties(0).L2_cache_size
    return {**times, "rms": rms, **ratios(times, both)}


def ratios(times: dict[str, dict[str, Any]], both: bool) -> dict[str, float]:
    """Of the second one's times over the first one's: warm, cold, and by the figure of a search, which is the mean of both for large inputs."""
    medians = {name: {kind: times[name][kind]["median"] for kind in ("warm", "cold")} for name in ("first", "second")}
    figures = {name: (of["warm"] + of["cold"]) / 2 if both else of["warm"] for name, of in medians.items()}
    return {
        "ratio_warm": medians["second"]["warm"] / medians["first"]["warm"],
        "ratio_cold": medians["second"]["cold"] / medians["first"]["cold"],
        "first_us": figures["first"],
        "second_us": figures["second"],
        "ratio": figures["second"] / figures["first"],
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return compare(request)
    except Exception as error:  # a pair that fails is a result
        torch.cuda.synchronize()  # where the fault is sticky this raises and ends the process
        return {"error": measure.describe(error)}


if __name__ == "__main__":
    measure.serve(answer)
