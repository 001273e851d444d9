"""Built-in models: importing this package registers them all."""

from npusim.models import (
    bert,
    deepfm,
    gpt2,
    inception,
    llama,
    mobilenet,
    resnet,
    single,
    unet,
    vgg,
    vit,
    yolo,
)
from npusim.models.builder import GraphBuilder
from npusim.models.inputs import count_parameters, random_inputs
from npusim.models.registry import Model, build_model, get_model, list_models, model

__all__ = [
    "GraphBuilder",
    "Model",
    "bert",
    "build_model",
    "count_parameters",
    "deepfm",
    "get_model",
    "gpt2",
    "inception",
    "list_models",
    "llama",
    "mobilenet",
    "model",
    "random_inputs",
    "resnet",
    "single",
    "unet",
    "vgg",
    "vit",
    "yolo",
]
