"""One recorded operator, whatever profiler wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from npusim.ir import DType


@dataclass(frozen=True)
class RecordedTensor:
    """An operand as the profiler names it: device format, element type, device shape.

    `dtype` is a numpy name ("float16"), or the profiler's own word when npusim has no such type.
    """

    format: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements (1 for a scalar)."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes; an element type that npusim does not have counts one byte each."""
        return self.size * (DType(self.dtype).size if self.dtype in set(DType) else 1)


@dataclass(frozen=True)
class RecordedOp:
    """A row of a profile.

    Attributes:
        net: the profile it stands in (file or rank); name: the op's own name.
        op_type: CANN's type; core_type: AI_CORE, AI_VECTOR_CORE, AI_CPU, …
        block_dim: blocks it ran on; 0 when the profile does not say.
        count: launches that the row stands for; measured_us: time of one of them.
        start_us: when it began, None when the profile keeps no order in time.
        device: the chip it ran on, as the profile names it; "" when the profile does not say.
        core_time_only: measured_us is the cores' own time, without the launch.
        source: where the figure was published, "" for a user's own profile.
        attrs: the operator's attributes, sorted by name, where the profile has them.
        call_time: measured_us is the time of a call, the host's work for it included.
        repeated: the same launch ran over and over, so that it finds in L2 what fits there.
    """

    net: str
    name: str
    op_type: str
    core_type: str
    block_dim: int
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    count: int
    measured_us: float
    start_us: float | None = None
    device: str = ""
    core_time_only: bool = False
    source: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    call_time: bool = False
    repeated: bool = False

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value; `default` where the profile does not give it."""
        return dict(self.attrs).get(name, default)

    @property
    def shapes(self) -> str:
        """Device shapes as one line: "32,3,224,224; 64,3,7,7 → 32,64,112,112"."""
        inputs, outputs = (
            "; ".join(",".join(map(str, t.shape)) or "()" for t in ts)
            for ts in (self.inputs, self.outputs)
        )
        return f"{inputs} → {outputs}"
