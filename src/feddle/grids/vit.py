"""ViT-B/16 with low-rank adapters, for the paper's cost table. It has the right shapes and random weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, PATCH, IMAGE, LAYERS = 768, 12, 16, 224, 12
RANK, SCALE = 4, 8.0


class Adapted(nn.Module):
    """A frozen linear layer plus the product of two small trainable matrices."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (…, inputs) to (…, outputs)."""
        outputs: Tensor = self.frozen(inputs) + SCALE / RANK * self.up(self.down(inputs))
        return outputs


class Block(nn.Module):
    """Attention and two wider layers, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH).requires_grad_(False) for _ in range(2))
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, t, WIDTH) to tokens of the same shape."""
        count, length, _ = tokens.shape
        packed = self.qkv(self.norm1(tokens)).view(count, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(count, length, WIDTH)
        tokens = tokens + self.out(mixed)
        outputs: Tensor = tokens + self.narrow(F.gelu(self.wide(self.norm2(tokens))))
        return outputs


class ViT(nn.Module):
    """Images as 16×16 patches through `layers` blocks; adapters in every linear layer, a trainable head."""

    def __init__(self, classes: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH).requires_grad_(False)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH), requires_grad=False)
        self.places = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, WIDTH), requires_grad=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, 224, 224) to logits (n, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
