"""CANN platform_config .ini import."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.chip import ChipSpec, dump_chip_yaml, import_ini, list_chips, load_chip
from npusim.chip.source import chip_path, read_leaves
from npusim.errors import ChipError

INI = Path(__file__).with_name("ascend910a.ini")


def imported(ini: Path, folder: Path) -> ChipSpec:
    path = folder / "imported.yaml"
    path.write_text(dump_chip_yaml(import_ini(ini)), encoding="utf-8")
    return load_chip(path)


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    text = INI.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "changed.ini"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_910a_ini_gives_the_shipped_910a(tmp_path: Path) -> None:
    chip, shipped = imported(INI, tmp_path), load_chip("ascend910a")
    ignored = {"name", "description", "sources"}
    assert chip.model_dump(exclude=ignored) == shipped.model_dump(exclude=ignored)


def test_what_the_ini_has_is_documented_by_it(tmp_path: Path) -> None:
    chip = imported(INI, tmp_path)
    from_ini = {k for k, p in chip.sources.items() if "ascend910a.ini: [" in p.source}
    assert {"clock", "core.ub.size", "core.mte2.rate", "core.cube.k.int8", "l2.size"} <= from_ini
    assert all(chip.sources[key].grade == "documented" for key in from_ini)
    source = chip.sources["core.l0a.size"].source
    assert source == "CANN platform_config ascend910a.ini: [AICoreSpec] l0_a_size"
    assert chip.sources["hbm.size"].grade == "assumed"  # blank in the ini: inherited


def test_the_yaml_says_what_is_inherited_and_from_where() -> None:
    text = dump_chip_yaml(import_ini(INI))
    assert text.startswith("# Ascend910A, from ascend910a.ini. Not in the ini, hence inherited")
    assert "extends: ascend910a\n" in text


def test_the_digitless_910b_is_the_30_core_part(tmp_path: Path) -> None:
    ini = changed(
        tmp_path,
        ("SoC_version=Ascend910A", "SoC_version=Ascend910B"),
        ("ai_core_cnt=32", "ai_core_cnt=30"),
        ("cube_freq=1000", "cube_freq=900"),
    )
    tree = import_ini(ini)
    assert (tree["name"], tree["extends"]) == ("ascend910b", "ascend910-30c")


def test_nearest_chip_of_the_generation(tmp_path: Path) -> None:
    ini = changed(
        tmp_path, ("SoC_version=Ascend910A", "SoC_version=Ascend910X"), ("freq=1000", "freq=1200")
    )
    assert import_ini(ini)["extends"] == "ascend910premiuma"


def test_split_chip_does_not_take_stale_rates(tmp_path: Path) -> None:
    ini = changed(
        tmp_path,
        ("SoC_version=Ascend910A", "SoC_version=Ascend910B2"),
        ("AIC-C-100", "AIC-C-220"),
        ("ai_core_cnt=32", "ai_core_cnt=24\ncube_vector_combine=split"),
        ("vector_core_cnt=0", "vector_core_cnt=48"),
        ("cube_freq=1000", "cube_freq=1800"),
        ("ub_size=262144", "ub_size=196608"),
    )
    chip, shipped = imported(ini, tmp_path), load_chip("ascend910b2")
    assert chip.cores == shipped.cores
    assert chip.core.mte1 == shipped.core.mte1
    assert chip.core.ub == shipped.core.ub
    assert "stale" in dump_chip_yaml(import_ini(ini))


def test_unknown_generation_says_so(tmp_path: Path) -> None:
    tree = import_ini(changed(tmp_path, ("AIC-C-100", "AIC-C-999")))
    assert "read with care" in tree["description"]


@pytest.mark.parametrize("name", list_chips())
def test_dump_round_trips_a_tree(name: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(dump_chip_yaml({"extends": name, "clock": "3 GHz"}), encoding="utf-8")
    assert load_chip(path).clock == 3e9
    assert read_leaves(path).keys() | {"description"} == read_leaves(chip_path(name)).keys()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ([("cube_freq=1000", "cube_freq=fast")], "[AICoreSpec] cube_freq = 'fast'"),
        ([("DT_INT8=16,32,16", "DT_INT8=16,x,16")], "[DtypeMKN] DT_INT8 = 'x'"),
        ([("cube_freq=1000\n", "")], "[AICoreSpec] cube_freq is missing"),
        ([("[version]", "version")], "cannot be read as an ini"),
    ],
)
def test_bad_ini(tmp_path: Path, changes: list[tuple[str, str]], part: str) -> None:
    with pytest.raises(ChipError) as error:
        import_ini(changed(tmp_path, *changes))
    assert len(str(error.value).splitlines()) == 3
    assert part in str(error.value)


def test_no_such_ini(tmp_path: Path) -> None:
    with pytest.raises(ChipError):
        import_ini(tmp_path / "none.ini")
