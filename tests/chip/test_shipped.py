"""The shipped chips: they load, every value has a source, the published figures come out."""

from __future__ import annotations

import pytest

from npusim.chip import chip_rows, list_chips, load_chip
from npusim.chip.checks import VECTOR_CLASSES
from npusim.chip.source import GRADES, chip_path, read_leaves

CHIPS = list_chips()


def test_chips_of_the_brief() -> None:
    v100 = {"ascend910a", "ascend910proa", "ascend910premiuma", "ascend910-30c"}
    a2 = {"ascend910b1", "ascend910b2", "ascend910b3", "ascend910b4"}
    assert v100 | a2 | {"ascend310", "ascend310p3", "toy"} <= set(CHIPS)


@pytest.mark.parametrize("name", CHIPS)
def test_every_value_has_a_source_and_a_grade(name: str) -> None:
    chip = load_chip(name)
    assert chip.name == name
    for row in chip_rows(chip):
        if row.key not in ("name", "description"):
            assert row.grade in set(GRADES) - {"user"}, row
            assert len(row.source) > 5, row


@pytest.mark.parametrize("name", CHIPS)
def test_every_source_names_a_reference(name: str) -> None:
    """No source tag is left unresolved: each source starts with a known reference text."""
    for key, leaf in read_leaves(chip_path(name)).items():
        if leaf.provenance:
            tag = leaf.provenance.source.partition(":")[0]
            assert " " in tag, f"{key}: source tag '{tag}' is in no references:"


@pytest.mark.parametrize("name", CHIPS)
def test_all_vector_classes_are_there(name: str) -> None:
    assert set(load_chip(name).core.vector.costs) == set(VECTOR_CLASSES)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("ascend910a", 262.1),
        ("ascend910-30c", 221.2),
        ("ascend910proa", 288.4),
        ("ascend910premiuma", 319.8),
        ("ascend910b1", 363.7),
        ("ascend910b2", 353.9),
        ("ascend910b3", 294.9),
        ("ascend910b4", 270.3),
        ("ascend310", 11.1),
        ("ascend310p3", 69.5),
    ],
)
def test_peak_fp16(name: str, tflops: float) -> None:
    assert load_chip(name).cube_flops("float16") / 1e12 == pytest.approx(tflops, abs=0.05)


def test_first_generation_is_unified_and_a2_is_split() -> None:
    a, b = load_chip("ascend910a"), load_chip("ascend910b2")
    assert not a.cores.split and a.core.fixp is None and a.vector_cores() == 32
    assert b.cores.split and b.core.fixp is not None and b.vector_cores() == 48
    assert a.cube_flops("bfloat16") == 0 < b.cube_flops("bfloat16")
    assert b.cube_flops("float32") == b.cube_flops("float16") / 4


def test_tiny_kernel_takes_what_was_measured() -> None:
    """One load, one vector instruction, one store: 1.24 to 1.6 us at 1 block, 3.2 us at 30."""
    chip = load_chip("ascend910-30c")
    core = chip.core
    cycles = core.mte2.head + chip.l2.read_latency + chip.hbm.latency
    cycles += core.vector.head + 2 + core.vector.tail + core.mte3.head + chip.l2.write_latency
    for blocks, expected in ((1, 1.3e-6), (30, 3.3e-6)):
        time = chip.scheduler.launch + blocks * chip.scheduler.per_block + chip.seconds(cycles)
        assert time == pytest.approx(expected, rel=0.03)


def test_rows_are_human() -> None:
    rows = {row.key: row for row in chip_rows(load_chip("ascend910a", ["cores.count=16"]))}
    assert rows["core.ub.size"].value == "256 KiB"
    assert rows["hbm.bandwidth"].value == "1.2 TB/s"
    assert rows["core.mte1.l0a_rate"].value == "512 B/cycle"
    assert rows["cores.count"].grade == "user"
