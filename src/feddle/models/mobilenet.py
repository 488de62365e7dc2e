"""MobileNetV2, with the key names of torchvision's checkpoints."""

from typing import ClassVar, Literal

from torch import Tensor, nn

from feddle.models.pretrained import ImageNetOptions

# expansion, channels, blocks, stride of the first block
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_FIRST, _LAST = 32, 1280


class InvertedResidual(nn.Module):
    """Widen, filter each channel separately, narrow again; with a shortcut where the shapes match."""

    def __init__(self, width: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = width * expansion
        widen = [] if expansion == 1 else [_convolution(width, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            _convolution(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = stride == 1 and width == out

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (n, width, H, W) to (n, out, H/stride, W/stride)."""
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.shortcut else outputs


class MobileNetV2(nn.Module):
    """Seventeen inverted residuals, for images of any size from 32 up; `inputs` prepares them."""

    def __init__(self, classes: int, *, in_channels: int = 3, inputs: nn.Module | None = None) -> None:
        super().__init__()
        self.inputs = inputs or nn.Identity()
        layers: list[nn.Module] = [_convolution(in_channels, _FIRST, 3, stride=2)]
        width = _FIRST
        for expansion, out, blocks, stride in _STAGES:
            for i in range(blocks):
                layers.append(InvertedResidual(width, out, stride if i == 0 else 1, expansion))
                width = out
        self.features = nn.Sequential(*layers, _convolution(width, _LAST, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(_LAST, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        logits: Tensor = self.classifier(self.features(self.inputs(images)).mean((2, 3)))
        return logits


def _convolution(width: int, out: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(width, out, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


class MobileNetV2Options(ImageNetOptions):
    """MobileNetV2, for small devices; every layer is trained."""

    network: ClassVar = MobileNetV2
    head: ClassVar = "classifier"

    name: Literal["mobilenet-v2"] = "mobilenet-v2"
