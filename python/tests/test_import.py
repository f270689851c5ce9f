"""The importer as a whole: blocks of models, the text that comes out, and what is refused."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import tilewright
from tilewright import MismatchError, Program, TilewrightError, UnsupportedError, from_torch


def test_attention_reads_like_attention(torch: ModuleType) -> None:
    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    program = from_torch(attention, *(torch.randn(2, 4, 16, 8, dtype=torch.float16) for _ in range(3)))
    assert program.source == (
        "program attention\n"
        "axis b = 2, h = 4, i = 16, d = 8, j = 16, e = 8\n"
        "q = parameter f16 [b, h, i, d]\n"
        "k = parameter f16 [b, h, j, d]\n"
        "v = parameter f16 [b, h, j, e]\n"
        "return f16 [b, h, i, e] dot(softmax(causal(dot(q, k; d) * 0.35355339059327373; i, j); j), v; j)\n"
    )


def test_a_gated_mlp_reads_like_one(torch: ModuleType) -> None:
    from models import GatedMLP

    program = from_torch(GatedMLP().bfloat16(), torch.randn(4, 32).bfloat16())
    assert program.source == (
        "program GatedMLP\n"
        "axis t = 4, m = 32, n = 48, n2 = 32\n"
        "x = parameter bf16 [t, m]\n"
        "gate_proj_weight = parameter bf16 [n, m]\n"
        "up_proj_weight = parameter bf16 [n, m]\n"
        "down_proj_weight = parameter bf16 [n2, n]\n"
        "return bf16 [t, n2] dot(silu(dot(x, gate_proj_weight; m)) * dot(x, up_proj_weight; m), down_proj_weight; n)\n"
    )
    assert program.bindings == {f"{name}_weight": f"{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")}


def test_a_convolution_reads_like_one(torch: ModuleType) -> None:
    program = from_torch(torch.nn.Conv2d(3, 8, 5, stride=2, padding=2), torch.randn(2, 3, 16, 16), name="conv")
    assert program.source == (
        "program conv\n"
        "axis n = 2, ci = 3, h = 16, w = 16, co = 8, kh = 5, kw = 5, oh = 8, ow = 8\n"
        "input = parameter f32 [n, ci, h, w]\n"
        "weight = parameter f32 [co, ci, kh, kw]\n"
        "bias = parameter f32 [co]\n"
        "return f32 [n, co, oh, ow] dot(view(input; h -> 2*oh + kh - 2, w -> 2*ow + kw - 2; fill = 0), weight; ci, kh, kw) + bias\n"
    )


def test_a_transposed_convolution_is_one_product_of_one_view(torch: ModuleType) -> None:
    module = torch.nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, dilation=2, bias=False)
    assert from_torch(module, torch.randn(2, 3, 5, 4), name="conv").source == (
        "program conv\n"
        "axis n = 2, ci = 3, h = 5, w = 4, co = 2, kh = 3, kw = 3, oh = 11, ow = 9\n"
        "input = parameter f32 [n, ci, h, w]\n"
        "weight = parameter f32 [ci, co, kh, kw]\n"
        "return f32 [n, co, oh, ow] dot(view(input; 2*h -> oh - 2*kh + 1, 2*w -> ow - 2*kw + 1; fill = 0), weight; ci, kh, kw)\n"
    )


def test_rotary_embeddings_split_the_head_and_move_nothing(torch: ModuleType) -> None:
    from models import rotate_half

    program = from_torch(lambda x, cos, sin: x * cos + rotate_half(x) * sin, torch.randn(5, 3, 8), torch.randn(3, 8), torch.randn(3, 8))
    assert program.source.splitlines()[-1] == "return f32 [b, t, (c m)] x * cos + select(iota(c) - 1, view(x; c -> 0), -view(x; c -> 1)) * sin"


def of(name: str) -> tuple:
    """A block, and the shapes of its inputs."""
    import models

    rotary = [(2, 16, 32), (1, 16, 8), (1, 16, 8), (1, 1, 16, 16)]
    return {
        "Llama layer": (models.LlamaLayer, (), rotary),
        "twelve Llama layers": (models.LlamaStack, (12,), rotary),
        "gated MLP": (models.GatedMLP, (), [(4, 32)]),
        "GPT attention": (models.GPTAttention, (), [(2, 12, 32)]),
        "two of five experts": (models.Experts, (), [(6, 32)]),
        "ViT": (models.ViT, (), [(2, 3, 16, 16)]),
        "ResNet bottleneck": (models.Bottleneck, (), [(2, 16, 8, 8)]),
        "UNet up-block": (models.UNetUp, (), [(2, 8, 4, 4), (2, 4, 8, 8)]),
        "Mamba-2 block": (models.Mamba2, (), [(2, 12, 16)]),
    }[name]


BLOCKS = ["Llama layer", "twelve Llama layers", "gated MLP", "GPT attention", "two of five experts", "ViT", "ResNet bottleneck", "UNet up-block", "Mamba-2 block"]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_models_hold(name: str, dtype: str, torch: ModuleType) -> None:
    kind, arguments, shapes = of(name)
    module = kind(*arguments).eval().to(getattr(torch, dtype))
    inputs = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
    program = from_torch(module, *inputs)
    assert {p.dtype for p in program.parameters} == {"f32" if dtype == "float32" else "bf16"} == {o.dtype for o in program.outputs}
    # Apart from the importer's own comparison: in PyTorch's own arithmetic, with its rounding.
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    values = {name: state[target] for name, target in program.bindings.items()}
    given = iter(inputs)
    arrays = [(values[p.name] if p.name in values else next(given)).detach().double().numpy() for p in program.parameters]
    with torch.no_grad():
        theirs = module(*inputs).double().numpy()
    assert np.abs(program.eval(*arrays) - theirs).max() / np.abs(theirs).max() < (1e-4 if dtype == "float32" else 0.1)


def test_a_scan_in_chunks_is_its_recurrence(torch: ModuleType) -> None:
    """The oracle of the module itself: one step after the other."""
    from models import Mamba2

    def steps(x, log, b, c):
        state, ys = torch.zeros(2, 4, 8, 6, dtype=x.dtype), []
        for t in range(x.shape[1]):
            state = state * log[:, t].exp()[..., None, None] + x[:, t, ..., None] * b[:, t, :, None]
            ys.append((state * c[:, t, :, None]).sum(-1))
        return torch.stack(ys, 1)

    x, b, c = (torch.randn(2, 12, 4, n, dtype=torch.float64) for n in (8, 6, 6))
    log = -torch.rand(2, 12, 4, dtype=torch.float64)
    expected = steps(x, log, b, c)
    assert (Mamba2().scanned(x, log, b, c) - expected).abs().max() < 1e-12
    program = from_torch(Mamba2().scanned, x.float(), log.float(), b.float(), c.float())
    arrays = [y.numpy() for y in (x, log, b, c)]
    assert np.abs(program.eval(*arrays) - expected.numpy()).max() < 1e-12


def test_a_step_of_decoding_holds(torch: ModuleType) -> None:
    from models import DecodingStep

    module = DecodingStep()
    inputs = torch.tensor([3, 19, 0]), torch.tensor([4, 0, 11]), torch.randn(3, 12, 4, 8), torch.randn(3, 12, 4, 8)
    program = from_torch(module, *inputs)
    assert [p.dtype for p in program.parameters[:4]] == ["i64", "i64", "f32", "f32"] and len(program.outputs) == 3
    # At inputs that the importer has not seen.
    state = dict(module.named_parameters())
    others = torch.tensor([0, 1, 7]), torch.tensor([11, 5, 2]), torch.randn(3, 12, 4, 8), torch.randn(3, 12, 4, 8)
    arrays = [x.numpy() for x in others] + [state[program.bindings[p.name]].detach().numpy() for p in program.parameters[4:]]
    with torch.no_grad():
        for ours, theirs in zip(program.eval(*arrays), module(*others), strict=True):
            assert np.abs(ours - theirs.numpy()).max() < 1e-5


def test_a_layer_is_searched_and_written(torch: ModuleType, tmp_path) -> None:
    from models import GatedMLP

    program = from_torch(GatedMLP(16, 32).half(), torch.randn(8, 16).half())
    found = tilewright.optimize(program, target="h200", budget="3s", gpu=False, seed=1, progress=False)
    found.save(tmp_path / "mlp")
    assert Program.read(tmp_path / "mlp" / "program.lax") == program


def test_what_cannot_be_said_is_named_with_its_line(torch: ModuleType) -> None:
    def several(x):
        y = x.argsort(1)
        z = x.floor() + 1
        return x + z, y

    with pytest.raises(UnsupportedError) as found:
        from_torch(several, torch.randn(3, 4))
    assert [operation.operation for operation in found.value.operations] == ["aten.sort.default", "aten.floor.default"]
    message = str(found.value)
    assert message.startswith("2 operations cannot be imported:\n")
    first, second = (operation.source or "" for operation in found.value.operations)
    assert __file__ in first and "y = x.argsort(1)" in first and "z = x.floor() + 1" in second
    assert all(line in message for line in ("y = x.argsort(1)", "z = x.floor() + 1", "no rule says it"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F.max_pool1d(x, 2, return_indices=True)[1] * 1.0", "where the maximum of a window is"),
        ("x.view(12).repeat(3).topk(17)[0]", "at most 16 are looked for one by one"),
        ("i.short()", "result 0 is int16: results of the language are f32, f16, bf16, i32, i64 or bool"),
        ("x[b]", "how many elements there are depends on the data"),
        ("F.dropout(x, 0.5, training=True)", "dropout in training"),
        ("x // 2", "rounded to a whole number|no rule"),
        ("x.long() * 2", "cut to a whole one"),
        ("x.double()", "result 0 is float64"),
        ("x == float('inf')", "a comparison with an infinity"),
        ("x.scatter_reduce(0, i[:, None], x, 'prod')", "writing by prod"),
        ("x.scatter_reduce(0, i[:, None], x, 'sum', include_self=False)", "leaves out what was there"),
        ("x.index_put((b, i[0]), x.sum())", "a mask as an index"),
        ("x[torch.arange(4)]", "an index that runs from 0 to 3, of 3 elements"),
        ("x[i // 2]", "rounded to a whole number|no rule"),
        ("x[x > 0]", "how many elements there are depends on the data"),
        ("x[:0]", "result 0 has no elements"),
        ("x[:0].sum()", "without elements"),
        ("F.pad(x[None], (1, 1), mode='reflect')", "no rule|padding by"),
        ("3.0", "gives no tensor|no tensor"),
    ],
)
def test_what_is_refused_says_why(text: str, message: str, torch: ModuleType) -> None:
    function = eval(f"lambda x, i, b: {text}", {"torch": torch, "F": torch.nn.functional})
    with pytest.raises(TilewrightError, match=message):
        from_torch(function, torch.randn(3, 4), torch.tensor([1, 2]), torch.tensor([True, False, True]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "float64"])
def test_dtypes_that_parameters_have_not_are_named(dtype: str, torch: ModuleType) -> None:
    with pytest.raises(UnsupportedError, match=f"a parameter of {dtype}: parameters of the language are f32, f16, bf16, i32, i64 or bool"):
        from_torch(lambda x: 1.0 * x, torch.ones(3, dtype=getattr(torch, dtype)))


def test_a_module_in_training_is_refused(torch: ModuleType) -> None:
    with pytest.raises(TilewrightError, match=r"eval\(\)"):
        from_torch(torch.nn.BatchNorm1d(4), torch.randn(3, 4))
    from_torch(torch.nn.BatchNorm1d(4).eval(), torch.randn(3, 4))


def test_what_is_no_function_is_refused(torch: ModuleType) -> None:
    with pytest.raises(TypeError, match="a function or a torch.nn.Module, found int"):
        from_torch(3)  # type: ignore[arg-type]
    with pytest.raises(TilewrightError, match="dense tensors of real numbers"):
        from_torch(torch.abs, torch.randn(3, dtype=torch.complex64))
    with pytest.raises(TilewrightError, match="cannot export"):
        from_torch(lambda x: x if x.sum() > 0 else -x, torch.randn(3))


def test_a_wrong_rule_is_found(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is what all other tests of the importer rest on."""
    from tilewright.torch_import import table

    wrong = table.Rule(lambda to, self: to.pointwise(lambda x: to.scaled(to.call("tanh", x), 1 + 1e-11), self), frozenset({"self"}))
    monkeypatch.setitem(table.RULES, "tanh", wrong)
    with pytest.raises(MismatchError, match="differs from PyTorch's by 1.0e-11 of its scale"):
        from_torch(torch.tanh, torch.randn(30))
    assert from_torch(torch.tanh, torch.randn(30), check=False).outputs[0].shape == (30,)


