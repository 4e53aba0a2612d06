"""torch's own ``TransformerEncoder`` for ``tune-model``: the sizes of BERT-base with a GPU, one small layer without."""

import torch
from torch import nn

GPU = torch.cuda.is_available()
BATCH, TOKENS, LAYERS, HEADS, WIDTH = (8, 384, 12, 12, 768) if GPU else (1, 24, 1, 2, 64)


def build():
    """Returns the model and its inputs."""
    torch.manual_seed(0)
    where = {"device": "cuda" if GPU else "cpu", "dtype": torch.float16}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return model.to(**where).eval(), (torch.randn(BATCH, TOKENS, WIDTH, **where),)
