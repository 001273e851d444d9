"""Readers of recorded profiles: column sets, quoting, folders, and broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.errors import ModelError
from npusim.frontends.recorded import RecordedTensor, chip_of, read_profile

#: As msprof writes it on 910A: a TAB after the time, shapes in quotes of their own.
OP_SUMMARY = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,"
    "Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Dim,Mix Block Dim,"
    "HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID,aicore_time(us),mac_ratio\n"
    '0,1,9,3,late,Add,static,AI_CORE,"1736408883674700.100\t",12.5,0.1,30,0,NO,'
    '"""32,4,56,56,16;""",FLOAT16;FLOAT16,NC1HWC0;ND,"""32,4,56,56,16""",FLOAT16,NC1HWC0,'
    "N/A,10.1,0.0\n"
    '0,1,8,3,early,MatMulV2,static,AI_CORE,"1736408883674584.732\t",99,0.1,32,0,NO,'
    '"""128,64;64,32;""",FLOAT16;FLOAT16;DT_UNDEFINED,ND;FRACTAL_NZ;NULL,"""128,32""",FLOAT,ND,'
    "N/A,90.0,0.7\n"
    '0,1,7,3,hcom_allReduce__1,hcom_allReduce_,N/A,HCCL,"1736408883674584.000\t",900,0,0,0,N/A,'
    "N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A\n"
    '0,1,6,3,EVENT,N/A,N/A,EVENT_RECORD_SQE,"1736408883674583.000\t",1,0,0,0,N/A,'
    "N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A\n"
)
#: The newest 910B column set: Block Num, aic_/aiv_ columns, no Task ID.
DETAILS = (
    "Device_id,Step Id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,"
    "aicore_time(us),aic_mac_ratio,aiv_time(us),aiv_vec_ratio\n"
    '0,1,aclnnCast,Cast,dynamic,AI_VECTOR_CORE,"10.000\t",5.5,0,40,0,NO,'
    '"""4096,1024""",DT_BF16,ND,"""4096,1024""",FLOAT,ND,N/A,0,0,5.1,0.2\n'
)
COMPACT = (
    "net,op_type,block_dim,inputs,outputs,count,median_us\n"
    'vit,MatMul,30,"FRACTAL_NZ:fp16:4,8,16,16;ND:fp32:;ND:begin:7",FracZ:fp16:9,3,1.5\n'
)
FIGURES = (
    "op,shape,dtype,device,duration_us,tflops,GB/s,source,block_dim,note\n"
    'Cast,"1,4096,1024 -> 1,4096,1024",DT_BF16,Ascend910B4 (20 AIC/40 AIV @1.65 GHz),23.83,,'
    "1056.1,who:where,40,msprof; core=AI_VECTOR_CORE; fmt=NCL; workload=x\n"
    "Relu6,8 -> 8,FLOAT,Ascend310 (2 cores @0.68 GHz),3.1,,,there,1,"
    '"aicore_time from msprof; fmt NC1HWC0; attrs {""ksize"": [1, 3], ""mode"": ""X"", ""pa"\n'
    "HCCL AllReduce,655360 bytes,fp16,Ascend910B,468,,,there,,host\n"
)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_op_summary_in_the_order_of_time(tmp_path: Path) -> None:
    first, second = read_profile(write(tmp_path, "op_summary_20260101.csv", OP_SUMMARY))
    assert (first.name, first.op_type, first.block_dim) == ("early", "MatMulV2", 32)
    assert (first.measured_us, first.start_us) == (99.0, 1736408883674584.732)
    assert first.inputs == (
        RecordedTensor("ND", "float16", (128, 64)),
        RecordedTensor("FRACTAL_NZ", "float16", (64, 32)),
    )
    assert first.outputs == (RecordedTensor("ND", "float32", (128, 32)),)
    assert second.inputs[1] == RecordedTensor("ND", "float16", ())  # a scalar's shape is empty
    assert second.core_type == "AI_CORE"


def test_kernel_details_of_910b(tmp_path: Path) -> None:
    (op,) = read_profile(write(tmp_path, "kernel_details.csv", DETAILS))
    assert (op.op_type, op.core_type, op.block_dim) == ("Cast", "AI_VECTOR_CORE", 40)
    assert (op.inputs[0].dtype, op.outputs[0].dtype) == ("bfloat16", "float32")


def test_compact_table(tmp_path: Path) -> None:
    (op,) = read_profile(write(tmp_path, "t.csv", COMPACT))
    assert (op.net, op.count, op.measured_us, op.device) == ("vit", 3, 1.5, "")
    assert [t.shape for t in op.inputs] == [(4, 8, 16, 16), (), (7,)]
    assert op.outputs[0].format == "FRACTAL_Z"


def test_figure_table(tmp_path: Path) -> None:
    cast, relu = read_profile(write(tmp_path, "t.csv", FIGURES))  # the collective is no operator
    assert cast.outputs[0].dtype == "float32"  # as its bytes say: 2 + 4 an element
    assert (cast.core_type, cast.source, cast.core_time_only) == (
        "AI_VECTOR_CORE", "who:where", False,
    )  # fmt: skip
    assert (relu.core_time_only, relu.outputs[0].dtype) == (True, "float32")
    assert (cast.attrs, relu.attrs) == ((), (("ksize", (1, 3)), ("mode", "X")))  # one is cut off
    assert [chip_of(op.device) for op in (cast, relu)] == ["ascend910b4", "ascend310"]


def test_attributes_in_a_note(tmp_path: Path) -> None:
    head = FIGURES.splitlines()[0] + "\n"
    line = 'L2Loss,8 -> 1,FLOAT,Ascend310 (2 cores @0.68 GHz),3.1,,,there,1,"attrs {note}"\n'
    text = head + line.format(note='{""p"": 0, ""axes"": [1, 2]}')
    (op,) = read_profile(write(tmp_path, "t.csv", text))
    assert (op.attr("axes"), op.attr("p"), op.attr("eps", 1)) == ((1, 2), 0, 1)
    broken = text.replace("[1, 2]}", "[1, 2}")
    with pytest.raises(ModelError, match="JSON object"):
        read_profile(write(tmp_path, "u.csv", broken))


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("Ascend910B (Atlas A2)", ""),
        ("Ascend910B2", "ascend910b2"),
        ("Ascend910 gen-1 (30 AI cores)", "ascend910-30c"),
        ("Ascend310P3", "ascend310p3"),
        ("Ascend910", ""),
    ],
)
def test_a_device_is_a_chip_only_for_certain(device: str, chip: str) -> None:
    assert chip_of(device) == chip


def test_ranks_are_nets_and_details_stand_for_summaries(tmp_path: Path) -> None:
    for rank in (0, 1):
        root = tmp_path / f"rank_{rank}_ascend_pt"
        write(root, "ASCEND_PROFILER_OUTPUT/kernel_details.csv", DETAILS)
        write(root, "PROF_1/mindstudio_profiler_output/op_summary_1.csv", OP_SUMMARY)
        write(root, "ASCEND_PROFILER_OUTPUT/op_statistic.csv", "Device_id,OP Type\n0,Add\n")
    ops = read_profile(tmp_path)
    assert [op.net for op in ops] == ["rank_0_ascend_pt", "rank_1_ascend_pt"]
    assert {op.op_type for op in ops} == {"Cast"}


def replaced(text: str, old: str, new: str) -> bytes:
    assert old in text
    return text.replace(old, new).encode()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "columns none"),
        (b"a,b\n1,2\n", "columns a, b"),
        (b"\xff\xfe\x00", "cannot read"),
        (replaced(COMPACT, "4,8,16,16", "4,x"), "line 2: a shape is '4,x'"),
        (replaced(COMPACT, ",3,1.5", ",3,soon"), "median_us is 'soon'"),
        (replaced(COMPACT, ",3,1.5", ",3,-1"), "median_us is '-1'"),
        (replaced(COMPACT, ",3,1.5", ",3,nan"), "median_us is 'nan'"),
        (replaced(COMPACT, ",3,1.5", ",3"), "line 2: more or fewer cells"),
        (replaced(COMPACT, ",3,1.5", ",3,1.5,9"), "line 2: more or fewer cells"),
        (replaced(DETAILS, '"10.000\t",5.5', '"10.000\t",'), "Duration(us) is empty"),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes, word: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(data)
    with pytest.raises(ModelError) as error:
        read_profile(path)
    assert word in error.value.what
    assert len(str(error.value).split("\n")) == 3


@pytest.mark.parametrize("name", ["nothing.csv", "."])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"cannot read|no recorded profile"):
        read_profile(tmp_path / name)


GEMMS = (
    "op,shape,dtype,device,duration_us,tflops,GB/s,source,block_dim,note\n"
    "torch.matmul,1024x1024x1024,fp16,Ascend910B2,21.9,98,,there,,duration derived\n"
    'GEMM catlass ex.34 single-core splitK,"4096x8000x4096 (M,K,N)",fp16,Ascend910B,917,,,x,,\n'
    "aclnnMatmul thin-M (device time),16x5120x8704,fp16,Ascend910 gen-1 (30 AI cores),156,,,x,,\n"
    '"GEMM (compute only, gemm_ar)",5416x6144x1408,fp16,Ascend910B (A2),368,,,x,,\n'
    "GEMV M=1 aclnnMatmul (weight read),60 MB weights,fp16,Ascend910B2,200,,,x,,\n"
    "MatMul M=1,1x5120x4352,fp16,Ascend910 gen-1 (30 AI cores),,,,x,,\n"
)


def test_products_whose_sides_are_certain(tmp_path: Path) -> None:
    cube, split, thin = read_profile(write(tmp_path, "t.csv", GEMMS))
    assert {op.op_type for op in (cube, split, thin)} == {"GEMM"}
    assert [op.call_time for op in (cube, split, thin)] == [True, False, False]
    assert all(op.repeated for op in (cube, split, thin))
    assert [t.shape for t in split.inputs] == [(4096, 8000), (8000, 4096)]
    assert [t.shape for t in thin.inputs] == [(16, 5120), (5120, 8704)]
    assert thin.outputs[0] == RecordedTensor("ND", "float16", (16, 8704))
