"""The importer of StableHLO as a whole: blocks of models, the text that comes out, the forms that a module has, and what is refused."""

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import MismatchError, TilewrightError, UnsupportedError, from_stablehlo


def text(jax: ModuleType, function: Callable[..., Any], *shapes: Any, dtype: str = "float32") -> str:
    """The module of a function at shapes, which may be trees of them."""
    specs = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, dtype), shapes, is_leaf=lambda x: isinstance(x, tuple) and x != shapes)
    return jax.jit(function).lower(*specs).as_text(debug_info=True)


def module(body: str, arguments: str = "%x: tensor<3x4xf32>", result: str = "tensor<3x4xf32>") -> str:
    """One function as MLIR."""
    return f"module {{\n  func.func public @main({arguments}) -> {result} {{\n    {body}\n  }}\n}}\n"


CALL = "func.func @{}(%x: tensor<f32>) -> tensor<f32> {{ %0 = call @{}(%x) : (tensor<f32>) -> tensor<f32> return %0 : tensor<f32> }}"
TWICE = """
func.func private @f{0}(%x: tensor<f32>) -> tensor<f32> {{
  %0 = call @f{1}(%x) : (tensor<f32>) -> tensor<f32>
  %1 = call @f{1}(%0) : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}}
"""


def test_attention_reads_like_attention(jax: ModuleType) -> None:
    from jax_models import causal_attention

    program = from_stablehlo(text(jax, causal_attention, *[(2, 8, 4, 16)] * 3, dtype="bfloat16"))
    assert program.source == (
        "program causal_attention\n"
        "axis b = 2, i = 8, h = 4, d = 16, j = 8, e = 16\n"
        "q = parameter bf16 [b, i, h, d]\n"
        "k = parameter bf16 [b, j, h, d]\n"
        "v = parameter bf16 [b, j, h, e]\n"
        "return bf16 [b, i, h, e] dot(softmax(causal(dot(q, k; d) / sqrt(16); i, j); j), v; j)\n"
    )


def test_norms_and_a_gated_mlp_read_like_them(jax: ModuleType) -> None:
    from jax_models import gated_mlp, layer_norm_matmul, rms_norm_matmul

    program = from_stablehlo(text(jax, rms_norm_matmul, (4, 32), (32,), (32, 48)))
    assert program.source.splitlines()[-1] == "return f32 [t, n] dot(rms_norm(x; m, 1e-06) * g, w; m)"
    program = from_stablehlo(text(jax, layer_norm_matmul, (4, 32), (32,), (32,), (32, 48)))
    assert program.source.splitlines()[-1] == "return f32 [t, n] dot(layer_norm(x; m, 1e-05) * g + b, w; m)"
    program = from_stablehlo(text(jax, gated_mlp, (4, 32), (32, 48), (32, 48), (48, 32)))
    assert program.source.splitlines()[-1] == "return f32 [t, n2] dot(silu(dot(x, gate; m)) * dot(x, up; m), down; n)"


def test_a_convolution_reads_like_one(jax: ModuleType) -> None:
    from jax_models import conv_pool

    program = from_stablehlo(text(jax, conv_pool, (2, 16, 16, 3), (5, 5, 3, 8), (8,)))
    assert program.source == (
        "program conv_pool\n"
        "axis n = 2, h = 16, w = 16, ci = 3, kh = 5, kw = 5, co = 8, h2 = 8, w2 = 8, oh = 4, kh2 = 3, ow = 4\n"
        "axis kw2 = 3\n"
        "x = parameter f32 [n, h, w, ci]\n"
        "w = parameter f32 [kh, kw, ci, co]\n"
        "b = parameter f32 [co]\n"
        "y = view(relu(dot(view(x; h -> 2*h2 + kh - 1, w -> 2*w2 + kw - 1; fill = 0), w; ci, kh, kw) + b); "
        "h2 -> 2*oh + kh2, w2 -> 2*ow + kw2; fill = -inf)\n"
        "return f32 [n, oh, ow, co] max(y; kh2, kw2)\n"
    )


def test_rotary_embeddings_split_the_head_and_move_nothing(jax: ModuleType) -> None:
    from jax_models import rotary_of_tables

    program = from_stablehlo(text(jax, rotary_of_tables, (5, 3, 2, 8), (3, 8), (3, 8)))
    assert program.source.splitlines()[-1] == "return f32 [b, h, t, (c d)] x * cos + select(iota(c) - 1, view(x; c -> 0), -view(x; c -> 1)) * sin"


