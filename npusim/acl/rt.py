"""`acl.rt`: devices, contexts, streams, events, memory."""

from __future__ import annotations

from npusim.acl.constants import (
    BAND_WIDTH_BITS,
    EVENT_TIME_LINE,
    NOT_READY,
    READY,
    RECORDED,
    RECORDED_NOT_READY,
    RUN_MODE_HOST,
    MemAttr,
)
from npusim.acl.reports import (
    launch_callback,
    process_report,
    subscribe_report,
    unsubscribe_report,
)
from npusim.acl.state import PROCESS, Context, status, value
from npusim.runtime import Code, Event, InvalidUseError, MemPolicy, Stream, Way
from npusim.runtime.pages import HUGE, NORMAL

__all__ = ["launch_callback", "process_report", "subscribe_report", "unsubscribe_report"]

# -- devices and contexts --------------------------------------------------------------------


@status
def set_device(device_id: int) -> None:
    """Use a device in this thread."""
    PROCESS.enter(device_id)


@status
def reset_device(device_id: int) -> None:
    """The end of a device; what was not given back is reported to the logger "npusim.runtime"."""
    PROCESS.reset(device_id)


@value(-1)
def get_device() -> int:
    """The thread's device."""
    return PROCESS.device.number


@value(0)
def get_device_count() -> int:
    """How many devices there are."""
    return PROCESS.require_init().devices


@value(RUN_MODE_HOST)
def get_run_mode() -> int:
    """1: the program runs on the host."""
    PROCESS.require_init()
    return RUN_MODE_HOST


@status
def synchronize_device() -> None:
    """Wait until all streams of the device are over."""
    PROCESS.device.synchronize()


@status
def synchronize_device_with_timeout(timeout: int) -> None:
    """Wait at most so many milliseconds of simulated time; -1: as long as it takes."""
    PROCESS.device.synchronize(_seconds(timeout))


@value(0)
def device_can_access_peer(device_id: int, peer_device_id: int) -> int:
    """0: devices have no links to each other here."""
    PROCESS.require_init()
    return 0


@value(0)
def create_context(device_id: int) -> int:
    """A context of a device, with a default stream of its own; it becomes the thread's."""
    device = PROCESS.enter(device_id).device
    made = Context(device, device.stream(), 0)
    made.number = PROCESS.handles.new(made)
    PROCESS.local.context = made
    return made.number


@status
def destroy_context(context: int) -> None:
    """The end of a context; the device's own one is the thread's again."""
    found = PROCESS.handles.get(context, Context)
    if found in PROCESS.primary.values():
        raise InvalidUseError(
            Code.RT_PARAM_INVALID,
            "the destruction of a context that set_device made",
            "contexts of create_context",
            "call acl.rt.reset_device",
        )
    found.device.destroy_stream(found.default)
    PROCESS.handles.pop(context, Context)
    if getattr(PROCESS.local, "context", None) is found:
        PROCESS.local.context = PROCESS.primary.get(found.device.number)


@status
def set_context(context: int) -> None:
    """Use a context in this thread."""
    PROCESS.require_init()
    PROCESS.local.context = PROCESS.handles.get(context, Context)


@value(0)
def get_context() -> int:
    """The thread's context."""
    return PROCESS.context.number


# -- streams -----------------------------------------------------------------------------------


@value(0)
def create_stream() -> int:
    """A stream."""
    return PROCESS.handles.new(PROCESS.device.stream())


@value(0)
def create_stream_with_config(priority: int, flag: int) -> int:
    """A stream of a priority, 0 (first) to 7. The flags (fast launch …) change nothing here."""
    return PROCESS.handles.new(PROCESS.device.stream(priority))


@status
def destroy_stream(stream: int) -> None:
    """Wait for a stream, then give it back."""
    found = PROCESS.stream(stream)
    if found is PROCESS.context.default:
        raise InvalidUseError(
            Code.RT_PARAM_INVALID,
            "the destruction of stream 0",
            "streams of create_stream",
            "leave it",
        )
    PROCESS.device.destroy_stream(found)
    PROCESS.handles.pop(stream, Stream)


@status
def destroy_stream_force(stream: int) -> None:
    """Give a stream back without waiting."""
    PROCESS.device.destroy_stream(PROCESS.handles.pop(stream, Stream), force=True)


@status
def synchronize_stream(stream: int) -> None:
    """Wait until a stream is over; errors of its tasks surface here."""
    PROCESS.stream(stream).synchronize()


@status
def synchronize_stream_with_timeout(stream: int, timeout: int) -> None:
    """Wait at most so many milliseconds of simulated time; -1: as long as it takes."""
    PROCESS.stream(stream).synchronize(_seconds(timeout))


