"""Built-in models: importing this package registers them all."""

from npusim.models import bert, resnet, single
from npusim.models.builder import GraphBuilder
from npusim.models.inputs import count_parameters, random_inputs
from npusim.models.registry import Model, build_model, get_model, list_models, model

__all__ = [
    "GraphBuilder",
    "Model",
    "bert",
    "build_model",
    "count_parameters",
    "get_model",
    "list_models",
    "model",
    "random_inputs",
    "resnet",
    "single",
]