def test_functions_that_jax_takes_apart_are_found_again(jax: ModuleType) -> None:
    def several(x: Any) -> Any:
        return tuple(f(x) for f in (jax.nn.gelu, lambda x: jax.nn.gelu(x, approximate=False), jax.nn.softplus, jax.nn.sigmoid, jax.nn.log_softmax))

    def norm(x: Any, g: Any) -> Any:
        # The weight first, as libraries have it.
        return x * (jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g)

    assert from_stablehlo(text(jax, norm, (3, 4), (4,))).source.endswith("return f32 [t, m] rms_norm(x; m, 1e-06) * g\n")
    results = from_stablehlo(text(jax, several, (3, 4))).source.splitlines()[-1]
    assert results == (
        "return f32 [t, j] gelu(x), f32 [t, j] gelu_erf(x), f32 [t, j] softplus(x), f32 [t, j] sigmoid(x), f32 [t, j] log_softmax(x; j)"
    )


def of(name: str) -> tuple[Callable[..., Any], tuple]:
    """A block, and the shapes of its arguments."""
    import jax_models as models

    heads = [(2, 8, 4, 16)] * 3
    return {
        "attention": (models.attention, (*heads[:2], (2, 8, 4, 8))),
        "causal attention": (models.causal_attention, tuple(heads)),
        "RMS norm": (models.rms_norm_matmul, ((2, 4, 32), (32,), (32, 48))),
        "layer norm": (models.layer_norm_matmul, ((2, 4, 32), (32,), (32,), (32, 48))),
        "gated MLP": (models.gated_mlp, ((4, 32), (32, 48), (32, 48), (48, 32))),
        "convolution and pool": (models.conv_pool, ((2, 16, 16, 3), (5, 5, 3, 8), (8,))),
        "group norm": (models.group_norm, ((2, 6, 5, 8), (8,), (8,))),
        "rotary": (models.rotary, ((2, 6, 4, 8),)),
        "rotary of tables": (models.rotary_of_tables, ((2, 6, 4, 8), (6, 8), (6, 8))),
        "decoder layer": (models.decoder_layer, (models.decoder_params(lambda shape: shape), (2, 8, 32))),
        "cross entropy": (models.cross_entropy, ((6, 20), (6, 20))),
        "two of five experts": (models.experts, ((6, 8), (8, 5), (5, 8, 12), (5, 8, 12), (5, 12, 8))),
    }[name]


BLOCKS = [
    "attention",
    "causal attention",
    "RMS norm",
    "layer norm",
    "gated MLP",
    "convolution and pool",
    "group norm",
    "rotary",
    "rotary of tables",
    "decoder layer",
    "cross entropy",
    "two of five experts",
]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_models_hold(name: str, dtype: str, jax: ModuleType) -> None:
    function, shapes = of(name)
    program = from_stablehlo(text(jax, function, *shapes, dtype=dtype))
    assert {p.dtype for p in program.parameters} == {"f32" if dtype == "float32" else "bf16"}
    # Apart from the importer's own comparison: with JAX, and no number of the function rounded on the way.
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(p.shape) for p in program.parameters]
    with jax.enable_x64(True):
        specs = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, "float32"), shapes, is_leaf=lambda x: isinstance(x, tuple) and x != shapes)
        leaves, tree = jax.tree.flatten(specs)
        assert [leaf.shape for leaf in leaves] == [p.shape for p in program.parameters]

        def wide(*given: Any) -> Any:
            return function(*jax.tree.unflatten(tree, [x.astype("float64") for x in given])).astype("float32")

        lowered = jax.jit(wide).lower(*leaves).as_text()
        theirs = np.asarray(function(*jax.tree.unflatten(tree, [jax.numpy.asarray(x) for x in arrays])))
    assert theirs.dtype == np.float64
    exact = from_stablehlo(lowered).eval(*arrays)
    assert np.abs(exact - theirs).max() <= 1e-12 * np.abs(theirs).max()
    # In the module's own dtype its numbers are rounded, but for those of mathematics.
    assert np.abs(program.eval(*arrays) - theirs).max() <= (1e-6 if dtype == "float32" else 0.02) * np.abs(theirs).max()


