"""Operators of a profile that npusim does not model, each with the reason that reports give."""

from __future__ import annotations

from npusim.errors import UnsupportedError
from npusim.explore.replay.launches import Launch, replays
from npusim.frontends.recorded import RecordedOp

_DSA = "runs on the DSA unit (random bits), which npusim does not model"
_PHILOX = "draws by Philox, whose 32 bit integer products npusim's vector unit does not have"
_SORT = "sorts by vbitsort and vmrgsort, which npusim's vector unit does not have"

REASONS = {
    "DSAGenBitMask": _DSA,
    "DSAStatelessGenBitMask": _DSA,
    "DSARandomUniform": _DSA,
    "DSARandomNormal": _DSA,
    "DSARandomTruncatedNormal": _DSA,
    "StatelessRandomNormal": _PHILOX,
    "StatelessRandomNormalV2": _PHILOX,
    "StatelessRandomUniform": _PHILOX,
    "StatelessRandomUniformV2": _PHILOX,
    "StatelessDropOutGenMask": _PHILOX,
    "DropOutGenMask": _PHILOX,
    "DropOutGenMaskV3": _PHILOX,
    "Sort": _SORT,
    "SortV2": _SORT,
    "TopK": _SORT,
    "TopKV2": _SORT,
}


@replays(*REASONS)
def refused(op: RecordedOp) -> Launch:
    """None: counted as not covered."""
    raise UnsupportedError(
        f"{op.op_type}: {REASONS[op.op_type]}",
        "operators that move data or compute with the vector unit's arithmetic",
        "it is counted as not covered",
    )
