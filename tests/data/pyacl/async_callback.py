"""Asynchronous inference with a callback thread.

In the style of the public pyACL samples: a pool of data sets, a run on a stream for each, and a
callback after every few runs that fetches what is finished. Usage: python async_callback.py MODEL
"""

import sys

import acl
import numpy as np

ACL_SUCCESS = 0
ACL_MEM_MALLOC_NORMAL_ONLY = 2
ACL_MEMCPY_HOST_TO_DEVICE = 1
ACL_MEMCPY_DEVICE_TO_HOST = 2
NPY_FLOAT32 = 11


def check_ret(message, ret):
    if ret != ACL_SUCCESS:
        raise Exception("{} failed ret={}".format(message, ret))


class Net(object):
    def __init__(self, model_path, device_id=0, callback_interval=1):
        self.device_id = device_id
        self.callback_interval = callback_interval
        self.exit_flag = False
        self.results = []
        check_ret("acl.init", acl.init())
        check_ret("acl.rt.set_device", acl.rt.set_device(device_id))
        self.context, ret = acl.rt.create_context(device_id)
        check_ret("acl.rt.create_context", ret)
        self.stream, ret = acl.rt.create_stream()
        check_ret("acl.rt.create_stream", ret)
        self.model_id, ret = acl.mdl.load_from_file(model_path)
        check_ret("acl.mdl.load_from_file", ret)
        self.model_desc = acl.mdl.create_desc()
        check_ret("acl.mdl.get_desc", acl.mdl.get_desc(self.model_desc, self.model_id))
        self.output_num = acl.mdl.get_num_outputs(self.model_desc)

    def _load_input_data(self, data):
        if "bytes_to_ptr" in dir(acl.util):
            bytes_data = data.tobytes()
            host = acl.util.bytes_to_ptr(bytes_data)
        else:
            host = acl.util.numpy_to_ptr(data)
        size = data.size * data.itemsize
        device, ret = acl.rt.malloc(size, ACL_MEM_MALLOC_NORMAL_ONLY)
        check_ret("acl.rt.malloc", ret)
        ret = acl.rt.memcpy(device, size, host, size, ACL_MEMCPY_HOST_TO_DEVICE)
        check_ret("acl.rt.memcpy", ret)
        return self._dataset([(device, size)])

    def _load_output_data(self):
        buffers = []
        for i in range(self.output_num):
            size = acl.mdl.get_output_size_by_index(self.model_desc, i)
            device, ret = acl.rt.malloc(size, ACL_MEM_MALLOC_NORMAL_ONLY)
            check_ret("acl.rt.malloc", ret)
            buffers.append((device, size))
        return self._dataset(buffers)

    @staticmethod
    def _dataset(buffers):
        dataset = acl.mdl.create_dataset()
        for device, size in buffers:
            _, ret = acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(device, size))
            check_ret("acl.mdl.add_dataset_buffer", ret)
        return dataset

    def _process_callback(self, args_list):
        context, timeout = args_list
        acl.rt.set_context(context)
        while self.callback_interval:
            acl.rt.process_report(timeout)
            if self.exit_flag:
                break

    def run(self, inputs):
        pool = [[self._load_input_data(x), self._load_output_data()] for x in inputs]
        tid, ret = acl.util.start_thread(self._process_callback, [self.context, 50])
        check_ret("acl.util.start_thread", ret)
        check_ret("acl.rt.subscribe_report", acl.rt.subscribe_report(tid, self.stream))
        waiting = []
        for idx, (data, output) in enumerate(pool):
            ret = acl.mdl.execute_async(self.model_id, data, output, self.stream)
            check_ret("acl.mdl.execute_async", ret)
            waiting.append([data, output])
            if (idx + 1) % self.callback_interval == 0:
                ret = acl.rt.launch_callback(self.callback_func, waiting, 1, self.stream)
                check_ret("acl.rt.launch_callback", ret)
                waiting = []
        check_ret("acl.rt.synchronize_stream", acl.rt.synchronize_stream(self.stream))
        check_ret("acl.rt.unsubscribe_report", acl.rt.unsubscribe_report(tid, self.stream))
        self.exit_flag = True
        check_ret("acl.util.stop_thread", acl.util.stop_thread(tid))
        for datasets in pool:
            for dataset in datasets:
                self._destroy(dataset)

    def callback_func(self, finished):
        for _, output in finished:
            for i in range(acl.mdl.get_dataset_num_buffers(output)):
                buffer = acl.mdl.get_dataset_buffer(output, i)
                size = acl.get_data_buffer_size_v2(buffer)
                host, ret = acl.rt.malloc_host(size)
                check_ret("acl.rt.malloc_host", ret)
                device = acl.get_data_buffer_addr(buffer)
                ret = acl.rt.memcpy(host, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST)
                check_ret("acl.rt.memcpy", ret)
                dims, ret = acl.mdl.get_cur_output_dims(self.model_desc, i)
                check_ret("acl.mdl.get_cur_output_dims", ret)
                result = acl.util.ptr_to_numpy(host, tuple(dims["dims"]), NPY_FLOAT32)
                self.results.append(result.copy())
                check_ret("acl.rt.free_host", acl.rt.free_host(host))

    @staticmethod
    def _destroy(dataset):
        for i in range(acl.mdl.get_dataset_num_buffers(dataset)):
            buffer = acl.mdl.get_dataset_buffer(dataset, i)
            check_ret("acl.rt.free", acl.rt.free(acl.get_data_buffer_addr(buffer)))
            check_ret("acl.destroy_data_buffer", acl.destroy_data_buffer(buffer))
        check_ret("acl.mdl.destroy_dataset", acl.mdl.destroy_dataset(dataset))

    def release_resource(self):
        check_ret("acl.mdl.unload", acl.mdl.unload(self.model_id))
        check_ret("acl.mdl.destroy_desc", acl.mdl.destroy_desc(self.model_desc))
        check_ret("acl.rt.destroy_stream", acl.rt.destroy_stream(self.stream))
        check_ret("acl.rt.destroy_context", acl.rt.destroy_context(self.context))
        check_ret("acl.rt.reset_device", acl.rt.reset_device(self.device_id))
        check_ret("acl.finalize", acl.finalize())


if __name__ == "__main__":
    net = Net(sys.argv[1])
    net.run([np.zeros((64, 96), np.float32)] * 4)
    print("{} results".format(len(net.results)))
    net.release_resource()
