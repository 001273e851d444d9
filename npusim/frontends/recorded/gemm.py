"""Figures of plain matrix products in figure tables: shapes written M×K×N, without `->`.

Taken are those whose M, K, N and type are certain: three equal sides, sides that the table names
"(M,K,N)", and the thin products of a source that writes activations before weights. Their time is
a kernel's ("device time") or, of `torch.matmul`, that of a call in a loop.
"""

from __future__ import annotations

import re

from npusim.frontends.recorded.cells import Line, dtype_of
from npusim.frontends.recorded.op import RecordedOp, RecordedTensor

OP_TYPE = "GEMM"
_SIDES = re.compile(r"(\d+)x(\d+)x(\d+)( \(M,K,N\))?")
_KERNELS = re.compile(r"GEMM \d+\^3 \(FlagPerf toolkit\)|GEMM catlass ex\.34|aclnnMatmul thin-M")
_CALLS = re.compile(r"torch\.matmul$")
_ORDERED = re.compile(r"aclnnMatmul thin-M")  #: rows × K × columns, as the source's model has them
#: Summed in the type of the result where the source says nothing else.
_TYPES = ("float16", "bfloat16", "float32")


def gemm_op(line: Line) -> RecordedOp | None:
    """A row of the figure table as a product of ND matrices; None where it is no such figure."""
    name, sides = line.text("op"), _SIDES.fullmatch(line.text("shape"))
    calls = _CALLS.match(name) is not None
    if sides is None or not (calls or _KERNELS.match(name)) or not line.text("duration_us"):
        return None
    m, k, n = (int(sides[i]) for i in (1, 2, 3))
    if not (m == k == n or sides[4] or _ORDERED.match(name)):
        return None
    dtype = dtype_of(line.text("dtype"))
    if dtype not in _TYPES:
        return None
    a, b, out = (RecordedTensor("ND", dtype, s) for s in ((m, k), (k, n), (m, n)))
    return RecordedOp(
        net=line.text("device"),
        name=f"{name}.{line.number}",
        op_type=OP_TYPE,
        core_type="AI_CORE",
        block_dim=int(line.number_of("block_dim")),
        inputs=(a, b),
        outputs=(out,),
        count=1,
        measured_us=line.number_of("duration_us"),
        device=line.text("device"),
        source=line.text("source"),
        call_time=calls,
        repeated=True,
    )
