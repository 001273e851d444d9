"""Makes tests/data/resnet_torch_tiny.onnx: a small ResNet as torch's newer exporter leaves it.

Needs, in an environment of its own: pip install torch==2.13.0 onnx onnxscript numpy
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


class Block(nn.Module):
    """A basic block; a stride projects the shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(channels, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(branch + shortcut)."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


class ResNet(nn.Module):
    """A stem, two blocks and a classifier of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.blocks(self.pool(torch.relu(self.bn(self.stem(image))))))


def main() -> None:
    """Export the model next to this file."""
    torch.manual_seed(0)
    model = ResNet()
    with torch.no_grad():
        model(torch.randn(64, 3, 32, 32))  # in training mode: gives the statistics values
    torch.onnx.export(
        model.eval(),
        (torch.randn(2, 3, 32, 32),),
        str(Path(__file__).with_name("resnet_torch_tiny.onnx")),
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        external_data=False,
        dynamo=True,
    )


if __name__ == "__main__":
    main()
