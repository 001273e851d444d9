"""The constants of the kernels, with what fixes each, read off their source.

A kernel's constant is a number on a line of its own at the top of a module of `npusim.kernels`; the
comment that starts with `#:` above or beside it says what it is and where it comes from.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

import npusim.kernels

#: Words of comments on constants that measurements fix, or that stand for time.
_TIMED = re.compile(r"\b(fit|fits|fitted|measured|recorded|slope|cycles?)\b", re.I)


@dataclass(frozen=True)
class KernelConstant:
    """A number of a kernel: where it stands, its value, what its comment says."""

    module: str
    name: str
    value: str
    comment: str

    @property
    def timed(self) -> bool:
        """Whether it is a time, or was fitted to one; others are structure."""
        return bool(_TIMED.search(self.comment))


def kernel_constants() -> list[KernelConstant]:
    """All of them that have a comment, by module and place."""
    found: list[KernelConstant] = []
    for path in sorted(Path(npusim.kernels.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        comments = _comments(text)
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Assign) or not _is_number(node.value):
                continue
            names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            comment, many = _beside(comments, node), isinstance(node.value, ast.Tuple)
            if comment and all(n.isupper() for n in names):
                value = ast.unparse(node.value)[1:-1] if many else ast.unparse(node.value)
                found.append(KernelConstant(path.stem, ", ".join(names), value, comment))
    return found


def _comments(text: str) -> dict[int, tuple[str, bool]]:
    """Line → (comment, whether it stands alone)."""
    lines = text.splitlines()
    return {
        t.start[0]: (t.string, not lines[t.start[0] - 1][: t.start[1]].strip())
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.type == tokenize.COMMENT
    }


def _beside(comments: dict[int, tuple[str, bool]], node: ast.Assign) -> str:
    """The `#:` comment on an assignment's last line, or the one above it."""
    own = comments.get(node.end_lineno or node.lineno)
    if own is not None and own[0].startswith("#:"):
        return own[0].removeprefix("#:").strip()
    above: list[str] = []
    line = node.lineno - 1
    while line in comments and comments[line][1]:
        above.insert(0, comments[line][0])
        line -= 1
    starts = [i for i, text in enumerate(above) if text.startswith("#:")]
    if not starts:
        return ""
    return " ".join(text.lstrip("#:").strip() for text in above)


def _is_number(node: ast.expr) -> bool:
    """A number, or several, possibly computed."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_number, node.elts))
    if isinstance(node, ast.Dict):
        return bool(node.values) and all(map(_is_number, node.values))
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.UnaryOp) and _is_number(node.operand)
