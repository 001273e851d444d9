"""Proxies for area and cost: linear in what a chip has, from configs/proxies.yaml.

They rank designs and price trade-offs; they are no floorplan. The fixed part is chosen so that the
Ascend 910 comes out at its published die size.
"""

from __future__ import annotations

import math
from functools import lru_cache

import yaml
from pydantic import BaseModel, ConfigDict

from npusim.chip.spec import ChipSpec
from npusim.data import data_dir

_MIB = 2**20


class Graded(BaseModel):
    """A number with its grade and source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    grade: str
    source: str


class Proxies(BaseModel):
    """The coefficients; mm² at 7 nm, US dollars."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mm2_per_mac: Graded
    mm2_per_lane: Graded
    mm2_per_scalar: Graded
    mm2_per_mib_sram: Graded
    mm2_per_hbm_tbps: Graded
    mm2_fixed: Graded
    usd_per_wafer: Graded
    wafer_mm: Graded
    defects_per_cm2: Graded
    usd_per_hbm_gib: Graded


@lru_cache(maxsize=1)
def proxies() -> Proxies:
    """The shipped coefficients."""
    text = (data_dir("configs") / "proxies.yaml").read_text(encoding="utf-8")
    return Proxies.model_validate(yaml.safe_load(text))


def area_of(chip: ChipSpec) -> float:
    """Area proxy of a die in mm²: cubes, vector units, scalar units, SRAM, HBM PHYs, the rest."""
    p, core = proxies(), chip.core
    macs = core.cube.m * core.cube.n * core.cube.k.get("float16", 0) * chip.cores.count
    vectors = chip.vector_cores()
    lanes = core.vector.lanes.get("float16", 0) * vectors
    scalars = chip.cores.count + (vectors if chip.cores.split else 0)
    cube_side = core.l0a.size + core.l0b.size + core.l0c.size + core.l1.size
    sram = cube_side * chip.cores.count + core.ub.size * vectors + chip.l2.size
    return (
        macs * p.mm2_per_mac.value
        + lanes * p.mm2_per_lane.value
        + scalars * p.mm2_per_scalar.value
        + sram / _MIB * p.mm2_per_mib_sram.value
        + chip.hbm.bandwidth / 1e12 * p.mm2_per_hbm_tbps.value
        + p.mm2_fixed.value
    )


def cost_of(chip: ChipSpec) -> float:
    """Cost proxy in US dollars: a good die of a wafer (Poisson yield), and the HBM."""
    p, area = proxies(), area_of(chip)
    wafer = math.pi * (p.wafer_mm.value / 2) ** 2
    edge = math.pi * p.wafer_mm.value / math.sqrt(2 * area)
    dies = max(1.0, wafer / area - edge)
    good = math.exp(-p.defects_per_cm2.value * area / 100)
    return p.usd_per_wafer.value / (dies * good) + chip.hbm.size / 2**30 * p.usd_per_hbm_gib.value