def test_results_that_cancel_are_compared_at_the_scale_of_what_cancels(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mean of differences from the mean: rounding, in PyTorch as here.
    def cancels(x):
        return (x - x.mean(1, keepdim=True)).mean(1)

    from_torch(cancels, torch.randn(4, 1000))
    from tilewright.torch_import import table

    wrong = table.Rule(lambda to, self: to.pointwise(lambda x: to.shifted(x, 1e-9), self), frozenset({"self"}))
    monkeypatch.setitem(table.RULES, "abs", wrong)
    with pytest.raises(MismatchError):
        from_torch(lambda x: (x.exp().abs() - x.exp()).mean(1), torch.randn(4, 1000))


def test_indices_are_places_in_the_text(torch: ModuleType) -> None:
    program = from_torch(torch.nn.Embedding(10, 4), torch.tensor([[1, 2, 3], [0, 9, 1]]))
    assert program.source == (
        "program Embedding\n"
        "axis t = 2, m = 3, v = 10, m2 = 4\n"
        "input = parameter i64 [t, m]\n"
        "weight = parameter f32 [v, m2]\n"
        "return f32 [t, m, m2] sum(select(-abs(iota(v) - input), weight, 0); v)\n"
    )


def test_infinities_are_compared_too(torch: ModuleType) -> None:
    program = from_torch(lambda x: x.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), float("-inf")), torch.randn(4, 4))
    assert np.isneginf(program.eval(np.zeros((4, 4)))[0, 3])


