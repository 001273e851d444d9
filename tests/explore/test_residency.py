"""What the launches of a profile find in L2."""

from __future__ import annotations

from npusim.chip import load_chip
from npusim.explore.replay.launches import Launch, launch_of
from npusim.explore.replay.replay import plan_for
from npusim.explore.replay.residency import Memory, in_turn
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.machine.gm import GmState
from npusim.program.kernel import Plan

CHIP = load_chip("ascend910-30c")
MIB = 2**20


def tensor(*shape: int, dtype: str = "float32", layout: str = "ND") -> RecordedTensor:
    return RecordedTensor(layout, dtype, shape)


def op(op_type: str, *tensors: RecordedTensor, count: int = 1, net: str = "net") -> RecordedOp:
    """The last tensor is the output."""
    return RecordedOp(
        net, op_type, op_type, "AI_CORE", 30, tensors[:-1], tensors[-1:], count, 1.0
    )  # fmt: skip


def planned(recorded: RecordedOp) -> tuple[RecordedOp, Launch, Plan]:
    launch = launch_of(recorded)
    return recorded, launch, plan_for(launch, CHIP, 30)


def visit(memory: Memory, recorded: RecordedOp) -> GmState:
    return memory.visit(*planned(recorded))


SMALL = (1024, 512)  # 2 MiB of fp32


def test_a_result_is_found_also_reshaped_but_not_transposed() -> None:
    for shape, share in (((1024, 512), 0.0), ((2, 512, 512), 0.0), ((512, 1024), 1.0)):
        memory = Memory(CHIP)
        visit(memory, op("Neg", tensor(*SMALL), tensor(*SMALL)))
        visit(memory, op("Neg", tensor(*SMALL), tensor(*SMALL)))
        assert visit(memory, op("Abs", tensor(*shape), tensor(*shape))).share(0) == share


def test_memory_of_a_tensor_that_was_read_is_taken_again() -> None:
    """Without, fifty results of 2 MiB would push each other out of 32 MiB."""
    memory = Memory(CHIP)
    for _ in range(50):
        found = visit(memory, op("Neg", tensor(*SMALL), tensor(*SMALL)))
    assert found.share(0) == found.share(1) == 0


def test_parameters_and_moments_are_cold() -> None:
    shape = tensor(*SMALL)
    step = RecordedOp(
        "net", "m", "FusedMulApplyMomentum", "AI_CORE", 30,
        (shape, shape, tensor(1), shape, tensor(), tensor()), (shape, shape), 1, 1.0,
    )  # fmt: skip
    memory = Memory(CHIP)
    visit(memory, op("Neg", shape, shape))
    found = visit(memory, step)
    assert found.share(0) == found.share(1) == 1  # var, accumulator
    assert found.share(3) == 0  # the gradient


def test_in_turn_are_rows_of_one_type_and_several_sizes_that_exceed_l2() -> None:
    def casts(n: int, count: int) -> list[RecordedOp]:
        shapes = [(256 * (i + 1), 1024) for i in range(n)]  # 1, 2, 3 … MiB
        return [op("Cast", tensor(*s), tensor(*s, dtype="float16"), count=count) for s in shapes]

    l2 = 32 * MIB
    assert in_turn(casts(3, 11), l2) == [True] * 3  # 66 MiB
    assert in_turn(casts(3, 10), l2) == [False] * 3  # 60 MiB: under twice L2
    assert in_turn(casts(2, 50), l2) == [False] * 2  # two sizes only
    other = op("Neg", tensor(8), tensor(8))
    assert in_turn([*casts(3, 11), other, *casts(2, 50)], l2) == [True] * 3 + [False] * 3
    assert in_turn([*casts(2, 50), op("Cast", tensor(8), tensor(8), net="b")], l2) == [False] * 3


def test_what_is_taken_in_turn_is_cold_and_leaves_nothing() -> None:
    memory = Memory(CHIP)
    cast = planned(op("Cast", tensor(*SMALL), tensor(*SMALL, dtype="float16")))
    visit(memory, op("Neg", tensor(*SMALL), tensor(*SMALL)))
    assert memory.visit(*cast, in_turn=True).share(0) == 1
    half = tensor(*SMALL, dtype="float16")
    assert visit(memory, op("Abs", half, half)).share(0) == 1
