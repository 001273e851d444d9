"""A model fed with images on the device: by DVPP, or by workers on the host.

*DVPP*: a loader thread copies the JPEGs of a batch to the device and queues, for every image,
decoding (JPEGD) and cropping with resizing (VPC), over as many streams as the units have channels.
A second thread waits for a batch, then launches a normalising kernel and the model. *CPU*: workers
decode, resize and normalise, an image a job, into the pinned memory of the batch; the second thread
copies it to the device and launches the model.

With prefetch p the preparation of batch b may start when batch b - 1 - p has been computed. Only
times are simulated: no JPEG is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.ir import DType, Graph
from npusim.machine.device import Device
from npusim.machine.dvpp import JPEGD, VPC, decode_cycles, dvpp_of, resize_cycles
from npusim.machine.entries import CopyEntry, CopyKind, RecordEntry, UnitEntry, WaitEntry
from npusim.machine.host_thread import Calls, HostThread
from npusim.machine.host_workers import HostWorkers
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.recorder import KeepAll
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable
from npusim.timeline import OpRecord, Timeline, check_timeline

COMPUTE, COPY, IMAGES = 0, 1, 2  #: streams; images have all from IMAGES on
YUV420, RGB = 1.5, 3.0  #: bytes per pixel
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  #: of ImageNet's pixels


@dataclass(frozen=True)
class Images:
    """The JPEGs: width and height in pixels, bytes of one."""

    width: int
    height: int
    nbytes: int

    @property
    def pixels(self) -> int:
        """Of one image."""
        return self.width * self.height


@dataclass(frozen=True)
class FeedWork:
    """What is fed: the model, its normalising kernel, and the images of a batch.

    Attributes:
        model: takes normalised floats; normalize: from 8-bit pixels to those.
    """

    model: Executable
    normalize: Executable
    batch: int
    images: Images

    @property
    def model_pixels(self) -> int:
        """Of an image as the model takes it."""
        _, _, height, width = self.model.buffers[self.model.inputs[0]].shape
        return height * width

    @property
    def input_bytes(self) -> int:
        """Of a normalised batch."""
        return self.model.buffers[self.model.inputs[0]].nbytes


def image_input(graph: Graph) -> tuple[int, int, int]:
    """(batch, height, width) of a model that takes images.

    Raises:
        UnsupportedError: the model takes something else.
    """
    shapes = {name: graph.type_of(name).shape for name in graph.inputs}
    shape = next(iter(shapes.values()), ())
    if len(shapes) != 1 or len(shape) != 4 or shape[1] != 3:
        seen = ", ".join(f"{n} of {'×'.join(map(str, s))}" for n, s in shapes.items())
        raise UnsupportedError(
            f"{graph.name} takes {seen}",
            "models with one input of N×3×H×W: images",
            "choose a model of images, such as resnet50",
        )
    return shape[0], shape[2], shape[3]


def normalize_graph(graph: Graph) -> Graph:
    """From 8-bit pixels to what a model takes: cast, subtract the mean, divide by the deviation.

    What AIPP does on its way into the first layer, here a vector kernel of its own.
    """
    kind = graph.type_of(graph.inputs[0])
    g = GraphBuilder("normalize", kind.dtype)
    pixels = g.input("pixels", kind.shape, DType.UINT8)
    floats = g.node("Cast", "cast", pixels, to=kind.dtype.value)
    centred = g.node("Sub", "centred", floats, g.constant("mean", [[[m]] for m in MEAN]))
    g.output(g.node("Mul", "scaled", centred, g.constant("scale", [[[1 / s]] for s in STD])))
    return g.finish()


def worker_cycles(work: FeedWork, chip: ChipSpec) -> int:
    """One image on one worker of the host."""
    rates = chip.host.preprocessing
    pixels = work.images.pixels
    seconds = pixels / rates.decode + pixels / rates.resize + work.model_pixels / rates.normalize
    return chip.cycles(seconds)


class Feed:
    """Batches of images through a model. Life cycle: construct, `run` once.

    Args:
        workers: of the host; None feeds by DVPP.

    Raises:
        UnsupportedError: the chip's DVPP is not described.
    """

    def __init__(
        self, work: FeedWork, chip: ChipSpec, prefetch: int, batches: int, workers: int | None
    ) -> None:
        self._work, self._chip = work, chip
        self._prefetch, self._batches = prefetch, batches
        self._recorder = KeepAll()
        self._device = Device(chip, self._recorder)
        self._workers = None if workers is None else HostWorkers(self._device, workers)
        self._loader = HostThread(self._device, track="loader")
        self._runner = HostThread(self._device, track="runner")
        event = self._device.env.event
        self._ready = [event() for _ in range(batches)]
        self._computed = [event() for _ in range(batches)]
        for number in (COMPUTE, COPY):
            self._device.stream(number)
        if workers is None:
            dvpp = dvpp_of(chip)
            self._streams = dvpp.jpegd.channels + dvpp.vpc.channels
            for number in range(self._streams):
                self._device.stream(IMAGES + number)

    def run(self) -> Timeline:
        """Run all batches.

        Raises:
            AccountingError: the simulation does not add up.
        """
        env = self._device.env
        if self._workers is None:
            env.process(self._load())
        else:
            for number in range(self._batches):
                env.process(self._prepare(number, self._workers))
        env.process(self._run())
        self._device.run(self._work.model.name)
        chip, end = self._chip, self._runner.use().end
        timeline = Timeline(chip.name, chip.clock, self._recorder.ops(), end, steps=self._batches)
        return check_timeline(timeline, chip.hbm_rate, chip.l2_rate)

    # -- preparing ---------------------------------------------------------------------------

    def _load(self) -> Calls:
        """The loader's program, where DVPP feeds."""
        for number in range(self._batches):
            before = number - 1 - self._prefetch
            if before >= 0:
                yield from self._loader.wait([self._computed[before]], f"batch {before}")
            yield from self._queue_images(number)

    def _queue_images(self, number: int) -> Calls:
        work, loader, env = self._work, self._loader, self._device.env
        arrived = env.event()
        jpegs = CopyEntry(f"JPEGs {number}", CopyKind.H2D, work.batch * work.images.nbytes)
        yield from loader.copy(COPY, jpegs)
        yield from loader.submit(COPY, RecordEntry(f"arrived {number}", arrived))
        first = number * work.batch
        by_stream: dict[int, list[int]] = {}
        for image in range(first, first + work.batch):
            by_stream.setdefault(image % self._streams, []).append(image)
        over = [env.event() for _ in by_stream]
        for stream, mark in zip(by_stream, over, strict=True):
            yield from loader.submit(IMAGES + stream, WaitEntry(f"arrived {number}", arrived))
            for image in by_stream[stream]:
                for entry in self._image(image):
                    yield from loader.submit(IMAGES + stream, entry)
            yield from loader.submit(IMAGES + stream, RecordEntry(f"prepared {number}", mark))
        env.process(self._gather(number, over))

    def _image(self, image: int) -> tuple[UnitEntry, UnitEntry]:
        """An image's decoding, then its cropping and resizing."""
        pixels, small = self._work.images.pixels, self._work.model_pixels
        decoded = 0, round(pixels * YUV420)
        jpeg, resized = (0, self._work.images.nbytes), (0, round(small * RGB))
        return (
            UnitEntry(
                f"decode {image}", "JpegDecode", JPEGD, decode_cycles(self._chip, pixels),
                (jpeg,), (decoded,),
            ),
            UnitEntry(
                f"resize {image}", "CropResize", VPC, resize_cycles(self._chip, pixels, small),
                (decoded,), (resized,),
            ),
        )  # fmt: skip

    def _prepare(self, number: int, workers: HostWorkers) -> Calls:
        """A batch on the host's workers, an image a job."""
        before = number - 1 - self._prefetch
        if before >= 0:
            yield self._computed[before]
        cycles = worker_cycles(self._work, self._chip)
        yield from self._gather(number, [workers.submit(cycles) for _ in range(self._work.batch)])

    def _gather(self, number: int, events: Sequence[Any]) -> Calls:
        for event in events:
            if not event.processed:
                yield event
        self._ready[number].succeed()

    # -- computing ---------------------------------------------------------------------------

    def _run(self) -> Calls:
        """The program of the thread that runs the model."""
        runner, work = self._runner, self._work
        model = LoadedExecutable(work.model)
        given = work.model.buffers[work.model.inputs[0]].address
        normalize = LoadedExecutable(
            work.normalize, None, work.model.memory.arena_bytes, {work.normalize.outputs[0]: given}
        )
        for number in range(self._batches):
            yield from runner.wait([self._ready[number]], f"batch {number}")
            if self._workers is None:
                yield from runner.launch_graph(normalize, number)
            else:
                arrived = self._device.env.event()
                batch = CopyEntry(f"batch {number}", CopyKind.H2D, work.input_bytes)
                yield from runner.copy(COPY, batch)
                yield from runner.submit(COPY, RecordEntry(f"arrived {number}", arrived))
                yield from runner.submit(COMPUTE, WaitEntry(f"arrived {number}", arrived))
            yield from runner.launch_graph(model, number)
            mark = RecordEntry(f"computed {number}", self._computed[number])
            yield from runner.submit(COMPUTE, mark)
        yield from runner.synchronize((COMPUTE,), "all batches")