def test_names_are_those_of_the_function_and_the_module(torch: ModuleType) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.max = torch.nn.Parameter(torch.randn(4))
            self.unused = torch.nn.Parameter(torch.randn(4))
            self.register_buffer("positions", torch.arange(3))
            self.register_buffer("steps", torch.randn(3, 1), persistent=False)

        def forward(self, exp, *, scale):
            return exp * self.max * scale + self.positions[:, None] + self.steps

    program = from_torch(Scaled(), torch.randn(3, 4), kwargs={"scale": torch.randn(4)}, name="1 strange name!")
    assert program.name == "x1_strange_name"
    # A name that the language has is given with a number.
    assert [p.name for p in program.parameters] == ["exp2", "scale", "max2", "steps"]
    assert program.bindings == {"max2": "max", "steps": "steps"}
    assert "iota" in program.source


def test_numbers_that_a_function_holds_are_numbers(torch: ModuleType) -> None:
    held = torch.tensor([1.0, 2.0, 3.0])
    program = from_torch(lambda x: x * held + torch.tensor(0.5), torch.randn(3))
    assert [p.shape for p in program.parameters] == [(3,), (3,)] and "0.5" in program.source


def test_unused_inputs_and_plain_results_stay(torch: ModuleType) -> None:
    program = from_torch(lambda x, y: (x, x.sum(), x[None]), torch.randn(3), torch.randn(2))
    assert [p.name for p in program.parameters] == ["x", "y"]
    assert [o.shape for o in program.outputs] == [(3,), (), (1, 3)]


