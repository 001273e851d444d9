"""Numbers of ACL's enums, as in `acl/acl_base.h` and `acl/acl_rt.h`."""

from __future__ import annotations

from enum import IntEnum

from npusim.ir import DType, Layout

#: aclDataType → element type.
DTYPES = {
    0: DType.FLOAT32,
    1: DType.FLOAT16,
    2: DType.INT8,
    3: DType.INT32,
    4: DType.UINT8,
    6: DType.INT16,
    7: DType.UINT16,
    8: DType.UINT32,
    9: DType.INT64,
    10: DType.UINT64,
    11: DType.FLOAT64,
    12: DType.BOOL,
    27: DType.BFLOAT16,
}
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

#: aclFormat → layout; plain formats lie row by row.
LAYOUTS = {
    0: Layout.ND,  # NCHW
    1: Layout.ND,  # NHWC
    2: Layout.ND,
    3: Layout.NC1HWC0,
    4: Layout.FRACTAL_Z,
    29: Layout.FRACTAL_NZ,
    30: Layout.ND,  # NCDHW
    32: Layout.NDC1HWC0,
}
FORMAT_NCHW, FORMAT_ND = 0, 2


class MemAttr(IntEnum):
    """aclrtMemAttr: which memory `get_mem_info` tells of."""

    DDR = 0
    HBM = 1
    DDR_HUGE = 2
    DDR_NORMAL = 3
    HBM_HUGE = 4
    HBM_NORMAL = 5


EVENT_TIME_LINE = 0x8  #: aclrtEvent flag: for times only, as many as one likes
BAND_WIDTH_BITS = 0x1100  #: ACL_MEM_TYPE_LOW_BAND_WIDTH, ACL_MEM_TYPE_HIGH_BAND_WIDTH
READY, NOT_READY = 0, 1  #: aclrtStreamStatus, aclrtEventStatus, aclrtEventWaitStatus
RECORDED_NOT_READY, RECORDED = 0, 1  #: aclrtEventRecordedStatus
RUN_MODE_HOST = 1  #: aclrtRunMode ACL_HOST
