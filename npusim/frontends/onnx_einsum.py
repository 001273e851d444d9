"""Einsum as sums, transposes and matrix products: two operands at a time, from the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from npusim.frontends.onnx_formula import Formula
from npusim.frontends.onnx_opset import NEWEST, Builder, rule
from npusim.ir import Node

_DOTS = "…"  #: a letter for each dimension of an ellipsis is this and its number from the end


@dataclass(frozen=True)
class _Term:
    """A tensor and the letter of each of its dimensions."""

    tensor: str
    letters: tuple[str, ...]


@rule("Einsum", until=NEWEST)
def _einsum(node: Node, builder: Builder, opset: int) -> list[Node]:
    """Where each letter stands once in a term, and the operands are floats."""
    types = [builder.type(i) for i in node.inputs]
    left, arrow, right = node.attrs["equation"].replace(" ", "").partition("->")
    terms = [
        _Term(i, _letters(t, len(k.shape)))
        for i, t, k in zip(node.inputs, left.split(","), types, strict=False)
    ]
    lengths_fit = all(len(t.letters) == len(k.shape) for t, k in zip(terms, types, strict=True))
    if not lengths_fit or not all(k.dtype.is_float for k in types):
        return [node]
    sizes: dict[str, int] = {}
    for term, kind in zip(terms, types, strict=True):
        for letter, n in zip(term.letters, kind.shape, strict=True):
            if sizes.setdefault(letter, n) != n:  # an ellipsis that broadcasts
                return [node]
    dots = sorted({c for t in terms for c in t.letters if c[0] == _DOTS}, reverse=True)
    result = _letters(right, len(dots) + len(right.replace("...", ""))) if arrow else ()
    if not arrow:
        single = [c for c in sorted(left.replace(".", "").replace(",", "")) if left.count(c) == 1]
        result = (*dots, *single)
    repeated = any(len(set(t.letters)) < len(t.letters) for t in terms)
    if repeated or not set(result) <= set(sizes) or any(n == 0 for n in sizes.values()):
        return [node]
    plan = _Plan(Formula(node, builder, node.inputs[0]), sizes)
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        wanted = {*result, *(c for t in terms[i + 1 :] for c in t.letters)}
        total = plan.product(total, term, wanted)
    total = plan.summed(total, set(result))
    return plan.finish(total, result, node.outputs[0])


def _letters(term: str, rank: int) -> tuple[str, ...]:
    """The letters of a term; those of its ellipsis are numbered from the last."""
    front, dots, back = term.partition("...")
    n = rank - len(front) - len(back)
    middle = (f"{_DOTS}{n - i}" for i in range(n)) if dots else ()
    return (*front, *middle, *back)


class _Plan:
    """Steps of one Einsum."""

    def __init__(self, formula: Formula, sizes: dict[str, int]) -> None:
        self.f, self.sizes = formula, sizes

    def summed(self, x: _Term, wanted: set[str]) -> _Term:
        """The term without the letters that nobody wants."""
        axes = [i for i, c in enumerate(x.letters) if c not in wanted]
        if not axes:
            return x
        y = self.f("ReduceSum", x.tensor, self.f.integers(axes), keepdims=0)
        return _Term(y, tuple(c for c in x.letters if c in wanted))

    def product(self, a: _Term, b: _Term, wanted: set[str]) -> _Term:
        """a · b, summed over the letters that only they have: a batch of matrix products."""
        a = self.summed(a, wanted | set(b.letters))
        b = self.summed(b, wanted | set(a.letters))
        batch = tuple(c for c in a.letters if c in b.letters and c in wanted)
        inner = tuple(c for c in a.letters if c in b.letters and c not in wanted)
        rows = tuple(c for c in a.letters if c not in b.letters)
        columns = tuple(c for c in b.letters if c not in a.letters)
        left = self.matrix(a, (batch, rows, inner))
        right = self.matrix(b, (batch, inner, columns))
        y = self.f("MatMul", left, right) if inner else self.f("Mul", left, right)
        letters = (*batch, *rows, *columns)
        return _Term(self.shaped(y, letters), letters)

    def matrix(self, x: _Term, groups: Sequence[tuple[str, ...]]) -> str:
        """The term as [batch, rows, columns]."""
        letters = tuple(c for g in groups for c in g)
        y = self.ordered(x, letters)
        return self.f("Reshape", y, self.f.integers([prod(map(self.size, g)) for g in groups]))

    def ordered(self, x: _Term, letters: tuple[str, ...]) -> str:
        """The term's tensor with its dimensions in that order."""
        if x.letters == letters:
            return x.tensor
        return self.f("Transpose", x.tensor, perm=[x.letters.index(c) for c in letters])

    def shaped(self, tensor: str, letters: tuple[str, ...]) -> str:
        """One dimension a letter."""
        return self.f("Reshape", tensor, self.f.integers([self.size(c) for c in letters]))

    def size(self, letter: str) -> int:
        """Its extent."""
        return self.sizes[letter]

    def finish(self, x: _Term, letters: tuple[str, ...], name: str) -> list[Node]:
        """All nodes; the last makes the result."""
        self.f("Identity", self.ordered(x, letters), into=name)
        return self.f.nodes
