"""CANN `platform_config/*.ini` files as chip YAML.

An ini holds sizes, counts, clock and port widths. Latencies, launch times and the like are
inherited (`extends:`) from the nearest shipped chip of the same generation.
"""

from __future__ import annotations

import configparser
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from npusim.chip.load import load_chip
from npusim.chip.units import BYTES, HERTZ, RATE
from npusim.errors import ChipError

_GENERATIONS = {
    "AIC-C-100": ("ascend910a", "ascend910-30c", "ascend910proa", "ascend910premiuma"),
    "AIC-M-100": ("ascend310",),
    "AIC-M-200": ("ascend310p3",),
    "AIC-C-220": ("ascend910b1", "ascend910b2", "ascend910b3", "ascend910b4"),
}
_ALIASES = {("Ascend910B", "AIC-C-100"): "ascend910-30c"}
"""SoC names that mean another chip than they seem to."""

_STALE = {"AIC-C-220"}
"""Generations whose memory rates and UB banks are a copy of the 910A's, not theirs."""

_COUNTS = {
    ("SoCInfo", "ai_core_cnt"): "cores.count",
    ("SoCInfo", "vector_core_cnt"): "cores.vector_count",
    ("SoCInfo", "ai_cpu_cnt"): "aicpu.count",
    ("SoCInfo", "max_stream_num"): "scheduler.max_streams",
    ("AICoreSpec", "cube_m_size"): "core.cube.m",
    ("AICoreSpec", "cube_n_size"): "core.cube.n",
    ("AICoreSpec", "vec_calc_size"): "core.vector.lanes.float16",
    ("AICoreSpec", "ubbank_num"): "core.ub.banks",
    ("AICoreSpec", "ubbank_group_num"): "core.ub.bank_groups",
}
_SIZES = {
    ("SoCInfo", "memory_size"): "hbm.size",
    ("SoCInfo", "l2_size"): "l2.size",
    ("AICoreSpec", "l0_a_size"): "core.l0a.size",
    ("AICoreSpec", "l0_b_size"): "core.l0b.size",
    ("AICoreSpec", "l0_c_size"): "core.l0c.size",
    ("AICoreSpec", "l1_size"): "core.l1.size",
    ("AICoreSpec", "ub_size"): "core.ub.size",
    ("AICoreSpec", "ubblock_size"): "core.ub.block",
}
_RATES = {
    "l2_read_rate": ("core.mte2.rate", "core.mte2.ub_rate"),
    "ub_to_l2_rate": ("core.mte3.rate",),
    "ub_to_l1_rate": ("core.mte3.l1_rate",),
    "l1_to_l0_a_rate": ("core.mte1.l0a_rate",),
    "l1_to_l0_b_rate": ("core.mte1.l0b_rate",),
    "l1_to_ub_rate": ("core.mte1.ub_rate",),
    "l0_c_to_ub_rate": ("core.vector.l0c_rate",),
}
_DTYPES = {"Default": "float16", "DT_INT8": "int8", "DT_UINT8": "uint8", "DT_FLOAT": "float32"}


