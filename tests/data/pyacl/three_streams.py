"""Copy in, compute, copy out over three streams, a batch of images piece by piece.

In the style of the public pyACL samples: the model's input and output have two device buffers
each, events keep the streams in order. Usage: python three_streams.py MODEL [DEVICE]
"""

import sys

import acl
import numpy as np

ACL_SUCCESS = 0
ACL_MEM_MALLOC_HUGE_FIRST = 0
ACL_MEMCPY_HOST_TO_DEVICE = 1
ACL_MEMCPY_DEVICE_TO_HOST = 2
SLOTS = 2


def check_ret(message, ret):
    if ret != ACL_SUCCESS:
        raise Exception("{} failed ret={}".format(message, ret))


class Slot(object):
    """Device memory for one piece on its way, and the events that say how far it is."""

    def __init__(self, input_size, output_size):
        self.input, ret = acl.rt.malloc(input_size, ACL_MEM_MALLOC_HUGE_FIRST)
        check_ret("acl.rt.malloc", ret)
        self.output, ret = acl.rt.malloc(output_size, ACL_MEM_MALLOC_HUGE_FIRST)
        check_ret("acl.rt.malloc", ret)
        self.input_data = self.dataset(self.input, input_size)
        self.output_data = self.dataset(self.output, output_size)
        self.copied, self.computed, self.fetched = [self.event() for _ in range(3)]

    @staticmethod
    def event():
        event, ret = acl.rt.create_event()
        check_ret("acl.rt.create_event", ret)
        return event

    @staticmethod
    def dataset(address, size):
        dataset = acl.mdl.create_dataset()
        buffer = acl.create_data_buffer(address, size)
        _, ret = acl.mdl.add_dataset_buffer(dataset, buffer)
        check_ret("acl.mdl.add_dataset_buffer", ret)
        return dataset

    def release(self):
        for dataset in (self.input_data, self.output_data):
            for i in range(acl.mdl.get_dataset_num_buffers(dataset)):
                buffer = acl.mdl.get_dataset_buffer(dataset, i)
                check_ret("acl.rt.free", acl.rt.free(acl.get_data_buffer_addr(buffer)))
                check_ret("acl.destroy_data_buffer", acl.destroy_data_buffer(buffer))
            check_ret("acl.mdl.destroy_dataset", acl.mdl.destroy_dataset(dataset))
        for event in (self.copied, self.computed, self.fetched):
            check_ret("acl.rt.destroy_event", acl.rt.destroy_event(event))


class Pipeline(object):
    """A model with three streams."""

    def __init__(self, model_path, device_id=0):
        self.device_id = device_id
        check_ret("acl.init", acl.init())
        check_ret("acl.rt.set_device", acl.rt.set_device(device_id))
        self.context, ret = acl.rt.create_context(device_id)
        check_ret("acl.rt.create_context", ret)
        self.streams = []
        for _ in range(3):
            stream, ret = acl.rt.create_stream()
            check_ret("acl.rt.create_stream", ret)
            self.streams.append(stream)
        self.model_id, ret = acl.mdl.load_from_file(model_path)
        check_ret("acl.mdl.load_from_file", ret)
        self.desc = acl.mdl.create_desc()
        check_ret("acl.mdl.get_desc", acl.mdl.get_desc(self.desc, self.model_id))
        self.input_size = acl.mdl.get_input_size_by_index(self.desc, 0)
        self.output_size = acl.mdl.get_output_size_by_index(self.desc, 0)
        self.slots = [Slot(self.input_size, self.output_size) for _ in range(SLOTS)]

    def run(self, pieces):
        """pieces: arrays of the input's bytes; gives the outputs' bytes."""
        copy_in, compute, copy_out = self.streams
        size_in, size_out = self.input_size, self.output_size
        host_in, host_out = [], []
        for piece in pieces:
            for size, host in ((size_in, host_in), (size_out, host_out)):
                pointer, ret = acl.rt.malloc_host(size)
                check_ret("acl.rt.malloc_host", ret)
                host.append(pointer)
            data = piece.tobytes()
            acl.rt.memcpy(host_in[-1], size_in, acl.util.bytes_to_ptr(data), size_in, 0)
        start, ret = acl.rt.create_event()
        end, ret = acl.rt.create_event()
        check_ret("acl.rt.record_event", acl.rt.record_event(start, copy_in))
        for i in range(len(pieces)):
            slot = self.slots[i % SLOTS]
            if i >= SLOTS:  # the slot's input has been read
                check_ret("wait", acl.rt.stream_wait_event(copy_in, slot.computed))
            ret = acl.rt.memcpy_async(
                slot.input, size_in, host_in[i], size_in, ACL_MEMCPY_HOST_TO_DEVICE, copy_in
            )
            check_ret("acl.rt.memcpy_async", ret)
            check_ret("acl.rt.record_event", acl.rt.record_event(slot.copied, copy_in))
            check_ret("wait", acl.rt.stream_wait_event(compute, slot.copied))
            if i >= SLOTS:  # the slot's output has been fetched
                check_ret("wait", acl.rt.stream_wait_event(compute, slot.fetched))
            ret = acl.mdl.execute_async(self.model_id, slot.input_data, slot.output_data, compute)
            check_ret("acl.mdl.execute_async", ret)
            check_ret("acl.rt.record_event", acl.rt.record_event(slot.computed, compute))
            check_ret("wait", acl.rt.stream_wait_event(copy_out, slot.computed))
            ret = acl.rt.memcpy_async(
                host_out[i], size_out, slot.output, size_out, ACL_MEMCPY_DEVICE_TO_HOST, copy_out
            )
            check_ret("acl.rt.memcpy_async", ret)
            check_ret("acl.rt.record_event", acl.rt.record_event(slot.fetched, copy_out))
        check_ret("acl.rt.record_event", acl.rt.record_event(end, copy_out))
        for stream in self.streams:
            check_ret("acl.rt.synchronize_stream", acl.rt.synchronize_stream(stream))
        self.elapsed_ms, ret = acl.rt.event_elapsed_time(start, end)
        check_ret("acl.rt.event_elapsed_time", ret)
        results = [acl.util.ptr_to_bytes(pointer, size_out) for pointer in host_out]
        for pointer in host_in + host_out:
            check_ret("acl.rt.free_host", acl.rt.free_host(pointer))
        for event in (start, end):
            check_ret("acl.rt.destroy_event", acl.rt.destroy_event(event))
        return results

    def release(self):
        for slot in self.slots:
            slot.release()
        check_ret("acl.mdl.unload", acl.mdl.unload(self.model_id))
        check_ret("acl.mdl.destroy_desc", acl.mdl.destroy_desc(self.desc))
        for stream in self.streams:
            check_ret("acl.rt.destroy_stream", acl.rt.destroy_stream(stream))
        check_ret("acl.rt.destroy_context", acl.rt.destroy_context(self.context))
        check_ret("acl.rt.reset_device", acl.rt.reset_device(self.device_id))
        check_ret("acl.finalize", acl.finalize())


def main(model_path, pieces, device_id=0):
    pipeline = Pipeline(model_path, device_id)
    results = pipeline.run(pieces)
    print("{} pieces in {:.3f} ms".format(len(pieces), pipeline.elapsed_ms))
    pipeline.release()
    return results


if __name__ == "__main__":
    main(sys.argv[1], [np.zeros(int(sys.argv[2]), np.uint8)] * 8)
