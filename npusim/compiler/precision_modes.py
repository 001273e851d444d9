"""Precision modes: CANN's `--precision_mode` values and npusim's short names for three of them.

Source: CANN's atc and aoe manuals, `--precision_mode` and `--modify_mixlist`. Where they differ:
* allow_fp32_to_fp16 keeps fp32 where the operator has it (6.0); later manuals say so of vector
  operators only, and put matrix products into fp16 on every chip (8.0).
* must_keep_origin_dtype, and a black operator, that the AI Core has no fp32 kernel for go to the
  AI CPU there; matrix products run on the vector unit here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError, nearest
from npusim.ir import DType


class Rule(Enum):
    """What decides the type of an operator that the model has in fp32."""

    KEEP = "the model's"
    FORCE = "narrow where a kernel takes it"
    ALLOW = "fp32 where a kernel takes it, else narrow"
    MIX = "white narrow, black fp32, gray as its inputs"


@dataclass(frozen=True)
class PrecisionMode:
    """How float32 tensors are stored and computed with.

    Attributes:
        name: how reports call it: the short name where there is one.
        narrow: the type that the rule may put in float32's place (float32 for KEEP).
    """

    name: str
    rule: Rule
    narrow: DType

    @property
    def cann_name(self) -> str:
        """CANN's name of it; npusim's where CANN has none."""
        return next((name for name, m in MODES.items() if m is self), self.name)

    @property
    def label(self) -> str:
        """Its rule and type in a word or two: "keep", "mix fp16"."""
        types = {DType.FLOAT32: "", DType.FLOAT16: " fp16", DType.BFLOAT16: " bf16"}
        return self.rule.name.lower() + types[self.narrow]

    @property
    def is_short(self) -> bool:
        """One of `--precision`, not only of `--precision-mode`."""
        return self.name in SHORT


_FP16, _BF16 = DType.FLOAT16, DType.BFLOAT16
_KEEP = PrecisionMode("fp32", Rule.KEEP, DType.FLOAT32)
_FORCE_FP16 = PrecisionMode("fp16", Rule.FORCE, _FP16)
_MIX_FP16 = PrecisionMode("allow_mix_precision", Rule.MIX, _FP16)

#: `--precision`: CANN's must_keep_origin_dtype, force_fp16, and what force_bf16 would be.
SHORT = {"fp32": _KEEP, "fp16": _FORCE_FP16, "bf16": PrecisionMode("bf16", Rule.FORCE, _BF16)}

#: `--precision-mode`, from the widest to the narrowest.
MODES = {
    "must_keep_origin_dtype": _KEEP,
    "allow_fp32_to_bf16": PrecisionMode("allow_fp32_to_bf16", Rule.ALLOW, _BF16),
    "allow_fp32_to_fp16": PrecisionMode("allow_fp32_to_fp16", Rule.ALLOW, _FP16),
    "allow_mix_precision_bf16": PrecisionMode("allow_mix_precision_bf16", Rule.MIX, _BF16),
    "allow_mix_precision": _MIX_FP16,
    "allow_mix_precision_fp16": _MIX_FP16,
    "force_fp16": _FORCE_FP16,
}


def mode_named(name: str) -> PrecisionMode:
    """The mode of a short name or of CANN's name.

    Raises:
        UnsupportedError: there is none.
    """
    found = {**SHORT, **MODES}.get(name)
    if found is None:
        near = nearest(name, MODES)
        raise UnsupportedError(
            f"precision {name!r}",
            ", ".join([*SHORT, *MODES]),
            f"did you mean {near}?" if near else "use --precision fp16",
        )
    return found


def modes_of(chip: ChipSpec) -> list[PrecisionMode]:
    """The modes that a chip's cube has the type for, the widest first, each once."""
    every = [*MODES.values(), SHORT["bf16"]]
    return list(dict.fromkeys(m for m in every if not missing(m, chip)))


def missing(mode: PrecisionMode, chip: ChipSpec) -> bool:
    """True when the cube lacks the mode's narrow type. Without fp32 the vector unit computes."""
    return mode.narrow is not DType.FLOAT32 and mode.narrow.value not in chip.core.cube.k


def check_mode(mode: PrecisionMode, chip: ChipSpec) -> None:
    """Check that the chip can do the mode.

    Raises:
        UnsupportedError: its cube has no such type.
    """
    if not missing(mode, chip):
        return
    can = modes_of(chip)
    if mode.is_short:
        usable = [name for name in ("fp16", "bf16", "fp32") if SHORT[name] in can]
        option = f"--precision {usable[0]}"
    else:
        usable = [name for name, m in MODES.items() if m in can]
        same = [name for name in usable if MODES[name].rule is mode.rule]
        option = f"--precision-mode {(same or usable)[0]}"
    raise UnsupportedError(
        f"precision {mode.name} on {chip.name}: the cube takes " + ", ".join(chip.core.cube.k),
        ", ".join(usable),
        f"use {option}, or another chip",
    )
