"""A vision transformer for ``tune-model``: patches of an image, encoder blocks, logits.

With a GPU it is a ViT-B/16 on 16 images of 224 pixels; without one, one small block that the emulator can check.
"""

import torch
from torch import nn

GPU = torch.cuda.is_available()
BATCH, IMAGE, PATCH, LAYERS, HEADS, WIDTH = (16, 224, 16, 12, 12, 768) if GPU else (1, 64, 16, 1, 2, 64)


class Block(nn.Module):
    """Pre-norm attention and feed-forward network, with residual connections."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(o.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp(self.norm_2(x))


class VisionTransformer(nn.Module):
    """Patch embedding, class token, positions, blocks and a linear classifier."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def build():
    """Returns the model and its inputs."""
    torch.manual_seed(0)
    where = {"device": "cuda" if GPU else "cpu", "dtype": torch.float16}
    return VisionTransformer().to(**where).eval(), (torch.randn(BATCH, 3, IMAGE, IMAGE, **where),)
