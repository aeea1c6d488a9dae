"""Shape legend and the literals of the public interface.

The letters in shape comments mean the same everywhere:

    N  nodes            E  edges             H  heads
    D  width of a head  C  channels (H * D)  K  hops
    R  relations        B  batch
"""

from typing import Literal, get_args

from magna.errors import ArgumentError

Backend = Literal["auto", "reference", "cpu", "triton"]
Mode = Literal["truncated", "exact"]
Memory = Literal["save", "recompute", "auto"]
HopWeights = Literal["fixed", "alpha", "theta"]
HeadForm = Literal["split", "full"]
Projection = Literal["separate", "shared"]
Norm = Literal["layer", "unbiased", "batch", "none"]
Init = Literal["glorot", "official"]
RelationSource = Literal["relations", "entities"]
RelationGuess = Literal["states", "embeddings"]
Control = Literal["none", "random-graph", "no-types"]
NodeMetric = Literal[
    "auto", "accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "average_precision", "log_loss", "r2", "mae"
]
Sampler = Literal["random", "tpe"]


def one_of(name: str, value: object, allowed: object) -> None:
    """Refuse a value that is not one of a Literal's words.

    >>> one_of("mode", "exact", Mode)
    """
    words = get_args(allowed)
    if value not in words:
        raise ArgumentError(name, value, ", ".join(map(repr, words)))
