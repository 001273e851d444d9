"""Attention launches at tile level against the operators, for the tests of both kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from launching import CHIPS, check_operator, random_array

from npusim.chip import load_chip
from npusim.ir import DType, Node, TensorType
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import Plan

#: Buffers with room for fewer rows and narrower tiles than CANN's.
SMALL = {
    "small 910A": load_chip("ascend910a", ["core.ub.size=128KiB", "core.l1.size=256KiB"]),
    "small 910B2": load_chip(
        "ascend910b2", ["core.ub.size=48KiB", "core.l1.size=192KiB", "core.l0c.size=32KiB"]
    ),
}
#: Rounding of probabilities differs by where the maximum stands when a tile is done.
TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 1e-4}


class Case:
    """Operands and attributes of an attention.

    `mask`: "" none, "causal" or "corner" (from the lower right) by the compressed triangle,
    "full" a causal mask as it is, "random" one per batch; "row" an additive one that hides keys
    of each batch, "left" one that leaves no key but the last ones (-inf), "bias" one added per
    head and row.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int, int, int],
        layout: str = "SBH",
        mask: str = "",
        dtype: str = "float16",
    ) -> None:
        batch, heads, kv, s1, s2, d = shape
        rng = np.random.default_rng(s1)

        def array(n: int, rows: int) -> np.ndarray:
            of = {
                "SBH": (rows, batch, n * d), "BSH": (batch, rows, n * d),
                "BSND": (batch, rows, n, d), "BNSD": (batch, n, rows, d),
            }  # fmt: skip
            return random_array(rng, of[layout], dtype)

        self.q, self.k, self.v, self.dy = (
            array(heads, s1), array(kv, s2), array(kv, s2), array(heads, s1),
        )  # fmt: skip
        self.dtype = dtype
        self.attrs: dict[str, Any] = {
            "head_num": heads, "input_layout": layout, "scale_value": d**-0.5,
        }  # fmt: skip
        self.mask: np.ndarray | None = None
        if mask in ("causal", "corner"):
            self.mask = np.triu(np.ones((2048, 2048), bool), 1)
            self.attrs["sparse_mode"] = 2 if mask == "causal" else 3
        elif mask == "full":
            self.mask = np.triu(np.ones((s1, s2), bool), 1)
            self.attrs["next_tokens"] = 0
        elif mask == "random":
            self.mask = rng.random((batch, 1, s1, s2)) < 0.4
            self.mask[..., 0] = False
        self.bias: np.ndarray | None = None
        if mask == "row":
            hidden = rng.random((batch, 1, 1, s2)) < 0.4
            hidden[..., 0] = False
            self.bias = (hidden * np.float32(-1e4)).astype(self.q.dtype)
        elif mask == "left":
            self.bias = np.zeros((1, 1, s1, s2), self.q.dtype)
            self.bias[..., : s2 * 3 // 4] = -np.inf
        elif mask == "bias":
            self.bias = random_array(rng, (1, heads, s1, s2), dtype)

    def operands(self) -> list[np.ndarray | None]:
        """Of the forward operator, as many as are needed."""
        if self.bias is not None:
            return [self.q, self.k, self.v, self.mask, self.bias]
        return [self.q, self.k, self.v, *([] if self.mask is None else [self.mask])]

    def forward(self) -> list[np.ndarray]:
        """softmax_max, softmax_sum, attention_out by the operator."""
        inputs = self.operands()
        names = tuple("" if a is None else f"x{i}" for i, a in enumerate(inputs))
        node = Node("n", "FlashAttentionScore", names, ("top", "total", "y"), self.attrs)
        kinds = [None if a is None else TensorType(a.shape, DType.of(a.dtype)) for a in inputs]
        return compute_node(node, inputs, infer_node(node, kinds, inputs))

    def check_forward(self, chip: str) -> Plan:
        """The kernel against the operator."""
        return self._check(chip, "FlashAttentionScore", self.operands())

    def check_grad(self, chip: str) -> Plan:
        """The gradient's kernel against the operator."""
        top, total, y = self.forward()
        inputs = [self.q, self.k, self.v, self.dy, self.mask, top, total, y]
        return self._check(chip, "FlashAttentionScoreGrad", inputs)

    def _check(self, chip: str, op: str, inputs: list[np.ndarray | None]) -> Plan:
        close = TOLERANCE[self.dtype]
        return check_operator(
            {**CHIPS, **SMALL}[chip],
            op,
            op,
            inputs,
            self.attrs,
            n_outputs=3,
            rtol=close,
            atol=close,
        )
