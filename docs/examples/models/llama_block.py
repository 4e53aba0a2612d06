"""Llama blocks for ``tune-model``: a prompt, then one token with a cache of keys and values.

Grouped heads, rotary positions, RMS norms and SwiGLU. With a GPU it has the sizes of Llama 3 8B.
"""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

GPU = torch.cuda.is_available()
LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, PROMPT = (2, 32, 8, 128, 14336, 2048) if GPU else (1, 2, 1, 32, 64, 24)
WIDTH = HEADS * HEAD_DIM


def rotated(x, start):
    """Rotates pairs of elements of [batch, heads, rows, head_dim] by an angle that grows with the position."""
    half = HEAD_DIM // 2
    speed = 500000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    """Attention with a cache, and a gated feed-forward network."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cache):
        batch, rows, _ = x.shape
        start = 0 if cache is None else cache[0].shape[2]
        y = self.norm_1(x)
        q = rotated(self.q(y).view(batch, rows, HEADS, HEAD_DIM).transpose(1, 2), start)
        k, v = self.kv(y).view(batch, rows, 2, KV_HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        k = rotated(k, start)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        o = scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).reshape(batch, rows, WIDTH))
        y = self.norm_2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y)), (k, v)


class Llama(nn.Module):
    """A prompt and one more token through all blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, prompt, token):
        caches = []
        for block in self.blocks:
            prompt, cache = block(prompt, None)
            caches.append(cache)
        for block, cache in zip(self.blocks, caches, strict=True):
            token, _ = block(token, cache)
        return prompt[:, -1:] + token


def build():
    """Returns the model and its inputs."""
    torch.manual_seed(0)
    where = {"device": "cuda" if GPU else "cpu", "dtype": torch.bfloat16}
    model = Llama().to(**where).eval()
    return model, (torch.randn(1, PROMPT, WIDTH, **where), torch.randn(1, 1, WIDTH, **where))
