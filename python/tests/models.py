"""Blocks of models in plain PyTorch, as people write them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class LlamaAttention(nn.Module):
    """Grouped queries, rotary embeddings, an additive mask."""

    def __init__(self, width: int = 32, heads: int = 4, shared: int = 2, head: int = 8) -> None:
        super().__init__()
        self.shared, self.head = shared, head
        self.q_proj = nn.Linear(width, heads * head, bias=False)
        self.k_proj = nn.Linear(width, heads // shared * head, bias=False)
        self.v_proj = nn.Linear(width, heads // shared * head, bias=False)
        self.o_proj = nn.Linear(heads * head, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (proj(x).view(b, t, -1, self.head).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (y[:, :, None].expand(b, y.shape[1], self.shared, t, self.head).reshape(b, -1, t, self.head) for y in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * self.head**-0.5 + mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj(torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(b, t, -1))


class GatedMLP(nn.Module):
    def __init__(self, width: int = 32, hidden: int = 48) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(), GatedMLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(32), RMSNorm(32)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaStack(nn.Module):
    """Deep enough that a walk over paths instead of nodes would not end."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(layers))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return x


class Experts(nn.Module):
    """A gated MLP of two experts of several, chosen for each row."""

    def __init__(self, width: int = 32, hidden: int = 24, experts: int = 5) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, width, 2 * hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(F.softmax(self.router(x), dim=-1, dtype=torch.float32), 2, dim=-1)
        scores = (scores / scores.sum(-1, keepdim=True)).to(x.dtype)
        weights = x.new_zeros(x.shape[0], self.down.shape[0]).scatter(1, chosen, scores)
        gate, up = torch.einsum("tm,emh->teh", x, self.gate_up).chunk(2, dim=-1)
        return torch.einsum("teh,ehm,te->tm", F.silu(gate) * up, self.down, weights)


class DecodingStep(nn.Module):
    """The next token of several sequences of their own lengths, whose keys and values are in caches."""

    def __init__(self, words: int = 20, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.positions, self.heads = nn.Embedding(words, width), nn.Embedding(16, width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, words, bias=False)

    def forward(self, token: Tensor, length: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = token.shape[0]
        x = self.embed(token) + self.positions(length)
        q, k, v = self.qkv(x).view(b, 3, self.heads, -1).unbind(1)
        rows = torch.arange(b)
        keys, values = keys.index_put((rows, length), k), values.index_put((rows, length), v)
        mask = torch.arange(keys.shape[1]) <= length[:, None]
        y = F.scaled_dot_product_attention(q[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask[:, None, None])
        return self.out(y.reshape(b, -1)), keys, values


class GPTAttention(nn.Module):
    """Three projections in one, and a mask in a buffer."""

    def __init__(self, width: int = 32, heads: int = 4, longest: int = 16) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.width = heads, width
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(self.width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        scores = scores.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        return self.c_proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class ViT(nn.Module):
    """Patches, a token for the class, PyTorch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


class Bottleneck(nn.Module):
    """Of a ResNet."""

    def __init__(self, channels: int = 16, inner: int = 8, stride: int = 2) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential(nn.Conv2d(channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class UNetUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(12, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return F.silu(self.norm(self.conv(torch.cat([x, skip], 1))))


def decays(log: Tensor) -> Tensor:
    """Of logarithms a[..., t], the products of exp(a) between two places: [..., t, s] is exp(a[s + 1] + … + a[t]), and 0 where s is behind t."""
    size = log.shape[-1]
    pairs = torch.ones(size, size, dtype=torch.bool, device=log.device)
    sums = log[..., :, None].expand(*log.shape, size).masked_fill(~pairs.tril(-1), 0).cumsum(-2)
    return sums.masked_fill(~pairs.tril(), float("-inf")).exp()


class Mamba2(nn.Module):
    """A state space of one decay a head, h[t] = exp(a[t]) h[t - 1] + b[t] x[t], y[t] = c[t] h[t], computed in chunks: products within a chunk, states at
    their ends, and what the states of earlier ones add."""

    def __init__(self, width: int = 16, heads: int = 4, head: int = 8, state: int = 6, groups: int = 2, chunk: int = 4, conv: int = 4) -> None:
        super().__init__()
        self.heads, self.head, self.state, self.groups, self.chunk = heads, head, state, groups, chunk
        inner = heads * head
        self.sizes = (inner, inner + 2 * groups * state, heads)
        self.in_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = nn.Conv1d(self.sizes[1], self.sizes[1], conv, groups=self.sizes[1], padding=conv - 1)
        self.dt_bias, self.a_log, self.d = nn.Parameter(torch.randn(heads)), nn.Parameter(torch.rand(heads)), nn.Parameter(torch.randn(heads))
        self.norm, self.out_proj = nn.Parameter(torch.rand(inner)), nn.Linear(inner, width, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        size = u.shape[1]
        gate, xbc, dt = self.in_proj(u).split(self.sizes, dim=-1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :size].transpose(1, 2))
        x, b, c = xbc.split([self.sizes[0], self.groups * self.state, self.groups * self.state], dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        x = x.unflatten(-1, (self.heads, self.head))
        b, c = (y.unflatten(-1, (self.groups, self.state)).repeat_interleave(self.heads // self.groups, dim=2) for y in (b, c))
        y = self.scanned(x * dt[..., None], -self.a_log.exp() * dt, b, c) + self.d[:, None] * x
        y = y.flatten(2) * F.silu(gate)
        return self.out_proj(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm)

    def scanned(self, x: Tensor, log: Tensor, b: Tensor, c: Tensor) -> Tensor:
        x, log, b, c = (y.unflatten(1, (-1, self.chunk)) for y in (x, log, b, c))
        log = log.permute(0, 3, 1, 2)  # batch, head, chunk, place
        sums = log.cumsum(-1)
        within = torch.einsum("bktHn,bksHn,bHkts,bksHp->bktHp", c, b, decays(log), x)
        states = torch.einsum("bksHn,bHks,bksHp->bkHpn", b, (sums[..., -1:] - sums).exp(), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        states = torch.einsum("bHzk,bkHpn->bzHpn", decays(F.pad(sums[..., -1], (1, 0))), states)[:, :-1]
        across = torch.einsum("bktHn,bkHpn,bHkt->bktHp", c, states, sums.exp())
        return (within + across).flatten(1, 2)