@value(NOT_READY)
def stream_query(stream: int) -> int:
    """0: all that was queued is over; 1: not yet."""
    found = PROCESS.stream(stream)
    PROCESS.device.call("stream_query")
    return READY if found.done else NOT_READY


@value(-1)
def stream_get_id(stream: int) -> int:
    """A stream's number, as in the timeline."""
    return PROCESS.stream(stream).number


@value(0)
def get_stream_available_num() -> int:
    """How many more streams there may be."""
    return PROCESS.device.streams_left


def device_get_stream_priority_range() -> tuple[int, int, int]:
    """The lowest and the highest priority, and a code."""
    return 7, 0, Code.SUCCESS.value


@status
def stream_wait_event(stream: int, event: int) -> None:
    """Let what is queued on a stream from now on wait for an event."""
    PROCESS.handles.get(event, Event).wait(PROCESS.stream(stream))


# -- events ------------------------------------------------------------------------------------


@value(0)
def create_event() -> int:
    """An event."""
    return PROCESS.handles.new(PROCESS.device.event())


@value(0)
def create_event_with_flag(flag: int) -> int:
    """An event; those for times alone (8) do not count among the chip's."""
    return PROCESS.handles.new(PROCESS.device.event(counted=flag != EVENT_TIME_LINE))


create_event_ex_with_flag = create_event_with_flag


@status
def destroy_event(event: int) -> None:
    """The end of an event."""
    PROCESS.device.destroy_event(PROCESS.handles.pop(event, Event))


@status
def record_event(event: int, stream: int) -> None:
    """Queue an event: it fires when all before it in the stream is over."""
    PROCESS.handles.get(event, Event).record(PROCESS.stream(stream))


@status
def reset_event(event: int, stream: int) -> None:
    """Forget an event's record."""
    PROCESS.stream(stream)
    PROCESS.handles.get(event, Event).reset()


@value(NOT_READY)
def query_event(event: int) -> int:
    """0: the record is over; 1: not yet."""
    return READY if _polled(event, "query_event").complete else NOT_READY


@value(RECORDED_NOT_READY)
def query_event_status(event: int) -> int:
    """1: the record is over; 0: not yet."""
    done = _polled(event, "query_event_status").complete
    return RECORDED if done else RECORDED_NOT_READY


@value(NOT_READY)
def query_event_wait_status(event: int) -> int:
    """0: all waits for the event are over; 1: not yet."""
    return READY if _polled(event, "query_event_wait_status").waited else NOT_READY


@status
def synchronize_event(event: int) -> None:
    """Wait until an event's record is over."""
    PROCESS.handles.get(event, Event).synchronize()


@status
def synchronize_event_with_timeout(event: int, timeout: int) -> None:
    """Wait at most so many milliseconds of simulated time; -1: as long as it takes."""
    PROCESS.handles.get(event, Event).synchronize(_seconds(timeout))