# -- figures ---------------------------------------------------------------------------------


def capacities(chip: ChipSpec, workers: int | None) -> dict[str, int]:
    """What works side by side in each stage."""
    if workers is not None:
        return {"CPU": workers, "link": 1, "NPU": 1}
    dvpp = dvpp_of(chip)
    return {"link": 1, JPEGD: dvpp.jpegd.channels, VPC: dvpp.vpc.channels, "NPU": 1}


def step_ends(timeline: Timeline) -> list[int]:
    """When each batch was computed."""
    ends: dict[int, int] = {}
    for op in timeline.ops:
        if op.stream == COMPUTE:
            ends[op.step] = max(op.end, ends.get(op.step, 0))
    return [ends[step] for step in sorted(ends)]


def busy_shares(
    timeline: Timeline, chip: ChipSpec, work: FeedWork, workers: int | None, step: float
) -> Mapping[str, float]:
    """Share of each stage's capacity that a batch every `step` cycles uses."""
    spent: dict[str, float] = {
        "CPU": 0 if workers is None else work.batch * worker_cycles(work, chip)
    }
    for op in timeline.ops:
        stage = _stage(op)
        spent[stage] = spent.get(stage, 0) + op.cycles / timeline.steps
    room = capacities(chip, workers)
    return {stage: spent.get(stage, 0) / step / n for stage, n in room.items()}


def _stage(op: OpRecord) -> str:
    return {"PCIE": "link", "DVPP": op.kernel}.get(op.core_type, "NPU")


def prepared_alone(chip: ChipSpec, work: FeedWork, workers: int | None) -> int:
    """Cycles from the first image to the last of a batch, nothing else being prepared.

    The images go through in waves of as many as there are channels; the last wave's resizing is
    not hidden by decoding, nor is the first wave's decoding where resizing is the slower.
    """
    if workers is not None:
        return ceil(work.batch / workers) * worker_cycles(work, chip)
    dvpp = dvpp_of(chip)
    decode = decode_cycles(chip, work.images.pixels)
    resize = resize_cycles(chip, work.images.pixels, work.model_pixels)
    waves = ceil(work.batch / dvpp.jpegd.channels)
    last = work.batch - (waves - 1) * dvpp.jpegd.channels
    return max(
        waves * decode + ceil(last / dvpp.vpc.channels) * resize,
        decode + ceil(work.batch / dvpp.vpc.channels) * resize,
    )