def test_a_step_of_decoding_holds(jax: ModuleType) -> None:
    from jax_models import decoding_step

    draw = np.random.default_rng(0)
    shapes = [(9, 8), (3, 8, 2, 4), (3, 7, 2, 4), (3, 7, 2, 4)]
    arrays = [np.array([3, 8, 0]), np.array([4, 0, 6]), *(draw.standard_normal(shape) for shape in shapes)]
    given = [x.astype("int32" if x.dtype.kind == "i" else "float32") for x in arrays]
    program = from_stablehlo(jax.jit(decoding_step).lower(*given).as_text(debug_info=True))
    with jax.enable_x64(True):
        theirs = np.asarray(decoding_step(*map(jax.numpy.asarray, arrays)))
    assert theirs.dtype == np.float64
    assert np.abs(program.eval(*arrays) - theirs).max() <= 1e-12 * np.abs(theirs).max()


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize(
    "arguments", [{}, {"is_causal": True}, {"is_causal": True, "scale": 0.3, "local_window_size": (2, 0)}], ids=["all", "causal", "window"]
)
def test_attention_of_jax_holds(shared: int, arguments: dict[str, Any], jax: ModuleType) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, **arguments)

    shapes = [(2, 5, 6, 4), (2, 5, 6 // shared, 4), (2, 5, 6 // shared, 4)]
    program = from_stablehlo(text(jax, attention, *shapes))
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape).astype("float32") for shape in shapes]
    # It computes in f32, whatever it is given.
    assert np.abs(program.eval(*arrays) - np.asarray(attention(*arrays))).max() < 1e-5


def test_text_bytecode_and_exported_are_one_program(jax: ModuleType) -> None:
    from jax import export
    from jax_models import decoder_layer, decoder_params
    from jaxlib.mlir import ir

    def spec(shape: tuple[int, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, "bfloat16")

    exported = export.export(jax.jit(decoder_layer))(decoder_params(spec), spec((2, 8, 32)))
    program = from_stablehlo(exported)
    assert program.name == "decoder_layer" and program.bindings["params_norm"] == "params['norm']" and "x" not in program.bindings
    with jax._src.interpreters.mlir.make_ir_context():
        parsed = ir.Module.parse(exported.mlir_module())
        generic = parsed.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)
        plain = parsed.operation.get_asm(enable_debug_info=False)
    assert '"func.func"' in generic and "loc(" not in plain
    for form in (exported.mlir_module(), generic, exported.mlir_module_serialized):
        again = from_stablehlo(form, check=False)
        assert again.source == program.source and again.bindings == program.bindings
    # Without locations nothing says what arguments are called.
    unnamed = from_stablehlo(plain)
    assert [p.name for p in unnamed.parameters] == [f"arg{n}" for n in range(10)] and unnamed.bindings == {}


def test_modules_by_hand_are_read(jax: ModuleType) -> None:
    composite = """
    module {
      func.func @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
        %0 = stablehlo.composite "my.twice" %x {decomposition = @twice} : (tensor<3x4xf32>) -> tensor<3x4xf32>
        %1 = stablehlo.dot %0, %0 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
        return %0 : tensor<3x4xf32>
      }
      func.func private @twice(%y: tensor<3x4xf32>) -> tensor<3x4xf32> {
        %0 = call @sum(%y, %y) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
        return %0 : tensor<3x4xf32>
      }
      func.func private @sum(%y: tensor<3x4xf32>, %z: tensor<3x4xf32>) -> tensor<3x4xf32> {
        %0 = stablehlo.add %y, %z : tensor<3x4xf32>
        return %0 : tensor<3x4xf32>
      }
    }
    """.replace("        %1 = stablehlo.dot %0, %0 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>\n", "")
    assert from_stablehlo(composite).source.splitlines()[-1] == "return f32 [t, m] arg0 + arg0"
    table = "stablehlo.constant dense<[[0, 10, 20, 30], [1, 11, 21, 31], [2, 12, 22, 32]]> : tensor<3x4xi32>"
    counted = f"%0 = {table}\n%1 = stablehlo.convert %0 : (tensor<3x4xi32>) -> tensor<3x4xf32>\nreturn %1 : tensor<3x4xf32>"
    assert np.array_equal(from_stablehlo(module(counted, "")).eval(), [[0, 10, 20, 30], [1, 11, 21, 31], [2, 12, 22, 32]])
    half = module("%0 = stablehlo.constant dense<1.0e-01> : tensor<3xf16>\nreturn %0 : tensor<3xf16>", "", "tensor<3xf16>")
    assert "0.1 +" in from_stablehlo(half).source


