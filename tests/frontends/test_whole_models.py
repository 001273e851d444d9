"""Published throughputs of whole models."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.data import data_dir
from npusim.errors import ModelError
from npusim.frontends.recorded.whole_models import is_model_table, read_models

HEADER = "model,device,precision,batch,seq,metric,value,unit,source,n_devices\n"
GOOD = "bert_large_NER,Ascend310P3,fp16 (ATC default),4,512,inference throughput,70.7,samples/s,x,1"


def read(tmp_path: Path, *lines: str) -> tuple[int, int]:
    file = tmp_path / "models.csv"
    file.write_text(HEADER + "\n".join(lines))
    assert is_model_table(file)
    found, left_out = read_models(tmp_path)
    return len(found), left_out


def test_a_figure(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == (1, 0)
    (figure,), _ = read_models(tmp_path / "models.csv")
    assert (figure.model, figure.sizes) == ("bert-large", (("seq", 512),))
    assert (figure.chip, figure.batch) == ("ascend310p3", 4)
    assert figure.samples_per_s == 70.7 and figure.source == "x"
    assert not figure.small_channel


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bert_large_NER", "GPT9"),
        ("Ascend310P3", "Ascend910 (8p)"),
        ("fp16 (ATC default)", "int8"),
        ("inference throughput", "train throughput"),
        (",x,1", ",x,8"),
    ],
)
def test_others_are_left_out(tmp_path: Path, old: str, new: str) -> None:
    assert read(tmp_path, GOOD, GOOD.replace(old, new)) == (1, 1)


@pytest.mark.parametrize(("old", "new"), [(",4,", ",0,"), (",4,", ",1.5,"), ("70.7", "")])
def test_bad_numbers_are_errors(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ModelError, match="line 2"):
        read(tmp_path, GOOD.replace(old, new))


def test_the_shipped_figures() -> None:
    found, left_out = read_models(data_dir("configs/validation"))
    assert len(found) == 17 and not left_out
    assert all(f.source for f in found)
    by_option = {f.model: f.small_channel for f in found}
    assert by_option["resnet18"] and not by_option["bert-large"]
