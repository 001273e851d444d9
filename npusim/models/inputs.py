"""What goes into a graph: random inputs that make sense to it, and the count of its weights."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, Graph, Node, Tensor, convert
from npusim.limits import check_host_memory
from npusim.models.builder import generator

Consumers = dict[str, list[Node]]

#: Operators behind which an index is still the same index.
_TRANSPARENT = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}

#: Inputs of BatchNormalization that are statistics, not trained.
_STATISTICS = (3, 4)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs that depend on `seed` and the inputs' names, types and uses only.

    Floats are standard normal. Integers that index a Gather's table stay within it; other
    32- and 64-bit integers are taken for masks, ones and then a padded end of zeros. Booleans are
    fair coins, fp8 and narrower as floats are, and short integers are uniform in 0 … 127.
    """
    consumers = graph.consumers()
    elements = sum(graph.tensors[name].type.size for name in graph.inputs)
    check_host_memory(8 * elements, f"random inputs of {graph.name}")
    return {name: _random(graph, graph.tensors[name], consumers, seed) for name in graph.inputs}


def _random(graph: Graph, tensor: Tensor, consumers: Consumers, seed: int) -> np.ndarray:
    rng, shape, dtype = generator(seed, tensor.name), tensor.shape, tensor.dtype
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.np, copy=False)
    if dtype.is_narrow:
        return convert(rng.standard_normal(shape, np.float32), dtype)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    limit = _index_limit(graph, tensor.name, consumers)
    if limit is not None:
        return rng.integers(0, limit, shape, dtype=dtype.np)
    if dtype.size < 4:
        return rng.integers(0, 128, shape, dtype=dtype.np)
    return _mask(rng, shape).astype(dtype.np)


def _index_limit(graph: Graph, name: str, consumers: Consumers) -> int | None:
    """Length of the shortest table that `name` indexes by a Gather, None when there is none."""
    limits: list[int] = []
    for node in consumers.get(name, ()):
        if node.op_type == "Gather" and name == node.inputs[1]:
            table = graph.tensors[node.inputs[0]].shape
            limits.append(table[node.attrs.get("axis", 0)])
        elif node.op_type in _TRANSPARENT and name == node.inputs[0]:
            found = _index_limit(graph, node.outputs[0], consumers)
            limits += [] if found is None else [found]
    return min(limits, default=None)


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of ones; each ends in zeros, an eighth of its length at most."""
    if not shape:
        return np.ones(shape)
    length = shape[-1]
    used = length - rng.integers(0, length // 8 + 1, prod(shape[:-1]))
    return (np.arange(length) < used[:, None]).reshape(shape)


def count_parameters(graph: Graph) -> int:
    """Trained weights: float constants, but no scalars and no running statistics."""
    norms = [n for n in graph.nodes if n.op_type == "BatchNormalization"]
    statistics = {n.inputs[i] for n in norms for i in _STATISTICS}
    weights = (c.type for name, c in graph.constants.items() if name not in statistics)
    return sum(t.size for t in weights if t.dtype.is_float and t.shape)
