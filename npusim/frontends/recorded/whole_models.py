"""Published throughputs of whole models, of those that npusim can build itself."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontends.recorded.cells import Line
from npusim.frontends.recorded.devices import chip_of

_COLUMNS = {"model", "device", "precision", "batch", "metric", "value"}
_THROUGHPUT = "inference throughput"  #: samples/s
_FP16 = "fp16"  #: ATC's default precision
#: Published with an ATC command that has `--enable_small_channel=1`.
_SMALL_CHANNEL = frozenset({"Resnet101_Pytorch_Infer", "Resnet18_for_PyTorch"})

#: Published name → built-in model and its sizes, as the source's ATC command has them
#: (`--input_shape`; the ResNets' input of 256 × 256 bytes is cropped to 224 × 224 by AIPP).
_MODELS: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "Bert_Base_Uncased_for_Pytorch": ("bert-base", (("seq", 512),)),
    "bert_large_NER": ("bert-large", (("seq", 512),)),
    "GPT2_for_Pytorch": ("gpt2-small", (("seq", 512),)),
    "InceptionV3_for_Pytorch": ("inceptionv3", ()),
    "MobileNetV2_for_Pytorch": ("mobilenetv2", ()),
    "Resnet101_Pytorch_Infer": ("resnet101", ()),
    "Resnet18_for_PyTorch": ("resnet18", ()),
    "VGG16": ("vgg16", ()),
}


@dataclass(frozen=True)
class RecordedModel:
    """A model's measured throughput. It includes the host: copies, framework, pre-processing.

    Attributes:
        name: as published; chip: the shipped chip.
        model, sizes: the built-in model, and its options.
        samples_per_s: of one chip.
        small_channel: whether ATC was asked for it (`--enable_small_channel=1`).
    """

    name: str
    chip: str
    model: str
    sizes: tuple[tuple[str, int], ...]
    batch: int
    samples_per_s: float
    source: str
    small_channel: bool = False


def is_model_table(path: Path) -> bool:
    """Whether a CSV file has the columns of whole-model figures."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return set(next(csv.reader(file), [])) >= _COLUMNS
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_models(path: Path) -> tuple[list[RecordedModel], int]:
    """The figures of a file, or of all tables in a folder, that npusim can be held against.

    Returns:
        the figures (fp16 inference of built-in models on shipped chips), and how many rows are
        left out.

    Raises:
        ModelError: a batch or a throughput that is no number.
    """
    files = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
    found: list[RecordedModel] = []
    left_out = 0
    for table in filter(is_model_table, files):
        for line in _lines(table):
            figure = _figure(line)
            if figure is None:
                left_out += 1
            else:
                found.append(figure)
    return found, left_out


def _lines(path: Path) -> list[Line]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            return [Line(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise ModelError(
            f"cannot read {path}: {why}", "a table of whole-model figures", "check the file"
        ) from None


def _figure(line: Line) -> RecordedModel | None:
    name, chip = line.text("model"), chip_of(line.text("device"))
    wanted = line.text("metric") == _THROUGHPUT and line.text("precision").startswith(_FP16)
    if name not in _MODELS or not chip or not wanted or line.text("n_devices") not in ("", "1"):
        return None
    model, sizes = _MODELS[name]
    batch, value = line.number_of("batch"), line.number_of("value")
    if batch < 1 or batch != int(batch) or not value:
        raise line.error(
            f"batch {line.text('batch')!r}, value {line.text('value')!r}",
            "a whole number of samples, and samples/s above 0",
        )
    return RecordedModel(
        name, chip, model, sizes, int(batch), value, line.text("source"), name in _SMALL_CHANNEL
    )
