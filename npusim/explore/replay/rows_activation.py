"""Activations and their gradients that the shipped profiles do not have; see `rows_elementwise`."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, replays
from npusim.explore.replay.rows_elementwise import chain
from npusim.frontends.recorded import RecordedOp

#: CANN's type → the operator of npusim.
_PLAIN = {
    "SwishGrad": "SwishGrad", "SigmoidGrad": "SigmoidGrad", "Elu": "Elu", "LeakyRelu": "LeakyRelu",
    "HardSwish": "HardSwish", "HSwish": "HardSwish", "HardSigmoid": "HardSigmoid",
}  # fmt: skip


@replays(*_PLAIN)
def activation(op: RecordedOp) -> Launch:
    """One operator with its default attributes; gradients take dy, then what CANN gives them."""
    return chain(op, _PLAIN[op.op_type])


@replays("LeakyReluGrad")
def leaky_relu_grad(op: RecordedOp) -> Launch:
    """dy, x; the slope below 0 is not recorded and costs nothing either way."""
    return chain(op, op.op_type, attrs={"alpha": 0.01})
