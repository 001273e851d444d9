"""O3: the tilings that the machine finds fastest, and their cache."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.errors import UnsupportedError
from npusim.explore import tiling_search as searching
from npusim.explore.tiling_cache import TilingCache
from npusim.explore.tiling_candidates import ranked_tilings
from npusim.explore.tiling_search import TilingSearch, search_tilings
from npusim.explore.user_cache import user_cache_dir
from npusim.program.executable import Executable
from npusim.program.kernel import get_kernel

CHIP = load_chip("ascend910b2")
TINY = Path(__file__).parents[1] / "data" / "resnet_torch_tiny.onnx"


@pytest.fixture(scope="module")
def tiny() -> Executable:
    return api.compile_graph(api.load_model(str(TINY), batch=2).graph, CHIP)


@pytest.fixture(scope="module")
def searched(tiny: Executable, tmp_path_factory: pytest.TempPathFactory) -> TilingSearch:
    return search_tilings(tiny, CHIP, cache=tmp_path_factory.mktemp("tilings"))


# -- the search --------------------------------------------------------------------------------


def test_gains_what_it_says(tiny: Executable, searched: TilingSearch) -> None:
    gain = searched.gain
    before = api.run(tiny, CHIP, timing_only=True).timeline
    after = api.run(searched.executable, CHIP, timing_only=True).timeline
    assert (before.total_cycles, after.total_cycles) == (gain.total_before, gain.total_after)
    assert gain.total_after < gain.total_before  # 48 blocks for tiny tensors are too many
    assert all(k.after <= k.before for k in gain.kernels)
    assert sum(k.launches for k in gain.kernels) == sum(t.call is not None for t in tiny.tasks)
    spent = sum(o.cycles for o in before.ops if o.core_type != "AI_CPU")
    assert sum(k.before for k in gain.kernels) == spent


def test_the_same_operators_give_the_same_numbers(searched: TilingSearch, tiny: Executable) -> None:
    model = api.load_model(str(TINY), batch=2)
    inputs = api.make_inputs(model)
    found = searched.executable
    assert [t.node for t in found.tasks] == [t.node for t in tiny.tasks]
    assert any(a.call != b.call for a, b in zip(found.tasks, tiny.tasks, strict=True))
    assert found.buffers == tiny.buffers
    want = api.run(tiny, CHIP, inputs=inputs).outputs
    for level in (False, True):
        got = api.run(found, CHIP, inputs=inputs, tile_level=level).outputs
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=2e-3, atol=2e-3)


def test_level_3_of_the_api(tiny: Executable, searched: TilingSearch, tmp_path: Path) -> None:
    model = api.load_model(str(TINY), batch=2)
    options = CompileOptions(level=3)
    exe = api.compile_graph(model.graph, CHIP, options=options, tiling_cache=tmp_path)
    assert [t.call for t in exe.tasks] == [t.call for t in searched.executable.tasks]


def test_plans_that_make_the_run_slower_are_not_taken(
    tiny: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def worst(chip, kernel, args, default, states):
        plan = get_kernel(kernel).plan(args, CHIP, ranked_tilings(kernel, args, CHIP, 1)[-1])
        return searching.Choice(plan, 1, 2, 1, 1)

    monkeypatch.setattr(searching, "choose", worst)
    found = search_tilings(tiny, CHIP, cache=tmp_path)
    assert found.executable is tiny and found.gain.saved == 0
    assert "not taken" in found.gain.notes[0]


def test_progress_ends_at_its_total(tiny: Executable, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    search_tilings(tiny, CHIP, cache=tmp_path, progress=lambda *at: seen.append(at))
    assert {stage for stage, _, _ in seen} == {"tilings"}
    assert [done for _, done, _ in seen] == list(range(seen[0][2] + 1))


# -- the cache ---------------------------------------------------------------------------------


def test_the_second_search_simulates_nothing(
    tiny: Executable, searched: TilingSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_tilings(tiny, CHIP, cache=tmp_path)
    monkeypatch.setattr(searching, "choose", None)
    again = search_tilings(tiny, CHIP, cache=tmp_path)
    assert all(k.cached for k in again.gain.kernels)
    assert [t.call for t in again.executable.tasks] == [t.call for t in searched.executable.tasks]
    # Another name is no other chip; another bandwidth is.
    renamed = CHIP.model_copy(update={"name": "mine"})
    assert all(k.cached for k in search_tilings(tiny, renamed, cache=tmp_path).gain.kernels)
    monkeypatch.undo()
    faster = CHIP.model_copy(update={"hbm": CHIP.hbm.model_copy(update={"bandwidth": 3e12})})
    assert not any(k.cached for k in search_tilings(tiny, faster, cache=tmp_path).gain.kernels)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe{",
        b"[1, 2]",
        b"[" * 100_000,
        '"cores": 999',
        '"cores": -1',
        '"cores": 1.5',
        '"before": null',
        '"tiling": {"m": "x"}',
        '"tiling": [1]',
        '"tiling": {"nothing": 3}',
        '"key": "another"',
        '"more": 1',
    ],
    ids=lambda d: repr(d[:24]),
)
def test_a_damaged_entry_is_written_anew(
    damage: bytes | str, tiny: Executable, searched: TilingSearch, tmp_path: Path
) -> None:
    search_tilings(tiny, CHIP, cache=tmp_path)
    files = sorted(tmp_path.rglob("*.json"))
    good = [f.read_bytes() for f in files]
    for f, old in zip(files, good, strict=True):
        if isinstance(damage, bytes):
            f.write_bytes(damage)
        else:  # a later key of the same name wins
            f.write_bytes(old.rstrip()[:-1] + b", " + damage.encode() + b"}")
    found = search_tilings(tiny, CHIP, cache=tmp_path)
    assert [t.call for t in found.executable.tasks] == [t.call for t in searched.executable.tasks]
    assert not any(k.cached for k in found.gain.kernels)
    assert [f.read_bytes() for f in sorted(tmp_path.rglob("*.json"))] == good
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written(tiny: Executable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    found = search_tilings(tiny, CHIP, cache=tmp_path / "file" / "below")
    assert found.gain.total_after < found.gain.total_before
    assert len(found.gain.notes) == 1 and "cannot be kept" in found.gain.notes[0]


def test_an_entry_that_is_a_folder(tmp_path: Path) -> None:
    store = TilingCache(tmp_path)
    store._path("k").mkdir(parents=True)
    assert store.get("k") is None
    store.put("k", searching.Entry({}, 0, 1, 1, 1))
    assert "cannot be kept" in store.failure and not list(tmp_path.rglob("*.tmp"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir("tilings") == tmp_path / "npusim" / "tilings"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, parts in (
        ("linux", (".cache", "npusim", "tilings")),
        ("darwin", ("Library", "Caches", "npusim", "tilings")),
        ("win32", ("local", "npusim", "Cache", "tilings")),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert user_cache_dir("tilings") == tmp_path.joinpath(*parts)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UnsupportedError, match="home folder"):
        user_cache_dir("tilings")


def test_a_task_on_the_ai_cpu_stays(tiny: Executable, tmp_path: Path) -> None:
    first = replace(tiny.tasks[0], call=None)
    found = search_tilings(replace(tiny, tasks=[first, *tiny.tasks[1:]]), CHIP, cache=tmp_path)
    assert found.executable.tasks[0] == first
