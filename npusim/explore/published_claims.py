"""What introductions to the Ascend stack promise of the compiler, beside what npusim finds.

Two introductory articles give the numbers, without a method: no model version, no software
version, no profile. They are held against the simulated rows and against the chip's own limits.
"""

from __future__ import annotations

from npusim.explore.ablation import REUSE, TWIN
from npusim.timeline.ablated import Ablation, AblationRow, Claim

#: ResNet-50, batch 256, Atlas 800T A2: before and after fusion.
OPERATORS, MEMORY_MB, LATENCY_MS = (158, 72), (1200, 860), (8.7, 3.2)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def claims_on(a: Ablation) -> list[Claim]:
    """The claims that the rows of a model can be held against."""
    rows = _Rows.of(a)
    found = []
    if rows is not None and a.model == "resnet50" and a.batch == 256:
        found += [_operators(a, rows), _fusion_memory(rows), _latency(a, rows)]
    if rows is not None:
        found.append(_reuse(rows))
        if rows.slow is not None:
            found.append(_precision(a, rows, rows.slow))
    return found


class _Rows:
    """The rows that claims speak of.

    `plain`: in the precision, before any optional pass; `fused`: after them, before memory reuse;
    `reused`: with it; `slow`: the same in fp32, if it runs.
    """

    def __init__(
        self, plain: AblationRow, fused: AblationRow, reused: AblationRow, slow: AblationRow | None
    ) -> None:
        self.plain, self.fused, self.reused, self.slow = plain, fused, reused, slow

    @classmethod
    def of(cls, a: Ablation) -> _Rows | None:
        """None where they did not run."""
        reused, plain = a.row(REUSE), a.row(f"+ {a.precision}")
        if reused is None or plain is None:
            return None
        return cls(plain, a.ladder[a.ladder.index(reused) - 1], reused, a.row(TWIN))


def _operators(a: Ablation, r: _Rows) -> Claim:
    return Claim(
        "fusion: operators",
        f"{OPERATORS[0]} → {OPERATORS[1]} ({_percent(1 - OPERATORS[1] / OPERATORS[0])} fewer)",
        f"{a.nodes} in the model; {r.plain.operators} → {r.fused.operators} after lowering "
        f"({_percent(1 - r.fused.operators / r.plain.operators)} fewer), the first with the casts "
        "and layout conversions that an unfused graph needs. What the article counts as an "
        "operator it does not say.",
    )


def _fusion_memory(r: _Rows) -> Claim:
    def mb(nbytes: int) -> str:
        return f"{nbytes / 1e6:,.0f} MB"

    before, after = MEMORY_MB
    largest = 256 * 256 * 56 * 56 * 2
    left = after * 10**6 - r.fused.weight_bytes
    return Claim(
        "fusion: memory",
        f"{before / 1e3:g} GB → {after} MB ({_percent(1 - after / before)} less)",
        f"{mb(r.plain.memory_reused)} → {mb(r.fused.memory_reused)} "
        f"({_percent(1 - r.fused.memory_reused / r.plain.memory_reused)} less), memory shared in "
        f"both. The largest tensors are 256·256·56·56 fp16 numbers, {mb(largest)}. The first "
        "convolution needs two of them: its image, in blocks of 16 channels, and its result. The "
        "end of the first residual block needs two (the shortcut and the result) and the result's "
        "input, unless the result is written over the shortcut, as where vector cores add it "
        f"(910B). {mb(r.fused.least_bytes)} are alive at one time, beside "
        f"{mb(r.fused.weight_bytes)} of weights. {after} MB less the weights are {mb(left)}, less "
        f"than two of the largest ({mb(2 * largest)}).",
    )


def _latency(a: Ablation, r: _Rows) -> Claim:
    before, after = LATENCY_MS
    rates = [a.flops / (ms * 1e-3) / 1e12 for ms in LATENCY_MS]
    peak = a.peak_flops / 1e12
    floor = a.flops / a.peak_flops * 1e3
    memory = r.reused.hbm_bytes / a.hbm_rate * 1e3
    return Claim(
        "fusion: latency",
        f"{before} ms → {after} ms ({before / after:.1f}×)",
        f"{r.plain.us / 1e3:.1f} ms → {r.fused.us / 1e3:.1f} ms by fusion "
        f"({r.plain.us / r.fused.us:.1f}×), {r.reused.us / 1e3:.1f} ms with memory reuse. "
        f"{after} ms are beyond the chip: {a.flops / a.batch / 2e9:.2f} GMAC · 2 · {a.batch} = "
        f"{a.flops / 1e12:.2f} TFLOP in {after} ms are {rates[1]:.0f} TFLOP/s, "
        f"{rates[1] / peak:.1f} times the peak of {peak:.0f}; at the peak it takes {floor:.1f} ms. "
        f"{before} ms would be {rates[0]:.0f} TFLOP/s, {_percent(rates[0] / peak)} of the peak. "
        f"The {r.reused.hbm_bytes / 1e9:.1f} GB that the fused model moves take {memory:.1f} ms at "
        f"{a.hbm_rate / 1e12:g} TB/s.",
    )


def _reuse(r: _Rows) -> Claim:
    own, shared = r.fused.activation_bytes, r.reused.activation_bytes
    faster = r.fused.us / r.reused.us
    speed = "the speed stays the same"
    if faster > 1.005:
        speed = f"{faster:.2f}× the speed, as results are still in L2 where others were"
    return Claim(
        "memory reuse",
        "lifetime analysis raises the reuse of tensors by 40 %",
        f"{own / 1e9:,.2f} GB of activations with memory of their own, {shared / 1e9:,.3f} GB "
        f"shared: {_percent(1 - shared / own)} less, and "
        f"{_percent(shared / r.reused.least_bytes - 1)} above what is alive at one time; {speed}. "
        "The article gives no base for its 40 %; in inference no activation waits for a backward "
        "pass, and far more can be shared.",
    )


def _precision(a: Ablation, r: _Rows, slow: AblationRow) -> Claim:
    faster, memory = slow.us / r.reused.us, r.reused.memory_bytes / slow.memory_bytes
    text = (
        f"{faster:.1f}× the speed of fp32 with the same passes, {memory:.2f}× the memory "
        f"({slow.memory_bytes / 1e6:,.0f} → {r.reused.memory_bytes / 1e6:,.0f} MB)."
    )
    rate = a.flops / (slow.us * 1e-6) / 1e12
    if a.fp32_cube_flops:
        ratio = a.peak_flops / a.fp32_cube_flops
        text += (
            f" The cube does {a.peak_flops / 1e12:.0f} TFLOP/s in {a.precision} and "
            f"{a.fp32_cube_flops / 1e12:.0f} in fp32: {ratio:.0f}× where the cube binds, 2× where "
            "memory does, less where launches do."
        )
    else:
        text += (
            f" The cube has no fp32: matrix products run on the vector unit, at {rate:.1f} of the "
            f"cube's {a.peak_flops / 1e12:.0f} TFLOP/s in {a.precision}. 3–5× cannot be a "
            "comparison with true fp32 on this chip."
        )
    return Claim("precision", "fp16: 3–5× the speed of fp32, half of its memory", text)
