"""Loading: extends, leaf forms, overrides, and every error in three lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.chip import Provenance, chip_rows, load_chip
from npusim.errors import ChipError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_extends_changes_a_few_keys(tmp_path: Path) -> None:
    write(tmp_path, "mid", "extends: ascend910a\ncore: {ub: {size: 128 KiB}}\n")
    path = write(tmp_path, "child", "extends: mid.yaml\nhbm: {bandwidth: 2 TB/s}\n")
    chip, base = load_chip(path), load_chip("ascend910a")
    assert (chip.name, chip.description) == ("child", "")
    assert chip.core.ub.size == 128 * 1024
    assert chip.hbm.bandwidth == 2e12
    assert chip.core.ub.banks == base.core.ub.banks
    assert chip.sources["core.ub.banks"] == base.sources["core.ub.banks"]
    assert "core.ub.size" not in chip.sources  # a plain value drops the inherited source


def test_extends_by_name_prefers_the_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "mine", "extends: ascend910a\nclock: 2 GHz\n")
    assert load_chip(write(tmp_path, "child", "extends: mine\n")).clock == 2e9


def test_a_leaf_form_covers_a_section_and_spells_its_tag_out(tmp_path: Path) -> None:
    text = (
        "extends: ascend910a\nreferences: {lab: Our lab}\n"
        "core: {vector: {costs: {exp: {value: {b16: 3, b32: 2}, grade: measured,"
        " source: 'lab: run 7'}}}}\n"
    )
    chip = load_chip(write(tmp_path, "c", text))
    assert chip.core.vector.costs["exp"].b16 == 3
    expected = Provenance(grade="measured", source="Our lab: run 7")
    assert chip.sources["core.vector.costs.exp.b32"] == expected


def test_null_takes_an_optional_section_away(tmp_path: Path) -> None:
    text = (
        "extends: ascend910b1\ncores: {split: false}\ncore: {fixp: null, vector: {l0c_rate: 256}}"
    )
    assert load_chip(write(tmp_path, "c", text)).core.fixp is None


def test_overrides() -> None:
    chip = load_chip(
        "ascend910a",
        [
            "hbm.bandwidth=2.4TB/s",
            "core.ub.size = 512KiB",
            "cores.count=8",
            "cores.count=16",
            "core.cube.k.bfloat16=16",
            "core.vector.dtypes=[float16]",
            "core.cube.odd_penalty=true",
            "core.vector.costs.exp={b16: 2, b32: 1}",
            "noc.rows=null",
        ],
    )
    assert chip.hbm.bandwidth == 2.4e12
    assert chip.core.ub.size == 512 * 1024
    assert chip.cores.count == 16
    assert chip.core.cube.k["bfloat16"] == 16
    assert chip.core.vector.dtypes == ["float16"]
    assert chip.core.cube.odd_penalty is True
    assert chip.core.vector.costs["exp"].b32 == 1
    assert chip.noc.rows is None
    user = {row.key for row in chip_rows(chip) if row.grade == "user"}
    assert {"hbm.bandwidth", "core.ub.size", "cores.count", "core.vector.costs.exp.b32"} <= user


def test_an_override_may_use_a_chip_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, "c", "extends: toy\n")
    assert load_chip(path, ["clock=2 GHz"]).clock == 2e9


def assert_three_lines(error: ChipError, *parts: str) -> None:
    """Three labelled lines that hold `parts`."""
    lines = str(error).splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "allowed", "fix"], lines
    assert all(len(line) > len("allowed: ") for line in lines), lines
    for part in parts:
        assert part in str(error), f"{part!r} not in {error}"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("core: {ub: {sise: 64 KiB}}", ["core.ub.sise", "did you mean core.ub.size?"]),
        ("ub: {size: 64 KiB}", ["ub.size", "did you mean core.ub.size?"]),
        ("hbm: {bandwidth: 1 GHz}", ["hbm.bandwidth", "'1 GHz'", "TB/s"]),
        ("hbm: {size: 64 GiBi}", ["hbm.size", "GiB"]),
        ("hbm: 3", ["hbm = 3", "size, bandwidth, efficiency, latency"]),
        ("hbm: [1, 2]", ["hbm = [1, 2]", "section"]),
        ("clock: {a: 1}", ["clock.a", "GHz", "did you mean clock?"]),
        ("clock: null", ["clock = None", "GHz"]),
        ("cores: {count: many}", ["cores.count = 'many'", "whole number"]),
        ("cores: {split: 7}", ["cores.split = 7", "true or false"]),
        ("core: {cube: {k: {float16: x}}}", ["core.cube.k.float16", "whole number"]),
        ("core: {vector: {dtypes: 5}}", ["core.vector.dtypes = 5", "list"]),
        ("core: {vector: {costs: {exp: {b64: 1}}}}", ["core.vector.costs.exp.b64", "b16, b32"]),
        ("core: {vector: {costs: {expo: {b16: 1}}}}", ["costs.expo", "did you mean", "exp?"]),
        ("core: {cube: {k: {fp16: 16}}}", ["core.cube.k.fp16", "float16"]),
        ("clock: {value: 1 GHz, grade: measurd, source: me}", ["clock.grade", "measured?"]),
        ("clock: {value: 1 GHz, grade: measured}", ["clock.source"]),
        ("clock: {value: 1 GHz, grade: user, sauce: me}", ["clock.sauce", "clock.source?"]),
        ("references: [a]", ["references"]),
        ("clock: 1 GHz\nclock: 2 GHz", [":3", "'clock' stands twice"]),
        ("clock: [1", ["not valid YAML"]),
        ("\tclock: 1", ["not valid YAML"]),
        ("sources: {clock: me}", ["sources"]),
        ("7: 8", ["unknown key 7"]),
        ("value: 8", ["unknown key value"]),
        ("null: 8", ["unknown key None"]),
        ("[1, 2]: 8", ["not valid YAML"]),
        ("{a: 1}: 8", ["not valid YAML"]),
        ("<<: 8", ["not valid YAML"]),
        ("clock: !!python/object:os.system 1", ["not valid YAML"]),
        ("clock: *x", ["not valid YAML"]),
        ("clock: 2001-01-01", ["clock = "]),
        ("clock: &a [*a]", ["clock"]),
        ("hbm: &a {bandwidth: *a}", ["hbm"]),
    ],
)
def test_bad_yaml(tmp_path: Path, body: str, parts: list[str]) -> None:
    path = write(tmp_path, "bad", f"extends: ascend910a\n{body}\n")
    with pytest.raises(ChipError) as error:
        load_chip(path)
    assert_three_lines(error.value, "bad.yaml", *parts)


@pytest.mark.parametrize("text", ["", "- a", "7", "just text"])
def test_not_a_chip(tmp_path: Path, text: str) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(write(tmp_path, "bad", text))
    assert_three_lines(error.value, "bad.yaml", "not a chip")


def test_missing_key(tmp_path: Path) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(write(tmp_path, "bad", "clock: 1 GHz\n"))
    assert_three_lines(error.value, "bad.yaml", "is missing", "extends")


def test_misspelt_key_wins_over_the_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(write(tmp_path, "bad", "clok: 1 GHz\n"))
    assert_three_lines(error.value, "clok", "did you mean clock?")


def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00clock")
    with pytest.raises(ChipError) as error:
        load_chip(path)
    assert_three_lines(error.value, "bad.yaml", "cannot be read")


def test_extends_cycle(tmp_path: Path) -> None:
    write(tmp_path, "a", "extends: b\n")
    write(tmp_path, "b", "extends: a\n")
    with pytest.raises(ChipError) as error:
        load_chip(tmp_path / "a.yaml")
    assert_three_lines(error.value, "a.yaml -> b.yaml -> a.yaml", "cycle")


@pytest.mark.parametrize("parent", ["nochip", "no/such.yaml", "[1]"])
def test_extends_nothing(tmp_path: Path, parent: str) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(write(tmp_path, "bad", f"extends: {parent}\n"))
    assert_three_lines(error.value)


def test_error_names_the_file_that_holds_the_value(tmp_path: Path) -> None:
    write(tmp_path, "parent", "extends: ascend910a\nhbm: {efficiency: 1.5}\n")
    with pytest.raises(ChipError) as error:
        load_chip(write(tmp_path, "child", "extends: parent\nclock: 2 GHz\n"))
    assert_three_lines(error.value, "parent.yaml: hbm.efficiency = 1.5")


@pytest.mark.parametrize(
    ("name", "fix"), [("ascend910", "ascend910"), ("ascned910a", "ascend910a"), ("x", ".yaml")]
)
def test_unknown_chip(name: str, fix: str) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(name)
    assert_three_lines(error.value, f"'{name}'", fix)


def test_names_ignore_case() -> None:
    assert load_chip("Ascend910A").name == "ascend910a"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("hbm.bandwith=2TB/s", ["hbm.bandwith", "did you mean hbm.bandwidth?"]),
        ("ub.size=2KiB", ["did you mean core.ub.size?"]),
        ("name.x=1", ["name.x"]),
        ("core.ub.size", ["core.ub.size=value"]),
        ("=3", ["key.path=value"]),
        ("core.ub.size=", ["key.path=value"]),
        ("core.ub.size=fast", ["core.ub.size = 'fast'", "KiB"]),
        ("core.ub.size=[1", ["core.ub.size = '[1'"]),
        ("hbm=3", ["hbm = 3: not a section", "bandwidth"]),
        ("core.cube.k=[1]", ["core.cube.k = [1]: not a section", "names"]),
        ("cores.count=true", ["cores.count = true", "whole number"]),
        ("core.cube.m=1.5", ["core.cube.m = 1.5", "whole number"]),
        ("core.cube.m=12", ["core.cube.m = 12", "8, 16, 32, 64", "fractals of 16"]),
        ("clock=.inf", ["clock = inf", "GHz"]),
    ],
)
def test_bad_override(override: str, parts: list[str]) -> None:
    with pytest.raises(ChipError) as error:
        load_chip("ascend910a", [override])
    assert_three_lines(error.value, f"--set {override}", *parts)


@pytest.mark.parametrize(
    ("chip", "override"),
    [
        ("ascend910a", "core.l0a.size=256 B"),
        ("ascend910a", "core.l0b.size=511 B"),
        ("ascend910a", "core.l0c.size=512 B"),
        ("ascend910a", "core.l1.size=256 B"),
        ("ascend910a", "core.ub.size=1000 B"),
        ("ascend910a", "core.ub.size=32 B"),
        ("ascend910a", "core.ub.banks=60"),
        ("ascend910a", "hbm.size=1 MiB"),
        ("ascend910a", "hbm.efficiency=0"),
        ("ascend910a", "l2.efficiency=1.2"),
        ("ascend910a", "hbm.efficiency=.nan"),
        ("ascend910a", "hbm.bandwidth=0"),
        ("ascend910a", "l2.bandwidth=-1 TB/s"),
        ("ascend910a", "clock=0"),
        ("ascend910a", "core.mte2.rate=0 B/cycle"),
        ("ascend910a", "core.mte2.burst=-1"),
        ("ascend910a", "core.mte2.head=-1"),
        ("ascend910a", "core.mte1.load3d_cycles=0"),
        ("ascend910a", "cores.count=0"),
        ("ascend910a", "cores.count=-3"),
        ("ascend910a", "cores.vector_count=-1"),
        ("ascend910a", "links.count=-1"),
        ("ascend910a", "core.cube.k.float16=0"),
        ("ascend910a", "core.vector.max_repeat=256"),
        ("ascend910a", "core.vector.max_repeat=0"),
        ("ascend910a", "core.vector.costs.exp.b16=0"),
        ("ascend910a", "core.vector.l0c_rate=null"),
        ("ascend910a", "core.scalar.queue_depth=0"),
        ("ascend910a", "scheduler.launch=-1 us"),
        ("ascend910a", "host.preprocessing.workers=0"),
        ("ascend910a", "dvpp.jpegd.channels=0"),
        ("ascend910a", "dvpp.vpc.channels=-1"),
        ("ascend910a", "dvpp.jpegd.rate=0 pixel/s"),
        ("ascend910b1", "cores.vector_count=0"),
        ("ascend910b1", "core.fixp=null"),
    ],
)
def test_impossible(chip: str, override: str) -> None:
    with pytest.raises(ChipError) as error:
        load_chip(chip, [override])
    key = override.partition("=")[0]
    assert_three_lines(error.value, f"--set {override}: {key}")


def test_vector_dtype_without_lanes() -> None:
    with pytest.raises(ChipError) as error:
        load_chip("ascend910a", ["core.vector.dtypes=[float16, uint8]"])
    assert_three_lines(error.value, "core.vector.lanes.uint8", "missing")


def test_split_without_fixp() -> None:
    with pytest.raises(ChipError) as error:
        load_chip("ascend910a", ["cores.split=true", "cores.vector_count=64"])
    assert_three_lines(error.value, "ascend910a.yaml: core.fixp", "FIXP")
