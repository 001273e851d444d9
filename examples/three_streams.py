"""Copy, compute, copy: on one stream, on three, and on three with an event missing.

    python examples/three_streams.py

The batch goes through the device in pieces. On one stream the pieces wait for each other; on
three, the copies of one piece overlap the kernels of another. Without the event that makes the
kernels wait for the copy, the run is even quicker and its results are wrong.
"""

from __future__ import annotations

import numpy as np

from npusim import compile_graph, load_chip
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.runtime import Device

CHIP = load_chip("ascend910a")
PIECES, SHAPE = 8, (1024, 1024)


def model() -> Executable:
    """A Softmax over rows, compiled."""
    g = GraphBuilder("rows", DType.FLOAT16)
    g.output(g.node("Softmax", "softmax", g.input("x", SHAPE), out="y", axis=-1))
    return compile_graph(g.finish(), CHIP)


def run(
    exe: Executable, pieces: list[np.ndarray], n_streams: int, wait_for_copy: bool
) -> tuple[float, list[np.ndarray]]:
    """Milliseconds and results of all pieces, each with device memory of its own."""
    with Device(CHIP) as device:
        loaded = device.load(exe)
        streams = [device.stream() for _ in range(n_streams)]
        copy_in, compute, copy_out = streams if n_streams == 3 else streams * 3
        hosts = [device.malloc_host(p.nbytes) for p in pieces for _ in "io"]
        slots = [(device.malloc(p.nbytes), device.malloc(p.nbytes)) for p in pieces]
        for piece, host in zip(pieces, hosts[::2], strict=True):
            host.view(np.float16)[...] = piece.ravel()
        start, end = device.event(), device.event()
        start.record(copy_in)
        for i, (x, y) in enumerate(slots):
            copied, computed = device.event(), device.event()
            device.memcpy_async(x, hosts[2 * i], hosts[2 * i].nbytes, copy_in)
            copied.record(copy_in)
            if wait_for_copy:
                copied.wait(compute)
            loaded.execute_async([x], [y], compute)
            computed.record(compute)
            computed.wait(copy_out)
            device.memcpy_async(hosts[2 * i + 1], y, hosts[2 * i + 1].nbytes, copy_out)
        end.record(copy_out)
        device.synchronize()
        results = [h.view(np.float16).reshape(SHAPE).copy() for h in hosts[1::2]]
        milliseconds = end.elapsed_ms(start)
        for host in hosts:
            device.free_host(host)
        for buffer in (b for slot in slots for b in slot):
            buffer.free()
        loaded.unload()
        return milliseconds, results


def right(pieces: list[np.ndarray], results: list[np.ndarray]) -> bool:
    """Whether the results are what numpy says."""
    for piece, result in zip(pieces, results, strict=True):
        e = np.exp(piece.astype(np.float32))
        if np.abs(result - e / e.sum(-1, keepdims=True)).max() > 1e-3:
            return False
    return True


def main() -> None:
    """Print the three runs."""
    rng, exe = np.random.default_rng(0), model()
    pieces = [rng.standard_normal(SHAPE).astype(np.float16) for _ in range(PIECES)]
    for name, streams, wait in (
        ("one stream", 1, True),
        ("three streams", 3, True),
        ("three streams, no event", 3, False),
    ):
        milliseconds, results = run(exe, pieces, streams, wait)
        verdict = "right" if right(pieces, results) else "WRONG"
        print(f"{name:24} {milliseconds:7.3f} ms   results {verdict}")


if __name__ == "__main__":
    main()
