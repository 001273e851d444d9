"""`acl` and `acl.rt`: pyACL's values, codes and handles."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npusim.acl as acl

Start = Callable[..., None]
MIB = 1 << 20


def ok(result: tuple[int, int]) -> int:
    """The value of a call that succeeded."""
    assert result[1] == 0, acl.get_recent_err_msg()
    return result[0]


def message() -> str:
    """The text of the last error."""
    return acl.get_recent_err_msg() or ""


# -- the beginning and the end -----------------------------------------------------------------


def test_init_and_finalize_once_each() -> None:
    assert acl.rt.set_device(0) == 100001
    assert acl.init() == 0
    assert acl.init() == 100002
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    assert message().startswith("error: a second acl.finalize\nallowed: ")
    assert acl.get_recent_err_msg() is None  # told once


def test_the_chip_is_chosen_by_file_by_environment_or_by_default(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert acl.get_soc_name() == ""
    start("ascend910b2")
    assert acl.get_soc_name() == "Ascend910B2"
    acl.finalize()
    acl.init()
    assert acl.get_soc_name() == "Ascend910A"
    acl.finalize()
    monkeypatch.setenv("NPUSIM_CHIP", "toy")
    acl.init()
    assert acl.get_soc_name() == "toy"


@pytest.mark.parametrize(
    ("content", "code"),
    [("{", 100006), ("[]", 100006), ('{"npusim": {"devices": "two"}}', 100006), (None, 100003)],
)
def test_a_bad_configuration_is_refused(content: str | None, code: int, tmp_path: Path) -> None:
    path = tmp_path / "acl.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert acl.init(str(path)) == code
    assert str(path) in message()
    assert acl.finalize() == 100001 or acl.finalize() == 100037


def test_an_unknown_chip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acl.json"
    path.write_text('{"npusim": {"chip": "ascend911"}}', encoding="utf-8")
    assert acl.init(str(path)) == 500002
    assert "ascend911" in message()


def test_devices_and_run_mode(start: Start) -> None:
    start(devices=2)
    assert acl.rt.get_device_count() == (2, 0)
    assert acl.rt.get_run_mode() == (1, 0)
    assert acl.rt.get_device() == (0, 0)
    assert acl.rt.set_device(1) == 0
    assert acl.rt.get_device() == (1, 0)
    assert acl.rt.set_device(2) == 107001
    assert acl.rt.reset_device(1) == 0
    assert acl.rt.reset_device(1) == 107001
    assert acl.rt.get_device() == (-1, 107002)
    assert acl.rt.device_can_access_peer(0, 1) == (0, 0)


def test_leaks_are_reported_at_the_end(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start()
    ok(acl.rt.malloc(1000, 2))
    with caplog.at_level(logging.WARNING, "npusim.runtime"):
        assert acl.rt.reset_device(0) == 0
    assert "1,000 B  NORMAL_ONLY normal pages  test_acl_rt.py:" in caplog.text


def test_contexts_are_of_threads_and_have_streams_of_their_own(start: Start) -> None:
    start()
    first = ok(acl.rt.get_context())
    second = ok(acl.rt.create_context(0))
    assert ok(acl.rt.get_context()) == second != first
    assert acl.rt.stream_get_id(0) != (0, 0)
    codes: list[object] = []

    def other() -> None:
        codes.append(acl.rt.create_stream())
        codes.append(acl.rt.set_context(first))
        codes.append(acl.rt.stream_get_id(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [(0, 107002), 0, (0, 0)]
    assert acl.rt.destroy_context(second) == 0
    assert ok(acl.rt.get_context()) == first
    assert acl.rt.destroy_context(first) == 107000
    assert acl.rt.set_context(second) == 107017


def test_a_stream_of_another_device_is_refused(start: Start) -> None:
    start(devices=2)
    stream = ok(acl.rt.create_stream())
    acl.rt.set_device(1)
    assert acl.rt.synchronize_stream(stream) == 107003
    assert acl.rt.synchronize_stream(stream + 1) == 107017
    assert "is nothing, not a Stream" in message()


# -- streams and events --------------------------------------------------------------------------


def test_streams(start: Start) -> None:
    start(changes=("scheduler.max_streams=3",))
    assert acl.rt.get_stream_available_num() == (2, 0)
    a = ok(acl.rt.create_stream())
    b = ok(acl.rt.create_stream_with_config(7, 1))
    assert acl.rt.create_stream() == (0, 207008)
    assert "at most 3 at a time" in message()
    assert acl.rt.destroy_stream(a) == 0
    assert acl.rt.destroy_stream(a) == 107017
    assert acl.rt.destroy_stream(0) == 107000
    assert acl.rt.destroy_stream_force(b) == 0
    assert acl.rt.device_get_stream_priority_range() == (7, 0, 0)


def test_queries_and_synchronisation(start: Start) -> None:
    start()
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    ptr = ok(acl.rt.malloc(64 * MIB, 0))
    assert acl.rt.query_event_status(event) == (0, 0)
    assert acl.rt.synchronize_event(event) == 107000
    assert acl.rt.memset_async(ptr, 64 * MIB, 1, 64 * MIB, stream) == 0
    assert acl.rt.record_event(event, stream) == 0
    assert acl.rt.stream_wait_event(0, event) == 0
    assert acl.rt.stream_query(stream) == (1, 0)
    assert acl.rt.query_event(event) == (1, 0)
    assert acl.rt.query_event_wait_status(event) == (1, 0)
    assert acl.rt.synchronize_event_with_timeout(event, 0) == 107000
    assert acl.rt.synchronize_stream_with_timeout(stream, -2) == 107000
    assert acl.rt.synchronize_event_with_timeout(event, -1) == 0
    assert acl.rt.synchronize_stream_with_timeout(stream, 100) == 0
    assert acl.rt.synchronize_device() == 0
    assert acl.rt.stream_query(stream) == (0, 0)
    assert acl.rt.query_event(event) == (0, 0)
    assert acl.rt.query_event_status(event) == (1, 0)
    assert acl.rt.query_event_wait_status(event) == (0, 0)
    assert acl.rt.reset_event(event, stream) == 0
    assert acl.rt.query_event_status(event) == (0, 0)


def test_timeouts_have_numbers_of_their_own(start: Start) -> None:
    start(changes=("sdma.bandwidth=1 GB/s",))
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event())
    ptr = ok(acl.rt.malloc(8 * MIB, 0))
    acl.rt.memset_async(ptr, 8 * MIB, 1, 8 * MIB, stream)
    acl.rt.record_event(event, stream)
    assert acl.rt.synchronize_stream_with_timeout(stream, 1) == 507046
    assert acl.rt.synchronize_device_with_timeout(1) == 507046
    assert acl.rt.synchronize_event_with_timeout(event, 1) == 507047
    assert acl.rt.synchronize_device_with_timeout(-1) == 0


def test_times_of_events(start: Start) -> None:
    start()
    ptr, stream = ok(acl.rt.malloc(MIB, 0)), ok(acl.rt.create_stream())
    first, last = ok(acl.rt.create_event_with_flag(8)), ok(acl.rt.create_event_ex_with_flag(8))
    assert acl.rt.event_elapsed_time(first, last) == (0.0, 107006)
    acl.rt.record_event(first, stream)
    acl.rt.memset_async(ptr, MIB, 1, MIB, stream)
    acl.rt.record_event(last, stream)
    acl.rt.synchronize_stream(stream)
    ms, ret = acl.rt.event_elapsed_time(first, last)
    assert ret == 0 and ms > MIB / 100e9 * 1e3  # SDMA's rate
    assert acl.rt.event_elapsed_time(last, first) == (0.0, 107007)
    begin, end = ok(acl.rt.event_get_timestamp(first)), ok(acl.rt.event_get_timestamp(last))
    assert abs((end - begin) / 1e3 - ms) <= 1e-3
    assert ok(acl.rt.get_event_id(last)) == ok(acl.rt.get_event_id(first)) + 1


def test_events_are_limited_but_those_for_times(start: Start) -> None:
    start(changes=("scheduler.max_events=2",))
    one = ok(acl.rt.create_event())
    ok(acl.rt.create_event_with_flag(1))
    assert acl.rt.get_event_avail_num() == (0, 0)
    assert acl.rt.create_event() == (0, 207007)
    ok(acl.rt.create_event_with_flag(8))
    assert acl.rt.destroy_event(one) == 0
    assert acl.rt.destroy_event(one) == 107017
    assert acl.rt.get_event_avail_num() == (1, 0)


def test_a_circle_of_waits_times_out_with_its_names(start: Start) -> None:
    start()
    a, b = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    x, y = ok(acl.rt.create_event()), ok(acl.rt.create_event())
    acl.rt.stream_wait_event(a, x), acl.rt.record_event(y, a)
    acl.rt.stream_wait_event(b, y), acl.rt.record_event(x, b)
    assert acl.rt.synchronize_stream(a) == 107020
    assert "streams wait in a circle: " in message()


# -- memory ----------------------------------------------------------------------------------------


def test_memory_info_tells_of_every_kind_of_pages(start: Start) -> None:
    start(changes=("hbm.size=64 MiB",))
    for attr in range(6):
        assert acl.rt.get_mem_info(attr) == (64 * MIB, 64 * MIB, 0)
    assert acl.rt.get_mem_info(6) == (0, 0, 107018)
    ptr = ok(acl.rt.malloc(4096, 2))
    assert acl.rt.get_mem_info(1) == (64 * MIB - 8192, 64 * MIB, 0)  # the guard's page too
    assert acl.rt.get_mem_info(4) == (62 * MIB, 64 * MIB, 0)
    assert acl.rt.free(ptr) == 0
    assert acl.rt.get_mem_info(1) == (64 * MIB, 64 * MIB, 0)


@pytest.mark.parametrize("policy", [0, 1, 2, 3, 4, 5, 0x1000, 0x101])
def test_policies(start: Start, policy: int) -> None:
    start()
    assert acl.rt.free(ok(acl.rt.malloc(100, policy))) == 0


def test_out_of_memory_has_numbers_and_a_map(start: Start) -> None:
    start(changes=("hbm.size=40 MiB",))
    ptr = ok(acl.rt.malloc(37 * MIB, 2))
    assert acl.rt.malloc(4 * MIB, 0) == (0, 207018)
    text = message()
    assert f"{ptr:#x}" in text and "NORMAL_ONLY normal pages  test_acl_rt.py:" in text
    assert acl.rt.malloc(5 * MIB // 2, 1) == (0, 207001)
    assert acl.rt.malloc(0, 0) == (0, 107000)
    assert acl.rt.malloc(8, 6) == (0, 107018)
    assert acl.rt.malloc_host(0) == (0, 107000)


def test_variants_of_malloc(start: Start) -> None:
    start()
    cached, plain = ok(acl.rt.malloc_cached(64, 0)), ok(acl.rt.malloc_align32(64, 0))
    assert acl.rt.memset(cached, 96, 1, 96) == 507053  # into the guard
    assert acl.rt.memset(plain, 96, 1, 65) == 507053  # there is none: past the end
    assert "1 B past the end" in message()
    assert acl.rt.mem_flush(cached, 64) == 0 == acl.rt.mem_invalidate(cached, 64)


def test_frees_that_are_wrong(start: Start) -> None:
    start()
    ptr = ok(acl.rt.malloc(64, 0))
    assert acl.rt.free(ptr + 32) == 107000
    assert acl.rt.free(ptr) == 0
    assert acl.rt.free(ptr) == 107000
    assert acl.rt.peek_at_last_error(0) == 107000 == acl.rt.get_last_error(0)
    assert acl.rt.peek_at_last_error(0) == 0
    assert "a second free" in message()
    assert acl.rt.free_host(12345) == 107000


def test_copies(start: Start) -> None:
    start()
    x, y = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    a, b = ok(acl.rt.malloc(100, 0)), ok(acl.rt.malloc(100, 0))
    stream = ok(acl.rt.create_stream())
    assert acl.rt.memcpy(a, 100, x.ctypes.data, 100, 1) == 0
    assert acl.rt.memcpy_async(b, 100, a, 100, 3, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert acl.rt.memcpy(y.ctypes.data, 100, b, 100, 4) == 0
    assert np.array_equal(x, y)
    assert acl.rt.memcpy(a, 99, x.ctypes.data, 100, 1) == 107000  # larger than dest_max
    assert acl.rt.memcpy(a, 100, x.ctypes.data, 100, 2) == 107000  # the other way
    assert acl.rt.memcpy(a, 100, x.ctypes.data, 100, 9) == 107000
    assert acl.rt.memcpy(a, 100, 0, 100, 1) == 107000
    assert acl.rt.memcpy_async(y.ctypes.data, 100, x.ctypes.data, 100, 0, stream) == 207000
    assert acl.rt.memcpy(y.ctypes.data, 100, x.ctypes.data, 100, 0) == 0


def test_rows_are_copied_apart(start: Start) -> None:
    start()
    x = np.arange(24, dtype=np.uint8).reshape(4, 6)
    y = np.zeros((4, 3), np.uint8)
    a = ok(acl.rt.malloc(40, 0))
    assert acl.rt.memcpy2d(a, 10, x.ctypes.data, 6, 3, 4, 1) == 0
    assert acl.rt.memcpy2d(y.ctypes.data, 3, a, 10, 3, 4, 2) == 0
    assert np.array_equal(y, x[:, :3])
    assert acl.rt.memcpy2d(a, 2, x.ctypes.data, 6, 3, 4, 1) == 107000
    assert acl.rt.memcpy2d_async(a, 10, x.ctypes.data + 3, 6, 3, 4, 1, 0) == 0
    assert acl.rt.memcpy2d_async(y.ctypes.data, 3, a, 10, 3, 4, 2, 0) == 0
    assert np.array_equal(y, x[:, 3:])


def test_use_after_free_surfaces_at_synchronisation(start: Start) -> None:
    start()
    stream, a, b = ok(acl.rt.create_stream()), ok(acl.rt.malloc(MIB, 0)), ok(acl.rt.malloc(MIB, 0))
    assert acl.rt.memcpy_async(b, MIB, a, MIB, 3, stream) == 0
    assert acl.rt.free(a) == 0
    assert acl.rt.synchronize_stream(stream) == 507053
    text = message()
    assert "memcpy_1 reads 1048576 B at" in text and "freed" in text and "test_acl_rt.py" in text


def test_a_prefetch(start: Start) -> None:
    start()
    stream, a = ok(acl.rt.create_stream()), ok(acl.rt.malloc(MIB, 0))
    assert acl.rt.cmo_async(a, MIB, 0, stream) == 0
    assert acl.rt.cmo_async(a, MIB, 1, stream) == 207000
    assert acl.rt.synchronize_stream(stream) == 0
    timeline = acl.timeline()
    assert timeline is not None and [op.op_type for op in timeline.ops] == ["CMO_PREFETCH"]


# -- tensors, buffers, pointers --------------------------------------------------------------------


def test_tensor_descriptions(start: Start) -> None:
    start()
    desc = acl.create_tensor_desc(1, [2, 17, 3, 3], 0)
    assert acl.get_tensor_desc_type(desc) == 1
    assert acl.get_tensor_desc_format(desc) == 0
    assert acl.get_tensor_desc_size(desc) == 2 * 17 * 3 * 3 * 2
    assert acl.get_tensor_desc_element_count(desc) == 2 * 17 * 3 * 3
    assert acl.get_tensor_desc_num_dims(desc) == 4
    assert acl.get_tensor_desc_dim(desc, 1) == 17
    assert acl.get_tensor_desc_dim_v2(desc, 1) == (17, 0)
    assert acl.get_tensor_desc_dim_v2(desc, 4) == (-1, 100000)
    acl.set_tensor_desc_name(desc, "x")
    assert acl.get_tensor_desc_name(desc) == "x"
    acl.destroy_tensor_desc(desc)
    assert acl.get_tensor_desc_size(desc) == 0
    assert acl.data_type_size(27) == 2
    assert acl.data_type_size(99) == 0 and "aclDataType 99" in message()
    assert acl.get_tensor_desc_size(acl.create_tensor_desc(77, [1], 2)) == 0
    assert "aclDataType 77" in message()


def test_data_buffers(start: Start) -> None:
    start()
    buffer = acl.create_data_buffer(4096, 10)
    assert acl.get_data_buffer_addr(buffer) == 4096
    assert acl.get_data_buffer_size(buffer) == acl.get_data_buffer_size_v2(buffer) == 10
    assert acl.update_data_buffer(buffer, 8192, 20) == 0
    assert (acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size(buffer)) == (8192, 20)
    assert acl.destroy_data_buffer(buffer) == 0
    assert acl.destroy_data_buffer(buffer) == 107017


def test_pointers(start: Start) -> None:
    start()
    host = ok(acl.rt.malloc_host(24))
    view = acl.util.ptr_to_numpy(host, (2, 3), 11)
    view[...] = np.arange(6).reshape(2, 3)
    assert np.frombuffer(acl.util.ptr_to_bytes(host, 24), np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    array = np.arange(4, dtype=np.int32)
    same = acl.util.ptr_to_numpy(acl.util.numpy_to_ptr(array), (4,), np.dtype(np.int32).num)
    same[0] = 9
    assert array[0] == 9
    assert acl.util.ptr_to_bytes(acl.util.bytes_to_ptr(b"abc"), 3) == b"abc"
    ptr, contiguous = acl.util.numpy_contiguous_to_ptr(np.arange(6).reshape(2, 3).T)
    assert contiguous.flags.c_contiguous and contiguous.ctypes.data == ptr
    with pytest.raises(ValueError, match="no type number 999"):
        acl.util.ptr_to_numpy(host, (1,), 999)
    device = ok(acl.rt.malloc(8, 0))
    with pytest.raises(ValueError, match="address of device 0"):
        acl.util.ptr_to_bytes(device, 8)


CALLS: list[Callable[[], object]] = [
    acl.rt.create_stream,
    acl.rt.create_event,
    acl.rt.get_device,
    acl.rt.get_context,
    acl.rt.synchronize_device,
    lambda: acl.rt.malloc(8, 0),
    lambda: acl.rt.get_mem_info(1),
    lambda: acl.mdl.load_from_file("relu"),
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_need_a_context(call: Callable[[], object]) -> None:
    assert acl.init() == 0
    result = call()
    assert (result[-1] if isinstance(result, tuple) else result) == 107002
    assert acl.finalize() == 0
