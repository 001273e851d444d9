"""The built-in models: registered by one decorator, built by one function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from npusim.errors import ModelError, nearest
from npusim.ir import DType, Graph
from npusim.models.builder import GraphBuilder

Dims = tuple[int | str, ...]  #: of an input: a number, "batch", or the name of an option
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """A built-in model.

    Attributes:
        name: what users call it.
        description: one line.
        inputs: the dims of each graph input, by input name; "{layer}" in a name stands for the
            number of each layer.
        options: the builder's options with their defaults, `batch` not among them.
        batched: False for the single operators, whose sizes are options.
    """

    name: str
    description: str
    inputs: Mapping[str, Dims]
    options: Mapping[str, int]
    batched: bool
    build: Callable[..., None]

    def sizes(self) -> list[str]:
        """Everything that can be set: the options, and `batch` where there is one."""
        return [*(["batch"] if self.batched else []), *self.options]

    def bind(
        self, shapes: Shapes, batch: int | None = None, options: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """The sizes that shapes of inputs (or sizes by name, `seq=384`), batch and options ask for.

        Shapes win over `options`; two shapes that disagree, or disagree with `batch`, are errors.

        Raises:
            ModelError: an unknown name, a wrong rank, a fixed dimension changed, a conflict.
        """
        bound = {} if batch is None else {"batch": batch}
        for name, shape in shapes.items():
            for dim, size in self._match(name, shape):
                if bound.setdefault(dim, size) != size:
                    raise ModelError(
                        f"model {self.name!r}: {name}={_text(shape)} makes {dim} {size}, "
                        f"which is {bound[dim]} already",
                        f"one value of {dim}: {self._signature()}",
                        f"give {dim} once, or the same value each time",
                    )
        sizes = {self._size_name(key): value for key, value in (options or {}).items()} | bound
        if not self.batched and sizes.pop("batch", 1) != 1:
            raise ModelError(
                f"model {self.name!r} has no batch, but batch {batch} is given",
                self._signature(),
                "scale one of its options instead",
            )
        for key, value in sizes.items():
            if value < 1:
                raise ModelError(
                    f"model {self.name!r}: {key} is {value}", "1 and more", f"raise {key}"
                )
        return sizes

    def _match(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
        """What giving input (or size) `name` this shape says about the model's sizes."""
        declared = re.sub(r"\d+", "{layer}", name)
        if declared not in self.inputs and name not in self.inputs:
            size = self._size_name(name, *self.inputs)
            if len(shape) != 1:
                raise self._misfit(name, shape, f"one number: {size}", f"write {size}=N")
            return [(size, shape[0])]
        dims = self.inputs[name if name in self.inputs else declared]
        if len(shape) != len(dims):
            fix = f"write {name}={_text(dims)}, with numbers"
            raise self._misfit(name, shape, f"rank {len(dims)}: {self._signature()}", fix)
        pairs = list(zip(dims, shape, strict=True))
        for dim, given in pairs:
            if isinstance(dim, int) and dim != given:
                fix = f"keep {dim}, or bring your own .onnx file"
                raise self._misfit(name, shape, f"{name}={_text(dims)}, where {dim} is fixed", fix)
        return [(dim, given) for dim, given in pairs if isinstance(dim, str)]

    def _misfit(self, name: str, shape: tuple[int, ...], allowed: str, fix: str) -> ModelError:
        what = f"model {self.name!r}: shape {name}={_text(shape)} does not fit"
        return ModelError(what, allowed, fix)

    def _size_name(self, key: str, *also: str) -> str:
        """The size called `key`, in any case (M or m)."""
        if key.lower() in self.sizes():
            return key.lower()
        near = nearest(key, [*self.sizes(), *also])
        raise ModelError(
            f"model {self.name!r} has no input or option {key!r}",
            self._signature(),
            f"did you mean {near}?" if near else "use one of these",
        )

    def _signature(self) -> str:
        inputs = [f"{name}={_text(dims)}" for name, dims in self.inputs.items()]
        return f"inputs {' '.join(inputs)}; options {', '.join(self.sizes()) or 'none'}"


_MODELS: dict[str, Model] = {}
Build = Callable[..., None]


def model(name: str, description: str, inputs: Mapping[str, Dims]) -> Callable[[Build], Build]:
    """Decorator: register `build(g: GraphBuilder, *, batch, option=default, …)` as a model.

    Raises:
        ValueError: the name is taken.
    """

    def register(build: Build) -> Build:
        if name in _MODELS:
            raise ValueError(f"model {name!r} is registered twice")
        parameters = list(inspect.signature(build).parameters.values())[1:]
        options = {p.name: p.default for p in parameters if p.name != "batch"}
        batched = len(options) < len(parameters)
        _MODELS[name] = Model(name, description, inputs, options, batched, build)
        return build

    return register


def list_models() -> list[Model]:
    """The built-in models, by name."""
    return [_MODELS[name] for name in sorted(_MODELS)]


def get_model(name: str) -> Model:
    """The built-in model of that name.

    Raises:
        ModelError: there is none.
    """
    if name not in _MODELS:
        near = nearest(name, _MODELS)
        raise ModelError(
            f"no built-in model {name!r}",
            ", ".join(sorted(_MODELS)),
            f"did you mean {near}?" if near else "use one of these, or a path to an .onnx file",
        )
    return _MODELS[name]


def build_model(
    name: str,
    *,
    batch: int | None = None,
    seed: int = 0,
    dtype: DType | str = DType.FLOAT32,
    shapes: Shapes | None = None,
    **options: int,
) -> Graph:
    """Build a built-in model; weights are lazy and depend on `seed` and their names only.

    Args:
        name: see `list_models()`.
        batch: images or sequences at once: 1 unless the shapes say otherwise.
        seed: seed of the weights.
        dtype: element type of weights and float inputs.
        shapes: shapes of inputs, bound to the options that make them.
        options: the model's own options, e.g. `seq=384` or `m=8192`.

    Raises:
        ModelError: unknown model or option, or a size that cannot be.
    """
    found = get_model(name)
    g = GraphBuilder(name, _float_type(dtype), seed)
    found.build(g, **found.bind(shapes or {}, batch, options))
    return g.finish()


def _float_type(dtype: DType | str) -> DType:
    allowed = {d.value: d for d in DType if d.is_float}
    name = dtype.value if isinstance(dtype, DType) else dtype
    if name not in allowed:
        near = nearest(name, allowed)
        raise ModelError(
            f"element type {name!r} of a built-in model",
            ", ".join(allowed),
            f"did you mean {near}?" if near else "use one of these",
        )
    return allowed[name]


def _text(dims: Dims | tuple[int, ...]) -> str:
    return ",".join(map(str, dims))