def import_ini(path: str | Path) -> dict[str, Any]:
    """A CANN platform_config .ini as the tree of a chip YAML (see `dump_chip_yaml`).

    Raises:
        ChipError: when the file is not such an ini, or a value in it is no number.
    """
    path = Path(path)
    ini = _read(path)
    version, soc = ini["version"], ini["SoCInfo"]
    name = version.get("SoC_version") or path.stem
    generation = version.get("AIC_version") or ""
    split = "split" in (soc.get("cube_vector_combine") or "")
    stale = generation in _STALE
    tree: dict[str, Any] = {}

    def put(key: str, value: object, section: str, ini_key: str) -> None:
        *sections, last = key.split(".")
        node = tree
        for part in sections:
            node = node.setdefault(part, {})
        source = f"ini: [{section}] {ini_key}"
        node[last] = {"value": value, "grade": "documented", "source": source}

    def number(section: str, ini_key: str) -> int | None:
        text = ini.get(section, {}).get(ini_key)
        return _integer(text, path, f"[{section}] {ini_key}") if text else None

    clock = number("AICoreSpec", "cube_freq")
    if clock:
        put("clock", HERTZ.format(clock * 1_000_000), "AICoreSpec", "cube_freq")
    put("cores.split", split, "SoCInfo", "cube_vector_combine")
    for (section, ini_key), key in _COUNTS.items():
        value = number(section, ini_key)
        if value is not None and not (stale and ini_key == "ubbank_num"):
            put(key, value, section, ini_key)
    for (section, ini_key), key in _SIZES.items():
        if value := number(section, ini_key):
            put(key, BYTES.format(value), section, ini_key)
    if lanes := number("AICoreSpec", "vec_calc_size"):
        put("core.vector.repeat_bytes", BYTES.format(2 * lanes), "AICoreSpec", "vec_calc_size")
    for ini_key, dtype in _DTYPES.items():
        if mkn := ini.get("DtypeMKN", {}).get(ini_key):
            k = _integer(mkn.split(",")[mkn.count(",") // 2], path, f"[DtypeMKN] {ini_key}")
            put(f"core.cube.k.{dtype}", k, "DtypeMKN", ini_key)
    if not stale:
        for ini_key, keys in _RATES.items():
            value = number("AICoreMemoryRates", ini_key)
            if value and not (split and ini_key == "l0_c_to_ub_rate"):
                for key in keys:
                    put(key, RATE.format(value), "AICoreMemoryRates", ini_key)

    base, why = _nearest_chip(name, generation, split, clock or 0, number("SoCInfo", "ai_core_cnt"))
    skipped = " The ini's memory rates and UB banks are a stale 910A copy: not used." * stale
    return {
        "name": name.lower(),
        "description": f"{name}, from {path.name}. Not in the ini, hence inherited from {base}"
        f" ({why}): latencies, heads and tails, vector costs, efficiencies, bandwidths of L2 and"
        f" device memory, launch, host, links, energy.{skipped}",
        "extends": base,
        "references": {"ini": f"CANN platform_config {path.name}"},
        **tree,
    }


def dump_chip_yaml(chip: Mapping[str, Any]) -> str:
    """The YAML text of an imported chip, one leaf a line, its description as the head comment."""
    head = textwrap.wrap(str(chip.get("description", "")), 98)
    body = yaml.safe_dump(dict(chip), sort_keys=False, default_flow_style=None, width=10_000)
    return "".join(f"# {line}\n" for line in head) + body


def _read(path: Path) -> dict[str, dict[str, str | None]]:
    """Sections of the ini; ChipError when it cannot be one of CANN's."""
    parser = configparser.ConfigParser(strict=False, allow_no_value=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        problem = " ".join(str(error).split())
        raise ChipError(
            f"{path}: cannot be read as an ini: {problem}", "a CANN platform_config .ini file",
            "give the path of a file such as .../data/platform_config/Ascend910A.ini",
        ) from None  # fmt: skip
    sections: dict[str, dict[str, str | None]] = {
        name: dict(parser[name]) for name in parser.sections()
    }
    for section, key in (
        ("version", "SoC_version"),
        ("SoCInfo", "ai_core_cnt"),
        ("AICoreSpec", "cube_freq"),
    ):
        if not sections.get(section, {}).get(key):
            raise ChipError(
                f"{path}: [{section}] {key} is missing",
                "a CANN platform_config .ini with [version], [SoCInfo], [AICoreSpec]",
                f"add {key} to [{section}], or give another file",
            )  # fmt: skip
    return sections


def _integer(text: str, path: Path, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ChipError(
            f"{path}: {key} = {text!r} is not a whole number", "a whole number",
            f"correct {key}",
        ) from None  # fmt: skip


def _nearest_chip(
    name: str, generation: str, split: bool, clock: int, cores: int | None
) -> tuple[str, str]:
    """The shipped chip to inherit from, and why that one. `clock` in MHz."""
    known = _ALIASES.get((name, generation), name.lower())
    candidates = _GENERATIONS.get(generation)
    if candidates and known in candidates:
        return known, "the same chip"
    if candidates:
        why = f"the nearest shipped chip of its generation {generation}"
    else:
        candidates = _GENERATIONS["AIC-C-220" if split else "AIC-C-100"]
        why = f"no chip of generation {generation or 'unknown'} is shipped: read with care"

    def distance(candidate: str) -> float:
        chip = load_chip(candidate)
        return abs(chip.cores.count / (cores or 1) - 1) + abs(chip.clock / 1e6 / (clock or 1) - 1)

    return min(candidates, key=distance), why
