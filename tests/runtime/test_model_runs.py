"""Models on the runtime: numbers, memory, streams, and what a missing event does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.runtime import (
    Code,
    Device,
    DeviceBuffer,
    InvalidUseError,
    MemPolicy,
    Model,
    Stream,
    TaskFailedError,
)
from npusim.runtime.pages import NORMAL
from npusim.runtime.placement import placement

CHIP = load_chip("ascend910a")
SHAPE = (256, 512)


def compiled(build: Callable[[GraphBuilder], None], streams: int = 1) -> Executable:
    """The executable of a small graph in fp16."""
    g = GraphBuilder("small", DType.FLOAT16)
    build(g)
    return api.compile_graph(g.finish(), CHIP, options=CompileOptions("fp16", streams=streams))


def mlp(g: GraphBuilder) -> None:
    """A product with a constant and a Softmax."""
    x, w = g.input("x", SHAPE), g.weight("w", (512, 128), 0.05)
    g.output(g.node("Softmax", "softmax", g.node("MatMul", "mm", x, w), axis=-1))


def relu(g: GraphBuilder) -> None:
    """One Relu."""
    g.output(g.node("Relu", "relu", g.input("x", SHAPE), out="y"))


def large_relu(g: GraphBuilder) -> None:
    """One Relu over 32 MiB."""
    g.output(g.node("Relu", "relu", g.input("x", (4096, 4096)), out="y"))


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Normal numbers in fp16."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def put(
    device: Device, value: np.ndarray, policy: MemPolicy = MemPolicy.HUGE_FIRST
) -> DeviceBuffer:
    """Device memory that holds an array."""
    made = device.malloc(value.nbytes, policy)
    device.memcpy(made, value, value.nbytes)
    return made


def get(device: Device, source: DeviceBuffer, like: np.ndarray) -> np.ndarray:
    """What device memory holds, as an array like another."""
    out = np.empty_like(like)
    device.memcpy(out, source, out.nbytes)
    return out


def run(exe: Executable, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a run on a device of its own."""
    with Device(CHIP) as device:
        model = device.load(exe)
        outputs = [np.empty(b.shape, b.dtype.np) for b in model.outputs]
        targets = [device.malloc(o.nbytes) for o in outputs]
        model.execute([put(device, x) for x in inputs], targets)
        return [get(device, t, o) for t, o in zip(targets, outputs, strict=True)]


def test_numbers_are_those_of_a_run_alone() -> None:
    exe, x = compiled(mlp), values(SHAPE)
    alone = api.run(exe, CHIP, inputs={"x": x}).outputs
    (out,) = run(exe, x)
    assert np.array_equal(out, next(iter(alone.values())))


def test_kernels_take_as_long_as_in_a_run_alone() -> None:
    """Launched as a whole: the same tasks, starts and gaps, in cold caches."""
    exe = compiled(mlp)
    alone = api.run(exe, CHIP, timing_only=True).timeline.ops
    with Device(CHIP, functional=False) as device:
        model, s = device.load(exe), device.stream()
        begin = device.clock.now
        x, y = device.malloc(model.inputs[0].nbytes), device.malloc(model.outputs[0].nbytes)
        calls = 2 * CHIP.cycles(CHIP.host.call)
        model.execute_async([x], [y], s)
        s.synchronize()
        first = begin + calls + CHIP.cycles(CHIP.host.graph_launch)
        ops = device.timeline.ops
        assert [(op.start - first, op.end - first) for op in ops] == [
            (op.start, op.end) for op in alone
        ]


