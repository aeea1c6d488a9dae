"""MAGNA: multi-hop attention graph neural networks. Every public name, re-exported once.

Names are looked up on first use, so that `import magna` costs nothing until a tensor is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magna.config.schema import load_recipe
    from magna.graph import Graph
    from magna.nn import MAGNA, EdgeAttention, LinkPredictor, MAGNABlock, MAGNAConv
    from magna.ops import attention_diffusion, edge_softmax, hops_for, truncation_error
    from magna.search.sweep import sweep
    from magna.search.train import train
    from magna.training.plan import plan
    from magna.use.estimator import MAGNAClassifier
    from magna.use.load import load
    from magna.use.predict import evaluate, predict

__version__ = "0.1.0"

__all__ = [
    "MAGNA",
    "EdgeAttention",
    "Graph",
    "LinkPredictor",
    "MAGNABlock",
    "MAGNAClassifier",
    "MAGNAConv",
    "__version__",
    "attention_diffusion",
    "edge_softmax",
    "evaluate",
    "hops_for",
    "load",
    "load_recipe",
    "plan",
    "predict",
    "sweep",
    "train",
    "truncation_error",
]

_HOME = {
    "Graph": "magna.graph",
    "MAGNA": "magna.nn",
    "EdgeAttention": "magna.nn",
    "LinkPredictor": "magna.nn",
    "MAGNABlock": "magna.nn",
    "MAGNAConv": "magna.nn",
    "attention_diffusion": "magna.ops",
    "edge_softmax": "magna.ops",
    "hops_for": "magna.ops",
    "truncation_error": "magna.ops",
    "load_recipe": "magna.config.schema",
    "train": "magna.search.train",
    "plan": "magna.training.plan",
    "sweep": "magna.search.sweep",
    "MAGNAClassifier": "magna.use.estimator",
    "load": "magna.use.load",
    "evaluate": "magna.use.predict",
    "predict": "magna.use.predict",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'magna' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