def test_what_cannot_be_said_is_named_with_its_line(jax: ModuleType) -> None:
    jnp = jax.numpy

    def several(x: Any) -> Any:
        y = jnp.sort(x, axis=1)
        z = jnp.floor(x) + 1
        return x + z, y

    with pytest.raises(UnsupportedError) as found:
        from_stablehlo(text(jax, several, (3, 4)))
    assert sorted(operation.operation for operation in found.value.operations) == ["stablehlo.floor", "stablehlo.sort"]
    message = str(found.value)
    assert message.startswith("2 operations cannot be imported:\n") and message.count(f'File "{__file__}", line ') == 2
    assert all(line in message for line in ("y = jnp.sort(x, axis=1)", "z = jnp.floor(x) + 1", "no rule says it"))
    # Without locations, the line of the text.
    with pytest.raises(UnsupportedError, match=r"line 3: %0 = stablehlo.floor %x : tensor<3x4xf32>"):
        from_stablehlo(module("%0 = stablehlo.floor %x : tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>"))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("b.astype(jnp.int8)", "result 0 is i8: results of the language are f32, f16, bf16, i32, i64 or bool"),
        ("jax.lax.reduce((x, x), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,))[0]", "several tensors at once"),
        ("jax.lax.reduce((x, x), (-jnp.inf, 0.0), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), (0,))[1]", "several tensors at once"),
        ("jnp.sin(x)", "stablehlo.sine: no rule"),
        ("x // 2", "stablehlo.(floor|sign|remainder|divide)"),
        ("x.astype(jnp.int32).astype(x.dtype)", "stablehlo.convert: a number that is cut to a whole one"),
        ("(jnp.arange(12) // 5).astype(x.dtype)", "a quotient of whole numbers|no rule"),
        ("jnp.where(x == jnp.inf, 0, x)", "a comparison with an infinity"),
        ("jnp.where(x > 0, x, jnp.nan)", "stablehlo.select: NaN is no number"),
        ("x + np.arange(12.0).reshape(3, 4) ** 2", "stablehlo.constant: a table of 3x4 numbers, which the language has none of: make it an argument"),
        ("jax.lax.top_k(jnp.tile(x, 5), 17)[0]", "at most 16 are looked for one by one"),
        ("jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x)", "stablehlo.while: a loop that ends by a number that is computed"),
        ("jax.lax.fori_loop(0, 3000, lambda n, y: y + 1, x)", "stablehlo.while: a loop of more than 1024 steps"),
        ("jax.lax.fori_loop(0, 3, lambda n, y: jnp.sort(y), x)", "1 operation cannot be imported:\n.*stablehlo.sort: no rule"),
        ("jax.lax.cond(x.sum() > 0, jnp.exp, jnp.tanh, x)", "stablehlo.case: a branch that is chosen by a number that is computed"),
        ("jnp.linalg.cholesky(x[:, :3])", "stablehlo.cholesky|custom_call @"),
        ("x.at[i].mul(2.0)", "stablehlo.scatter: writing by stablehlo.multiply"),
        ("x.at[i].apply(jnp.exp)", "stablehlo.scatter: writing by"),
        ("x[i // 2]", "stablehlo.(sign|divide|remainder|floor)"),
        ("jnp.where(x.at[i].get(mode='clip').sum() > 0, x, jnp.nan)", "stablehlo.select: NaN is no number"),
        ("jnp.fft.fft(x).real", "complex<f32> are no real numbers"),
        ("x[jnp.array([2, 0, 1])]", "a table of 3"),
        ("jax.random.normal(jax.random.key(0), (3,))", "no rule|table|quotient|bits"),
        ("(jax.debug.print('{}', x.sum()), x)[1]", "stablehlo.custom_call @"),
        ("jax.pure_callback(np.sin, x, x)", "stablehlo.custom_call @xla_ffi_python_cpu_callback|custom_call @"),
    ],
)
def test_what_is_refused_says_why(expression: str, message: str, jax: ModuleType) -> None:
    function = eval(f"lambda x, i, b: {expression}", {"jax": jax, "jnp": jax.numpy, "np": np})
    specs = (jax.ShapeDtypeStruct((3, 4), "float32"), jax.ShapeDtypeStruct((2,), "int32"), jax.ShapeDtypeStruct((4,), "bool"))
    with pytest.raises(UnsupportedError, match=message):
        from_stablehlo(jax.jit(function).lower(*specs).as_text(debug_info=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no module", "MLIR cannot read the module: .*\n.*is unknown"),
        ("module {}", "expected a module with a function `main`, found no function"),
        (b"no module", "these bytes are no MLIR bytecode"),
        (b"ML\xefR", "MLIR cannot read the module"),
        (module("%0 = call @main(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>"), "a function of the module calls itself"),
        (
            module("%0 = call @absent(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>"),
            "MLIR cannot read the module: .*\n.*absent",
        ),
        (
            f"module {{ {CALL.format('main', 'outside')} func.func private @outside(tensor<f32>) -> tensor<f32> }}",
            "calls `outside`, which is no function",
        ),
        (
            f"module {{ {CALL.format('main', 'f0')} {''.join(TWICE.format(n, n + 1) for n in range(30))} func.func private @f30(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }} }}",
            "calls functions more than 65536 times",
        ),
        (module("return %x : tensor<?xf32>", "%x: tensor<?xf32>", "tensor<?xf32>"), r"tensor<\?xf32> has extents that are not known"),
        (module("return %x : tensor<0xf32>", "%x: tensor<0xf32>", "tensor<0xf32>"), "`arg0` has no elements"),
        (module("return %x : tensor<3xf64>", "%x: tensor<3xf64>", "tensor<3xf64>"), "`arg0` is of f64"),
        (
            module("return %x : tensor<3xui8>", "%x: tensor<3xui8>", "tensor<3xui8>"),
            "`arg0` is of ui8: parameters of the language are f32, f16, bf16, i32, i64 or bool",
        ),
        (module("return %x : memref<3xf32>", "%x: memref<3xf32>", "memref<3xf32>"), "is no tensor of known rank"),
        (
            module("%0 = stablehlo.custom_call @mine(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>"),
            "%0 = stablehlo.custom_call @mine: no rule",
        ),
        (module('%0 = "my.op"(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>'), "my.op: no rule says it"),
    ],
)
def test_what_is_no_module_of_real_numbers_is_refused(given: str | bytes, message: str, jax: ModuleType) -> None:
    with pytest.raises(TilewrightError, match=message):
        from_stablehlo(given)