def test_weights_and_workspace_are_allocated() -> None:
    exe = compiled(mlp)
    with Device(CHIP) as device:
        before, _ = device.memory.info()
        model = device.load(exe)
        free, _ = device.memory.info()
        (held,) = device.memory.live
        assert held.by == "model small"
        first, last = placement(exe).kept
        assert exe.memory.weight_bytes < held.nbytes == last - first <= exe.memory.arena_bytes
        assert before - free == -(-held.held // NORMAL) * NORMAL
        model.unload()
        assert device.memory.info()[0] == before
        with pytest.raises(TaskFailedError, match="unload freed"):
            a = device.malloc(1 << 20)
            model.execute([a], [a])


def test_operators_enqueued_one_by_one_cost_the_host_each() -> None:
    exe = compiled(mlp)
    with Device(CHIP, functional=False) as device:
        model = Model(device, exe, eager=True)
        a, begin = device.malloc(1 << 20), device.clock.now
        model.execute_async([a], [a], device.default)
        assert device.clock.now - begin == len(exe.tasks) * CHIP.cycles(CHIP.host.enqueue)


def pipeline(device: Device, with_event: bool) -> tuple[np.ndarray, np.ndarray]:
    """A copy on one stream, a model on another, with or without the event between them."""
    model = device.load(compiled(relu))
    x = values(SHAPE)
    host = device.malloc_host(x.nbytes)
    host.view(np.float16)[...] = x.ravel()
    a, b, event = device.malloc(x.nbytes), device.malloc(x.nbytes), device.event()
    copy, compute = device.stream(), device.stream()
    device.memcpy_async(a, host, x.nbytes, copy)
    event.record(copy)
    if with_event:
        event.wait(compute)
    model.execute_async([a], [b], compute)
    device.synchronize()
    return get(device, b, x), np.maximum(x, 0)


def test_an_event_between_streams_keeps_the_order() -> None:
    with Device(CHIP) as device:
        out, expected = pipeline(device, with_event=True)
        assert np.array_equal(out, expected)


def test_without_the_event_the_result_is_wrong() -> None:
    """The kernel starts while the copy still runs: it reads what was there before."""
    slow = load_chip("ascend910a", ["pcie.bandwidth=2 GB/s"])
    with Device(slow) as device:
        out, expected = pipeline(device, with_event=False)
        assert not np.array_equal(out, expected)


def test_memory_that_is_freed_while_a_kernel_runs_is_found() -> None:
    with Device(CHIP) as device:
        model, a, s = device.load(compiled(large_relu)), device.malloc(32 << 20), device.stream()
        b = device.malloc(32 << 20)
        model.execute_async([a], [b], s)
        device.clock.spend(10e-6, "work")
        device.catch_up()
        b.free()
        with pytest.raises(TaskFailedError, match=r"task 'relu' writes .* freed") as error:
            s.synchronize()
        assert error.value.code is Code.RT_AICORE_EXCEPTION == 507015


def test_an_output_that_is_too_small_is_found_at_synchronisation() -> None:
    with Device(CHIP) as device:
        model, s = device.load(compiled(relu)), device.stream()
        model.execute_async([device.malloc(1 << 20)], [device.malloc(1000)], s)
        with pytest.raises(TaskFailedError, match="past the end of 1000 B"):
            s.synchronize()


def test_the_number_of_tensors_and_the_chip_are_checked() -> None:
    with Device(CHIP) as device:
        model = device.load(compiled(relu))
        with pytest.raises(InvalidUseError, match="2 inputs for small") as error:
            model.execute([1, 2], [3])
        assert error.value.code is Code.MODEL_INPUT_NOT_MATCH == 100017
        with pytest.raises(InvalidUseError) as error:
            model.execute([1], [])
        assert error.value.code is Code.MODEL_OUTPUT_NOT_MATCH == 100018
        with Device(CHIP, number=1) as other, pytest.raises(InvalidUseError) as error:
            model.execute_async([1], [2], other.default)
        assert error.value.code is Code.RT_STREAM_CONTEXT == 107003
    with Device("ascend910b2") as device, pytest.raises(InvalidUseError, match="compiled for"):
        device.load(compiled(relu))


# -- pages ---------------------------------------------------------------------------------------


def timed(policy: MemPolicy, build: Callable[[GraphBuilder], None]) -> int:
    """Cycles of the model's one kernel on memory of such pages."""
    with Device(CHIP, functional=False) as device:
        model = device.load(compiled(build))
        a, b = (device.malloc(model.inputs[0].nbytes, policy) for _ in range(2))
        model.execute([a], [b])
        (op,) = device.timeline.ops
        return op.cycles


def test_normal_pages_beyond_the_reach_of_the_tlb_cost_walks() -> None:
    pages = 2 * (32 << 20) // NORMAL
    walks = CHIP.cycles((pages - CHIP.tlb.entries) * CHIP.tlb.walk / CHIP.tlb.walkers)
    huge = timed(MemPolicy.HUGE_ONLY, large_relu)
    assert timed(MemPolicy.NORMAL_ONLY, large_relu) == huge + walks
    (alone,) = api.run(compiled(large_relu), CHIP, timing_only=True).timeline.ops
    assert huge == alone.cycles  # huge pages within reach are free


def test_pages_within_the_reach_of_the_tlb_are_free() -> None:
    assert timed(MemPolicy.NORMAL_ONLY, relu) == timed(MemPolicy.HUGE_ONLY, relu)


# -- where inputs and outputs lie -----------------------------------------------------------------


def views(g: GraphBuilder) -> None:
    """An input seen in another shape, and an output that is a view of a result."""
    x = g.node("Reshape", "flat", g.input("x", SHAPE), g.ints("s0", (512, 256)))
    y = g.node("Softmax", "softmax", x, axis=-1)
    g.output(g.node("Reshape", "back", y, g.ints("s1", (128, 1024))))


def test_views_move_with_what_they_are_views_of() -> None:
    exe, x = compiled(views), values(SHAPE)
    place = placement(exe)
    assert not place.copies and place.kept[1] - place.kept[0] == 0
    (out,) = run(exe, x)
    alone = api.run(exe, CHIP, inputs={"x": x}).outputs
    assert np.array_equal(out, next(iter(alone.values())))


def twice(g: GraphBuilder) -> None:
    """An input and its view, and a result and its view, are all outputs."""
    x = g.input("x", SHAPE)
    y = g.node("Relu", "relu", x, out="y")
    flat = g.node("Reshape", "flat", x, g.ints("s", (SHAPE[0] * SHAPE[1],)))
    other = g.node("Reshape", "other", y, g.ints("s2", (SHAPE[1], SHAPE[0])))
    g.output(y, flat, other)


def test_outputs_that_are_the_same_tensor_are_copied() -> None:
    exe, x = compiled(twice), values(SHAPE)
    assert [name for name, _ in placement(exe).copies] == ["other"]  # flat has a task
    y, flat, other = run(exe, x)
    assert np.array_equal(y, np.maximum(x, 0))
    assert np.array_equal(flat, x.ravel())
    assert np.array_equal(other, y.reshape(SHAPE[::-1]))


def branches(g: GraphBuilder) -> None:
    """Two Softmax side by side, and their product."""
    a = g.node("Softmax", "a", g.input("x", SHAPE), axis=-1)
    b = g.node("Softmax", "b", g.input("z", SHAPE), axis=0)
    g.output(g.node("MatMul", "mm", a, g.node("Transpose", "t", b, perm=(1, 0))))


def on_two_streams(exe: Executable) -> Executable:
    """The same executable, the tasks of b on a stream of their own."""
    exe = compiled(branches, streams=2)
    if {task.stream for task in exe.tasks} == {0, 1}:
        return exe
    tasks, last = [], max(i for i, t in enumerate(exe.tasks) if t.name in ("b", "t"))
    for i, task in enumerate(exe.tasks):
        if task.name in ("b", "t"):
            task = replace(task, stream=1, records=0 if i == last else None)
        elif i > last:
            task = replace(task, waits=(0,) if task.name == "mm" else ())
        tasks.append(task)
    return replace(exe, tasks=tasks)


def test_parallel_branches_run_on_streams_of_the_model() -> None:
    exe = on_two_streams(compiled(branches))
    x, z = values(SHAPE), values(SHAPE, 1)
    with Device(CHIP) as device:
        model = device.load(exe)
        out = np.empty(model.outputs[0].shape, np.float16)
        target, used = device.malloc(out.nbytes), device.streams_left
        inputs = [put(device, x), put(device, z)]
        for _ in range(2):
            device.memset(target, 0, out.nbytes)
            model.execute(inputs, [target])
            got = get(device, target, out)
            alone = api.run(exe, CHIP, inputs={"x": x, "z": z}).outputs
            assert np.array_equal(got, next(iter(alone.values())))
        assert used - device.streams_left == 1
        assert len({op.stream for op in device.timeline.ops if op.op_type == "Softmax"}) == 2
        model.unload()
        assert device.streams_left == used


def failing_branch(device: Device, stream: Stream) -> None:
    """A run of which a branch on the model's own stream touches freed memory."""
    model = device.load(on_two_streams(compiled(branches)))
    x, z = (device.malloc(SHAPE[0] * SHAPE[1] * 2) for _ in range(2))
    out = device.malloc(model.outputs[0].nbytes)
    z.free()
    model.execute_async([x, z], [out], stream)


def test_a_fault_on_a_stream_of_the_model_surfaces_at_the_caller_s() -> None:
    with Device(CHIP) as device:
        stream = device.stream()
        failing_branch(device, stream)
        with pytest.raises(TaskFailedError, match=r"task 'b' reads"):
            stream.synchronize()
