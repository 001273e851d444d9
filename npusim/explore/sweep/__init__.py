"""Experiments: many runs of the simulator over chips, workloads and options, from YAML."""

from npusim.explore.sweep.errors import ExperimentError
from npusim.explore.sweep.experiment import Experiment, list_experiments, load_experiment
from npusim.explore.sweep.metrics import METRICS
from npusim.explore.sweep.sweep import Sweep

__all__ = [
    "METRICS",
    "Experiment",
    "ExperimentError",
    "Sweep",
    "list_experiments",
    "load_experiment",
]
