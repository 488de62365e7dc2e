"""ResNet-18, with the key names of torchvision's checkpoints."""

from typing import ClassVar, Literal

from torch import Tensor, nn

from feddle.models.pretrained import ImageNetOptions
from feddle.training.kernels import convolution


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        strided = nn.Conv2d(width, out, 3, stride=stride, padding=1, bias=False) if stride != 1 else None
        self.conv1 = strided or convolution(width, out, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = convolution(out, out, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        shortcut = (nn.Conv2d(width, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        self.downsample = nn.Sequential(*shortcut) if stride != 1 or width != out else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (n, width, H, W) to (n, out, H/stride, W/stride)."""
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        hidden = self.bn1(self.conv1(inputs)).relu_()
        outputs: Tensor = self.bn2(self.conv2(hidden)).add_(shortcut).relu_()
        return outputs


class ResNet18(nn.Module):
    """Eighteen layers in four stages, for images of any size from 32 up; `inputs` prepares them."""

    def __init__(self, classes: int, *, in_channels: int = 3, inputs: nn.Module | None = None) -> None:
        super().__init__()
        self.inputs = inputs or nn.Identity()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        features = self.maxpool(self.bn1(self.conv1(self.inputs(images))).relu_())
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(features.mean((2, 3)))
        return logits


class ResNet18Options(ImageNetOptions):
    """ResNet-18; every layer is trained."""

    network: ClassVar = ResNet18
    head: ClassVar = "fc"

    name: Literal["resnet18"] = "resnet18"