def test_parts_without_elements_are_passed_over(torch: ModuleType) -> None:
    """As in rotary embeddings of a part of the head that is all of it."""
    program = from_torch(lambda x: torch.cat([x[:, :4] * 2, x[:, 4:].view(3, 0) + 1], 1), torch.randn(3, 4))
    assert program.source.endswith("return f32 [t, m] x * 2\n")


def test_a_rule_that_fails_names_its_operation(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.torch_import import table

    monkeypatch.setitem(table.RULES, "tanh", table.Rule(lambda to, self: self.absent, frozenset({"self"})))
    with pytest.raises(UnsupportedError, match="tanh = aten.tanh.default: its rule failed: AttributeError"):
        from_torch(lambda x: x.tanh(), torch.randn(3))


def test_modules_without_numbers_are_imported_without_a_check(torch: ModuleType) -> None:
    with torch.device("meta"):
        module, x = torch.nn.Linear(4096, 4096), torch.randn(64, 4096)
    assert from_torch(module, x, check=False).parameters[1].shape == (4096, 4096)
    with pytest.raises(MismatchError, match="no numbers to compare on"):
        from_torch(module, x)


def test_what_is_too_large_to_compare_says_so(torch: ModuleType) -> None:
    x = torch.randn(1).expand(1 << 14, 1 << 14)
    with pytest.raises(MismatchError, match="import it at smaller extents first"):
        from_torch(lambda x: x @ x, x)
    assert from_torch(lambda x: x @ x, x, check=False).name == "f"


def test_without_pytorch_it_says_what_is_missing() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import tilewright\n"
        "try: tilewright.from_torch(lambda x: x)\n"
        "except ImportError as error: print(error)\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    assert "needs PyTorch" in printed and "pip install torch" in printed
