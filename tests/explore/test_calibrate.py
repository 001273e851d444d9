"""Calibration finds constants that made the data, and refuses what it cannot fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npusim.chip import load_chip
from npusim.cli import main
from npusim.errors import ChipError, UnsupportedError
from npusim.explore.calibrate import calibrate, calibrated_yaml, key_value
from npusim.explore.replay import replay
from npusim.frontends.recorded import RecordedOp, read_profile

CHIP = "ascend910-30c"
TRUTH = {"scheduler.launch": 1.5e-6, "hbm.bandwidth": 0.6e12}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Times that a chip with the true constants would record."""
    rows = ["net,op_type,block_dim,inputs,outputs,count,median_us"]
    for i, m in enumerate((2, 64, 4096, 32768)):  # from launch-bound to HBM-bound
        shapes = f'"ND:fp32:{m},512;ND:fp32:{m},512","ND:fp32:{m},512"'
        rows.append(f"n{i},Add,0,{shapes},1,1.0")
    path = tmp_path / "profile.csv"
    path.write_text("\n".join(rows) + "\n")
    chip = load_chip(CHIP, [f"{key}={value}" for key, value in TRUTH.items()])
    for row in replay(read_profile(path), chip).rows:
        line = int(row.op.net[1:]) + 1
        rows[line] = rows[line].removesuffix("1.0") + repr(row.predicted_us)
    path.write_text("\n".join(rows) + "\n")
    return path


def test_finds_what_made_the_data(profile: Path, tmp_path: Path, capsys) -> None:
    ops = read_profile(profile)
    found = calibrate(ops, CHIP, list(TRUTH))
    assert found.error_after < 0.01 < 0.1 < found.error_before
    for key in found.keys:
        assert key.new == pytest.approx(TRUTH[key.key], rel=0.05)
    launch, bandwidth = found.keys
    assert launch.sensitivity > 0 > bandwidth.sensitivity
    target = tmp_path / "fitted.yaml"
    target.write_text(calibrated_yaml(found, CHIP, "profile.csv"))
    chip = load_chip(target)
    assert key_value(chip, "hbm.bandwidth") == pytest.approx(bandwidth.new)
    assert "least squares over 4 rows of profile.csv" in chip.sources["hbm.bandwidth"].source
    other = tmp_path / "one.yaml"
    line = f"calibrate --data {profile} --free scheduler.launch --types Add -o {other}"
    assert main(line.split()) == 0
    assert "scheduler.launch" in capsys.readouterr().out
    assert load_chip(other).name == f"{CHIP}-fitted"


@pytest.mark.parametrize("key", ["cores.count", "no.such", "name"])
def test_refuses_what_is_no_smooth_number(profile: Path, key: str) -> None:
    with pytest.raises(ChipError, match="--free"):
        calibrate(read_profile(profile), CHIP, [key])


def test_refuses_a_profile_that_cannot_be_replayed(profile: Path) -> None:
    ops: list[RecordedOp] = [replace(op, op_type="NoSuchOp") for op in read_profile(profile)]
    with pytest.raises(UnsupportedError, match="no row"):
        calibrate(ops, CHIP, ["scheduler.launch"])
