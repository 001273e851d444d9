"""Operators: importing this package registers them all."""

from npusim.ops import (  # noqa: F401  (importing registers)
    activation,
    arithmetic,
    cast,
    conv,
    elementary,
    gather,
    logic,
    matmul,
    movement,
    normalization,
    pool,
    reduction,
    resize,
    shaping,
)
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    attributes,
    compute_node,
    get_operator,
    infer_node,
    operator,
    operator_names,
    schema,
)

__all__ = [
    "Arrays",
    "Attrs",
    "Inputs",
    "Operator",
    "Types",
    "Work",
    "attributes",
    "compute_node",
    "get_operator",
    "infer_node",
    "operator",
    "operator_names",
    "schema",
]
