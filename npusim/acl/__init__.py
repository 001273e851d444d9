"""`npusim.acl`: pyACL on a simulated device: `import npusim.acl as acl`.

Names, argument order, return values and error numbers are pyACL's. The chip is chosen by the JSON
file that `acl.init` takes ({"npusim": {"chip": "ascend910b2"}}), else by NPUSIM_CHIP in the
environment, else it is "ascend910a". With "sanitize": true there, or NPUSIM_SANITIZE=1, races
between streams are found. `acl.timeline()` and `acl.findings()` are npusim's own.
"""

from npusim.acl import mdl, nn, op, rt, util
from npusim.acl.base import (
    create_data_buffer,
    create_tensor_desc,
    data_type_size,
    destroy_data_buffer,
    destroy_tensor_desc,
    finalize,
    findings,
    get_data_buffer_addr,
    get_data_buffer_size,
    get_data_buffer_size_v2,
    get_recent_err_msg,
    get_soc_name,
    get_tensor_desc_dim,
    get_tensor_desc_dim_v2,
    get_tensor_desc_element_count,
    get_tensor_desc_format,
    get_tensor_desc_name,
    get_tensor_desc_num_dims,
    get_tensor_desc_size,
    get_tensor_desc_type,
    init,
    set_tensor_const,
    set_tensor_desc_name,
    timeline,
    update_data_buffer,
)

__all__ = [
    "create_data_buffer",
    "create_tensor_desc",
    "data_type_size",
    "destroy_data_buffer",
    "destroy_tensor_desc",
    "finalize",
    "findings",
    "get_data_buffer_addr",
    "get_data_buffer_size",
    "get_data_buffer_size_v2",
    "get_recent_err_msg",
    "get_soc_name",
    "get_tensor_desc_dim",
    "get_tensor_desc_dim_v2",
    "get_tensor_desc_element_count",
    "get_tensor_desc_format",
    "get_tensor_desc_name",
    "get_tensor_desc_num_dims",
    "get_tensor_desc_size",
    "get_tensor_desc_type",
    "init",
    "mdl",
    "nn",
    "op",
    "rt",
    "set_tensor_const",
    "set_tensor_desc_name",
    "timeline",
    "update_data_buffer",
    "util",
]