def test_what_is_nothing_of_the_kind_is_refused(jax: ModuleType) -> None:
    with pytest.raises(TypeError, match="as text, as bytecode or as a jax.export.Exported, found int"):
        from_stablehlo(3)


def test_a_wrong_rule_is_found(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is what all other tests of the importer rest on."""
    from tilewright.stablehlo_import import table

    wrong = table.Rule(lambda to, x: to.pointwise(lambda a: to.scaled(to.call("tanh", a), 1 + 1e-11), x), frozenset())
    monkeypatch.setitem(table.RULES, "stablehlo.tanh", wrong)
    given = text(jax, jax.numpy.tanh, (30,))
    with pytest.raises(MismatchError, match="differs from XLA's by 1.0e-11 of its scale"):
        from_stablehlo(given)
    assert from_stablehlo(given, check=False).outputs[0].shape == (30,)


def test_a_rule_that_fails_names_its_operation(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.stablehlo_import import table

    monkeypatch.setitem(table.RULES, "stablehlo.tanh", table.Rule(lambda to, x: to.absent, frozenset()))
    with pytest.raises(UnsupportedError, match="stablehlo.tanh: its rule failed: AttributeError"):
        from_stablehlo(text(jax, jax.numpy.tanh, (3,)))


def test_an_attribute_that_no_rule_knows_is_refused(jax: ModuleType) -> None:
    given = module("%0 = stablehlo.tanh %x {strange = 3 : i32, mine.note = 1 : i32} : tensor<3x4xf32>\nreturn %0 : tensor<3x4xf32>")
    with pytest.raises(UnsupportedError, match="its attribute strange = 3 is not supported"):
        from_stablehlo(given)


def test_results_that_cancel_are_compared_at_the_scale_of_what_cancels(jax: ModuleType) -> None:
    # A mean of differences from the mean: rounding, in XLA as here.
    from_stablehlo(text(jax, lambda x: (x - x.mean(1, keepdims=True)).mean(1), (4, 1000)))


def test_inputs_are_where_the_comparison_is_made(jax: ModuleType) -> None:
    given = text(jax, lambda x, y: jax.numpy.log(x) + y, (3,), (3,))
    assert from_stablehlo(given, inputs=[[1.0, 2.0, 3.0], np.zeros(3)]).name == "f"
    with pytest.raises(MismatchError, match=r"expected inputs of the shapes \[\[3\], \[3\]\] to compare on, found \[\[3\], \[2\]\]"):
        from_stablehlo(given, inputs=[[1.0, 2.0, 3.0], np.zeros(2)])


def test_whole_numbers_are_drawn_within_what_they_index(jax: ModuleType) -> None:
    def several(x: Any, i: Any, j: Any, n: Any) -> Any:
        return jax.numpy.take(x, i, axis=0)[jax.numpy.arange(2), j] * jax.numpy.take(x, j, axis=0).sum() + n

    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in [((9, 4), "float32"), *[((2,), "int32")] * 3]]
    given = jax.jit(several).lower(*specs).as_text(debug_info=True)
    assert [p.dtype for p in from_stablehlo(given).parameters] == ["f32", "i32", "i32", "i32"]
    # JAX gives NaN for a place outside, which is another thing than the program gives.
    x = np.ones((9, 4))
    from_stablehlo(given, inputs=[x, [8, -9], [3, 0], [1000, 0]])
    with pytest.raises(MismatchError):
        from_stablehlo(given, inputs=[x, [9, 0], [3, 0], [0, 0]])


def test_what_xla_cannot_run_is_not_compared(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(platform: str) -> Any:
        raise RuntimeError(f"unknown backend {platform}")

    given = text(jax, jax.numpy.tanh, (3,))
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(MismatchError, match="XLA cannot run the module on the CPU to compare with it: unknown backend cpu; check=False"):
        from_stablehlo(given)


def test_what_is_too_large_to_compare_says_so(jax: ModuleType) -> None:
    given = text(jax, lambda x: x @ x, (1 << 14, 1 << 14))
    with pytest.raises(MismatchError, match="import it at smaller extents first"):
        from_stablehlo(given)
    assert from_stablehlo(given, check=False).name == "f"


def test_names_are_those_of_the_function_and_its_arguments(jax: ModuleType) -> None:
    def scaled(exp: Any, weights: Any, unused: Any) -> Any:
        return exp * weights["max"][0], unused

    program = from_stablehlo(text(jax, scaled, (3, 4), {"max": [(4,)]}, (2,)), name="1 strange name!")
    assert program.name == "x1_strange_name"
    # A name that the language has is given with a number.
    assert [p.name for p in program.parameters] == ["exp2", "weights_max_0", "unused"]
    assert program.bindings == {"weights_max_0": "weights['max'][0]"}


def test_parts_without_elements_are_passed_over(jax: ModuleType) -> None:
    """As in rotary embeddings of a part of the head that is all of it."""
    program = from_stablehlo(text(jax, lambda x: jax.numpy.concatenate([x[:, :4] * 2, x[:, 4:] + 1], 1), (3, 4)))
    assert program.source.endswith("return f32 [t, m] x * 2\n")


def test_an_imported_program_is_searched_and_written(jax: ModuleType, tmp_path: Any) -> None:
    from jax_models import gated_mlp

    program = from_stablehlo(text(jax, gated_mlp, (8, 16), (16, 32), (16, 32), (32, 16), dtype="float16"))
    found = tilewright.optimize(program, target="h200", budget="3s", gpu=False, seed=1, progress=False)
    found.save(tmp_path / "mlp")
    assert tilewright.Program.read(tmp_path / "mlp" / "program.lax") == program


@pytest.mark.parametrize(("setting", "message"), [("None", "needs JAX 0.10"), ("type(sys)('jax')", "needs JAX 0.10, found 0.9.2")])
def test_without_jax_it_says_what_is_missing(setting: str, message: str) -> None:
    script = (
        f"import sys; sys.modules['jax'] = {setting}\n"
        "if sys.modules['jax']: sys.modules['jax'].__version__, sys.modules['jax'].__version_info__ = '0.9.2', (0, 9, 2)\n"
        "import tilewright\n"
        "try: tilewright.from_stablehlo('module {}')\n"
        "except ImportError as error: print(error)\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    assert message in printed and "pip install tilewright[jax]" in printed