@value(0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """Milliseconds from one event to another."""
    return PROCESS.handles.get(end, Event).elapsed_ms(PROCESS.handles.get(start, Event))


@value(0)
def event_get_timestamp(event: int) -> int:
    """When an event's record was over, in microseconds."""
    found = PROCESS.handles.get(event, Event)
    return round(PROCESS.device.chip.seconds(found.cycle) * 1e6)


@value(0)
def get_event_id(event: int) -> int:
    """An event's number, as in errors."""
    return PROCESS.handles.get(event, Event).number


@value(0)
def get_event_avail_num() -> int:
    """How many more events there may be."""
    return PROCESS.device.events_left


# -- errors ------------------------------------------------------------------------------------


def peek_at_last_error(level: int) -> int:
    """The code of the thread's last error (level 0)."""
    return int(getattr(PROCESS.local, "code", 0))


def get_last_error(level: int) -> int:
    """The code of the thread's last error (level 0), once."""
    code = peek_at_last_error(level)
    PROCESS.local.code = 0
    return code


# -- memory ------------------------------------------------------------------------------------


@value(0)
def malloc(size: int, policy: int) -> int:
    """Device memory, with a guard behind it."""
    return PROCESS.device.malloc(size, _policy(policy)).address


malloc_cached = malloc  # all of device memory is cached


@value(0)
def malloc_align32(size: int, policy: int) -> int:
    """Device memory without a guard."""
    return PROCESS.device.malloc(size, _policy(policy), guard=0).address


@status
def free(dev_ptr: int) -> None:
    """Give device memory back."""
    PROCESS.device.free(dev_ptr)


@value(0)
def malloc_host(size: int) -> int:
    """Pinned host memory."""
    return int(PROCESS.device.malloc_host(size).ctypes.data)


@status
def free_host(host_ptr: int) -> None:
    """Give pinned host memory back."""
    PROCESS.device.free_host(host_ptr)


@status
def memcpy(dst: int, dest_max: int, src: int, count: int, kind: int) -> None:
    """Copy and wait."""
    _fits(count, dest_max)
    PROCESS.device.transfers.copy(dst, src, count, _way(kind))


@status
def memcpy_async(dst: int, dest_max: int, src: int, count: int, kind: int, stream: int) -> None:
    """Queue a copy; from or to pageable host memory it returns when the copy is over."""
    _fits(count, dest_max)
    found = PROCESS.stream(stream)
    PROCESS.device.transfers.copy_async(dst, src, count, found, _way(kind))


@status
def memcpy2d(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int
) -> None:
    """Copy rows of `width` bytes that start `dpitch` and `spitch` bytes apart."""
    _fits(width, min(dpitch, spitch))
    for row in range(height):
        PROCESS.device.transfers.copy(dst + row * dpitch, src + row * spitch, width, _way(kind))


@status
def memcpy2d_async(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    """Queue the copy of rows of `width` bytes that start `dpitch` and `spitch` bytes apart."""
    _fits(width, min(dpitch, spitch))
    transfers, found, way = PROCESS.device.transfers, PROCESS.stream(stream), _way(kind)
    for row in range(height):
        transfers.copy_async(dst + row * dpitch, src + row * spitch, width, found, way)


@status
def memset(dev_ptr: int, max_count: int, value: int, count: int) -> None:
    """Fill device memory with a byte."""
    _fits(count, max_count)
    PROCESS.device.memset(dev_ptr, value, count)


@status
def memset_async(dev_ptr: int, max_count: int, value: int, count: int, stream: int) -> None:
    """Queue the filling of device memory with a byte."""
    _fits(count, max_count)
    PROCESS.device.memset(dev_ptr, value, count, PROCESS.stream(stream))


@status
def cmo_async(src: int, size: int, cmo_type: int, stream: int) -> None:
    """Queue a cache operation; 0: bring device memory into L2."""
    if cmo_type != 0:
        raise InvalidUseError(
            Code.RT_FEATURE_NOT_SUPPORT, f"cmo type {cmo_type}", "0 (prefetch)", "use prefetch"
        )
    PROCESS.device.prefetch(src, size, PROCESS.stream(stream))


@status
def mem_flush(dev_ptr: int, size: int) -> None:
    """Costs a call; there is nothing to do, as host and device share no cache."""
    PROCESS.device.call("mem_flush")


mem_invalidate = mem_flush


def get_mem_info(attr: int) -> tuple[int, int, int]:
    """Free bytes, bytes in all, and a code; attr 1: HBM, 4: its huge pages, 5: normal ones."""
    free_, ret = _mem_info(attr)
    return (*free_, ret)


@value((0, 0))
def _mem_info(attr: int) -> tuple[int, int]:
    if attr not in list(MemAttr):
        raise InvalidUseError(
            Code.RT_INVALID_MALLOC_TYPE,
            f"aclrtMemAttr {attr}",
            ", ".join(f"{a.value} ({a.name})" for a in MemAttr),
            "use one of these",
        )
    device = PROCESS.device
    device.call("get_mem_info")
    page = {MemAttr.HBM_HUGE: HUGE, MemAttr.DDR_HUGE: HUGE}.get(MemAttr(attr), NORMAL)
    return device.memory.info(page)


def _policy(number: int) -> MemPolicy:
    base = number & ~BAND_WIDTH_BITS
    if base not in range(6):
        raise InvalidUseError(
            Code.RT_INVALID_MALLOC_TYPE,
            f"aclrtMemMallocPolicy {number}",
            "0 to 2 (HUGE_FIRST, HUGE_ONLY, NORMAL_ONLY), 3 to 5 (the same, P2P)",
            "use one of these",
        )
    return MemPolicy(base % 3)


def _way(kind: int) -> Way:
    if kind not in list(Way):
        raise InvalidUseError(
            Code.RT_PARAM_INVALID,
            f"aclrtMemcpyKind {kind}",
            ", ".join(f"{w.value} ({w.name})" for w in Way),
            "use one of these",
        )
    return Way(kind)


def _fits(count: int, most: int) -> None:
    if not 0 <= count <= most:
        raise InvalidUseError(
            Code.RT_PARAM_INVALID, f"{count} B into {most} B", "at most as many", "copy fewer"
        )


def _seconds(timeout: int) -> float | None:
    if timeout == 0 or timeout < -1:
        raise InvalidUseError(
            Code.RT_PARAM_INVALID, f"a timeout of {timeout} ms", "-1, or 1 and more", "choose one"
        )
    return None if timeout < 0 else timeout / 1000


def _polled(event: int, name: str) -> Event:
    found = PROCESS.handles.get(event, Event)
    PROCESS.device.call(name)
    return found
