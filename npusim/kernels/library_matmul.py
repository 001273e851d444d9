"""LibraryMatMul: the matrix product as CANN's library kernel does it, to replay recorded times.

The loop nest is MatMul's. What differs: the tiling (`library_tiling`), the epilogue
(`library_epilogue`), and two things on first-generation chips:

* A's panel fills chunk by chunk while its first tile is computed;
* L1 has one port: while MTE1 reads, MTE2 cannot write. Recorded products bound by loads take the
  sum of what MTE2 and MTE1 need, though the loads' latency is hidden: without this, products of a
  batch of 64 in ViT come out 25 % too fast, with it 4 %.

On chips with FIXP, npusim's own search and overlap are within 12 % of recorded times and are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.chip.spec import ChipSpec
from npusim.ir.layout import blocks
from npusim.kernels import column_row
from npusim.kernels import epilogue as ep
from npusim.kernels.cube_tiling import share
from npusim.kernels.lang import Kernel
from npusim.kernels.library_epilogue import (
    LibraryOutput,
    is_row,
    library_spec,
    refuse_library_epilogue,
)
from npusim.kernels.library_tiling import library_tiling
from npusim.kernels.matmul import Body, MatMul
from npusim.kernels.matmul_tiling import problem
from npusim.kernels.queues import Alloc
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, kernel
from npusim.program.region import Region


@kernel("LibraryMatMul")
class LibraryMatMul(MatMul):
    """Batched matrix product on the cube, in the library's way."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """What MatMul refuses of the product, and what the library's epilogue lacks."""
        if chip.core.fixp is not None:
            several = "FIXP writes one result" if len(args.outputs) > 1 else ""
            return several or MatMul.refuse(args, chip)
        plain = replace(args, epilogue=(), outputs=args.outputs[:1])
        return MatMul.refuse(plain, chip) or refuse_library_epilogue(args, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """The library's only one, for as many blocks as the chip has cores."""
        if chip.core.fixp is not None:
            yield from MatMul.tilings(args, chip)
        else:
            p, spec = problem(args), library_spec(args)
            room = chip.core.ub.size - spec.bias_bytes - column_row.STRIP
            rows = max(0, room) // (256 * spec.strip_bytes)
            cores, bias = chip.cores.count, spec.bias_bytes
            found = library_tiling(p, p.k1, p.a.itemsize, chip, cores, rows, bias)
            if found is not None:
                yield found

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """MatMul's, with the second output and rows that are added."""
        plan, p = MatMul.plan(args, chip, tiling), problem(args)
        first = len(args.inputs)
        more = {first + i: plan.traffic[first] for i in range(1, len(args.outputs))}
        shares = [share(p, tiling, b) for b in range(plan.block_dim)]
        values = sum(s.batches * blocks(s.m, tiling["m0"] * 16) * s.n for s in shares)
        for step in args.epilogue:
            if step.operand is not None and is_row(args, step.operand):
                row = args.operands[step.operand]
                more[step.operand] = Traffic(row.nbytes, values * row.dtype.size)
        return replace(plan, traffic={**plan.traffic, **more})

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = problem(args)
        kind = Body if k.chip.core.fixp is not None else _Body
        return kind(k, p, tiling, share(p, tiling, block)).run()


class _Body(Body):
    """The program of one block on a first-generation chip."""

    out: LibraryOutput

    def output(self) -> ep.CubeOutput:
        """The library's epilogue."""
        k, p, t, s = self.k, self.p, self.t, self.s
        spec = library_spec(k.args)
        self.seeded = spec.bias is not None
        return LibraryOutput(k, spec, p.out, (t["m0"], t["n0"]), (s.n0, s.n))

    def begin(self, c: Region, col0: int) -> Iterator[Instr]:
        """The bias goes into L0C first."""
        if self.seeded:
            yield from self.out.seed(c, col0 // 16)

    def run(self) -> Iterator[Instr]:
        """All tiles of the share; the last one leaves at the end."""
        self.waiting: list[tuple[int, int, ep.TileSpan]] = []
        yield from super().run()
        for n1, n_blocks, span in self.waiting:
            yield from super().leave(n1, n_blocks, span)
        yield from self.out.finish()

    def leave(self, n1: int, n_blocks: int, span: ep.TileSpan) -> Iterator[Instr]:
        """Where L0C holds two tiles, V fills in the next one's bias before it takes this one."""
        self.waiting.append((n1, n_blocks, span))
        if len(self.waiting) == len(self.out.queue.slots) or not self.seeded:
            yield from super().leave(*self.waiting.pop(0))

    def read_l1(self, load: Instr) -> Iterator[Instr]:
        """L1 has one port: MTE2 cannot write while MTE1 reads."""
        yield load
        yield self.k.memo(("port", load.occupy), lambda: self.k.stall(Pipe.MTE2, load.occupy))

    def load_panel(self, batch: int, i: int) -> Iterator[Instr]:
        """A's panel comes chunk by chunk with the first tile, if a chunk is a stretch of L1."""
        if self.p.trans_a:
            yield from super().load_panel(batch, i)
        else:
            assert self.panel is not None
            self.filling = yield from self.panel.alloc()

    def line(self, batch: int, i: int, count: int) -> Iterator[Instr]:
        """The first tile, which also fills A's panel, then the others."""
        yield from self.tile(batch, i, 0)
        for j in self.k.loop(count - 1):
            yield from self.tile(batch, i, j + 1)

    def load_chunk(self, batch: int, mi: int, ni: int, k_start: int, k_len: int) -> Iterator[Instr]:
        """The chunk of A that is still missing, then the chunk of B, under one flag."""
        if self.panel is not None and not self.p.trans_a and ni == 0:
            panel, row = self.filling, blocks(self.rows(mi)[1]) * 16 * self.p.a.itemsize
            start = Alloc(panel.space, panel.offset + k_start * row, -(-k_len // 16) * 16 * row)
            yield self.load_a(start, batch, mi, k_start, k_len)
        yield from super().load_chunk(batch, mi, ni, k_start, k_len)
