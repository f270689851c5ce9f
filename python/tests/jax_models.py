"""Blocks of models in plain JAX, as people write them."""

import jax
import jax.numpy as jnp
from jax import lax


def attention(q, k, v):
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) * 0.25
    return jnp.einsum("bhij,bjhe->bihe", jax.nn.softmax(scores, axis=-1), v)


def causal_attention(q, k, v):
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhij,bjhe->bihe", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1), v)


def rms_norm(x, g, eps=1e-6):
    return x * lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps) * g


def rms_norm_matmul(x, g, w):
    return rms_norm(x, g) @ w


def layer_norm_matmul(x, g, b, w):
    centered = x - x.mean(-1, keepdims=True)
    return (centered / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b) @ w


def gated_mlp(x, gate, up, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def conv_pool(x, w, b):
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(jax.nn.relu(y + b), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def group_norm(x, g, b):
    n, h, w, c = x.shape
    y = x.reshape(n, h, w, 4, c // 4)
    mean, var = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
    return ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape) * g + b


def rotary(x, theta=100.0):
    t, d = x.shape[1], x.shape[-1]
    angle = jnp.arange(t, dtype=x.dtype)[:, None] * theta ** (-jnp.arange(0, d, 2, dtype=x.dtype) / d)
    # Any function of the angle: the language has no sine.
    cos, sin = jnp.exp(-angle)[:, None], jnp.tanh(angle)[:, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotary_of_tables(x, cos, sin):
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos[:, None] + jnp.concatenate([-second, first], axis=-1) * sin[:, None]


def decoder_layer(params, x):
    """Grouped queries, rotary positions, a causal mask, a gated MLP."""
    b, t, _ = x.shape
    y = rms_norm(x, params["norm"])
    q, k, v = (jnp.einsum("btm,mhd->bthd", y, params[name]) for name in ("q", "k", "v"))
    q, k = rotary(q), rotary(k)
    shared = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, shared, axis=2), jnp.repeat(v, shared, axis=2)
    x = x + causal_attention(q, k, v).reshape(b, t, -1) @ params["o"]
    return x + gated_mlp(rms_norm(x, params["mlp_norm"]), params["gate"], params["up"], params["down"])


def decoder_params(array):
    """Of what gives an array of a shape."""
    shapes = {"norm": (32,), "q": (32, 4, 16), "k": (32, 2, 16), "v": (32, 2, 16), "o": (64, 32)}
    shapes |= {"mlp_norm": (32,), "gate": (32, 48), "up": (32, 48), "down": (48, 32)}
    return {name: array(shape) for name, shape in shapes.items()}


def experts(x, router, gate, up, down):
    """A gated MLP of two experts of several, chosen for each row."""
    scores, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    weights = (
        jnp.zeros((x.shape[0], router.shape[1]), x.dtype).at[jnp.arange(x.shape[0])[:, None], chosen].set(scores / scores.sum(-1, keepdims=True))
    )
    hidden = jax.nn.silu(jnp.einsum("tm,emh->teh", x, gate)) * jnp.einsum("tm,emh->teh", x, up)
    return jnp.einsum("te,teh,ehm->tm", weights, hidden, down)


def decoding_step(token, length, table, qkv, keys, values):
    """The next token of several sequences of their own lengths, whose keys and values are in caches."""
    rows = jnp.arange(token.shape[0])
    q, k, v = jnp.einsum("bm,nmhd->nbhd", jnp.take(table, token, axis=0), qkv)
    keys, values = keys.at[rows, length].set(k), values.at[rows, length].set(v)
    scores = jnp.einsum("bhd,bjhd->bhj", q, keys)
    seen = jnp.arange(keys.shape[1]) <= length[:, None]
    return jnp.einsum("bhj,bjhd->bhd", jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf)), values)


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1))
