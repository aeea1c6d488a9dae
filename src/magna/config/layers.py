"""Options of the layers, each defined once: signatures, recipes, checks, search and reference read these fields.

Each class adds options to those of the layer below: convolution, block, encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from magna.config.options import HUGE, Needs, Options, option, with_default
from magna.config.registry import decoder_names
from magna.errors import ArgumentError
from magna.typing import (
    Backend,
    HeadForm,
    HopWeights,
    Init,
    Memory,
    Mode,
    Norm,
    Projection,
    RelationSource,
)


def _diffuses(options: Options) -> bool:
    return getattr(options, "diffusion", True)


_DIFFUSION = Needs("diffusion", _diffuses)
_TRUNCATED = Needs("mode 'truncated'", lambda o: o.mode == "truncated" and _diffuses(o))
_EXACT = Needs("mode 'exact'", lambda o: o.mode == "exact" and _diffuses(o))
_FEED_FORWARD = Needs("feed_forward", lambda o: o.feed_forward)
_TOP_K = Needs("top_k", lambda o: o.top_k is not None)
_EDGE_DROPOUT = Needs("edge_dropout above 0", lambda o: o.edge_dropout > 0)


def _rate(help: str, **info: Any) -> Any:
    """An option that is the rate of a dropout."""
    return option(0.0, help, low=0, below=1, per_trial=True, **info)


@dataclass(frozen=True, kw_only=True)
class LayerOptions(Options):
    """Base of the options of layers, which come as one object, as keywords, or as both."""

    @classmethod
    def of(cls, options: Options | None, flat: Mapping[str, Any]) -> Self:
        """The options with single values replaced; a changed value that would do nothing is refused.

        >>> EncoderOptions.of(BlockOptions(K=3), {"alpha": 0.2}).K
        3
        >>> EncoderOptions.of(None, {"mode": "exact", "K": 3})
        Traceback (most recent call last):
        magna.errors.ArgumentError: K is 3; allowed: only with mode 'truncated'
        """
        if options is not None and not issubclass(cls, type(options)):
            raise ArgumentError("options", options, f"{cls.__name__}, or a class that it extends")
        for name in flat:
            cls.check_name(name)
        settings = cls(**{**({} if options is None else vars(options)), **flat})
        for name in cls.options():
            if getattr(settings, name) != getattr(cls, name):
                settings.check_need(name)
        return settings


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(LayerOptions):
    """Scores of edges and their softmax (Eqs. 1 and 2)."""

    projection: Projection = option(
        "separate", "separate: one matrix each for source, target and value; shared: one matrix for all."
    )
    tanh: bool = option(True, "Apply tanh inside the score (Eq. 1); GAT has none.")
    negative_slope: float = option(0.2, "Slope of LeakyReLU below zero.", low=0, per_trial=True)
    score_scale: float = option(
        1.0, "Factor on the scores; below 1 the attention starts nearer to uniform.", above=0, per_trial=True
    )
    top_k: int | None = option(None, "Only the k best in-edges of each node get attention; none: all.", low=1)
    top_k_shared: bool = option(False, "Choose the k best edges by the mean score of all heads.", needs=_TOP_K)
    relation_channels: int | None = option(
        None, "Width of a relation's embedding; none: the width of the features.", low=1, high=HUGE
    )
    relation_embedding: bool = option(
        True, "Learn an embedding for each relation; false: it comes with each call.", in_recipes=False
    )
    relation_norm: Norm = option("none", "Norm on the relation embeddings.")
    init: Init = option("glorot", "Starting values: plain Glorot, or those of the authors' code.")
    backend: Backend = option("auto", "Kernels: auto takes the fastest for the device.")


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions(LayerOptions):
    """Spread of attention over several hops (Eqs. 3 to 5)."""

    hop_weights: HopWeights = option(
        "fixed",
        "fixed: geometric with alpha; alpha: learnt for each head; theta: free weights for each head (Eq. 3).",
        needs=_DIFFUSION,
    )
    mode: Mode = option(
        "truncated", "truncated: K hops (Eq. 5); exact: the whole series, another model.", needs=_DIFFUSION
    )
    tolerance: float = option(1e-6, "Tolerance of the exact mode.", above=0, below=1, needs=_EXACT)
    memory: Memory = option("auto", "What the backward pass keeps of the hops.", needs=_TRUNCATED)


@dataclass(frozen=True, kw_only=True)
class DropoutOptions(LayerOptions):
    """Dropout inside the convolution."""

    feature_dropout: float = _rate("Dropout on the features after each hop.")
    edge_dropout: float = _rate("Probability of leaving an edge out of the softmax; self-loops stay.")
    edge_pairs: bool = option(True, "Edges between the same two nodes are left out together.", needs=_EDGE_DROPOUT)


@dataclass(frozen=True, kw_only=True)
class ConvOptions(AttentionOptions, DiffusionOptions, DropoutOptions):
    """Every option of :class:`magna.MAGNAConv` except those that its signature names."""

    head_form: HeadForm = option(
        "split",
        "split: heads of width out_channels / heads on a value projection; full: the paper's heads, each the whole "
        "input without a value matrix.",
    )
    out_projection: bool = option(False, "Multiply the joined heads by W_o (Eq. 6).")


@dataclass(frozen=True, kw_only=True)
class NamedOptions(LayerOptions):
    """The options that the signature of :class:`magna.MAGNAConv` names one by one."""

    K: int = option(
        3, "Number of hops; 0 passes the values through.", low=0, high=4096, per_trial=True, needs=_TRUNCATED
    )
    alpha: float = option(
        0.2,
        "Teleport probability; where it is learnt, its starting value.",
        low=0,
        high=1,
        per_trial=True,
        needs=_DIFFUSION,
    )
    dropout: float = _rate("Dropout on the attention, drawn anew for each hop.", was=("attention_dropout",))
    add_self_loops: bool = option(
        True, "Add a loop to each node that has none, as an extra relation where edges are typed.", in_recipes=False
    )
    bias: bool = option(True, "Add a bias to the output.")


@dataclass(frozen=True, kw_only=True)
class ConvSettings(NamedOptions, ConvOptions):
    """Every setting of :class:`magna.MAGNAConv`, those of its signature and those of its `options`."""

    def check(self) -> None:
        super().check()
        if self.hop_weights != "fixed" and not 0 < self.alpha < 1:
            raise ArgumentError("alpha", self.alpha, f"above 0 and below 1 with hop_weights {self.hop_weights!r}")
        if self.mode == "exact":
            if self.alpha == 0:
                raise ArgumentError("alpha", self.alpha, "above 0 with mode 'exact'")
            if self.hop_weights == "theta":
                raise ArgumentError("hop_weights", self.hop_weights, ["fixed", "alpha"], "mode 'truncated'")
            for name in ("dropout", "feature_dropout"):
                if getattr(self, name):
                    raise ArgumentError(name, getattr(self, name), "0 with mode 'exact'")


@dataclass(frozen=True, kw_only=True)
class BlockOptions(ConvSettings):
    """Every option of :class:`magna.MAGNABlock`: those of its layer, norms, residual, feed-forward and dropouts.

    The defaults of a layer suit a layer in place of `GATConv`; those of a block are the paper's.
    """

    K: int = with_default(NamedOptions, "K", 6)
    alpha: float = with_default(NamedOptions, "alpha", 0.1)
    out_projection: bool = with_default(ConvOptions, "out_projection", True)
    add_self_loops: bool = with_default(NamedOptions, "add_self_loops", False)
    bias: bool = with_default(NamedOptions, "bias", False)
    norm: Norm = option("layer", "layer, unbiased (the authors'), batch (each channel over all nodes) or none.")
    norm_eps: float | None = option(None, "Epsilon of the norms; none: 1e-6 for unbiased, else 1e-5.", low=0)
    residual: bool = option(True, "Add the input of the block to the output of its attention.")
    feed_forward: bool = option(True, "Add the feed-forward network (Eq. 7); false: ELU in its place.")
    ffn_multiplier: int = option(
        4, "Inner width of the feed-forward network over the block's.", low=1, high=1024, needs=_FEED_FORWARD
    )
    diffusion: bool = option(True, "Diffuse the attention; false: one hop of it, without teleport.")
    input_dropout: float = _rate("Dropout on the normed features, before the attention.")
    output_dropout: float = _rate("Dropout on the output of the attention, before the residual is added.")
    residual_dropout: float = _rate(
        "Dropout on the residual, before its matrix.", needs=Needs("residual", lambda o: o.residual)
    )
    ffn_dropout: float = _rate("Dropout inside the feed-forward network.", needs=_FEED_FORWARD)
    ffn_output_dropout: float = _rate("Dropout on the output of the feed-forward network.", needs=_FEED_FORWARD)


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(BlockOptions):
    """Every option of :class:`magna.MAGNA`: those of its blocks, of its input and of its output."""

    input_projection: bool | int = option(
        True, "true: a linear layer to the blocks' width first; a number: to that width; false: none.", low=1, high=HUGE
    )
    final_norm: Norm = option("none", "Norm on the last hidden states.")
    node_dropout: float = _rate("Dropout of whole rows of the features.")
    embed_dropout: float = _rate("Dropout on the features, before the input projection.")
    classifier_dropout: float = _rate("Dropout on the last hidden states, before the output head.")
    edge_dropout_shared: bool = option(False, "All blocks leave out the same edges.", needs=_EDGE_DROPOUT)


@dataclass(frozen=True, kw_only=True)
class MAGNAOptions(EncoderOptions):
    """The settings of MAGNA in a recipe: its sizes, and every option of :class:`magna.MAGNA`."""

    hidden_channels: int = option(64, "Width of the blocks.", low=1, high=HUGE)
    num_layers: int = option(2, "Number of blocks.", low=1, high=4096)
    heads: int = option(
        8, "Attention heads of each block; in head_form 'split' they divide the width.", low=1, high=4096
    )

    def check(self) -> None:
        super().check()
        if self.unmet("heads") is not None:
            return
        if self.head_form == "split" and self.hidden_channels % self.heads:
            raise ArgumentError("heads", self.heads, f"divisors of hidden_channels, {self.hidden_channels}")
        if self.head_form == "full" and not self.out_projection:
            if self.heads > 1 or self.input_projection is not True:
                allowed = "true with head_form 'full', but for one head behind an input projection"
                raise ArgumentError("out_projection", False, allowed)


_ENCODER = {"heads", *EncoderOptions.options()}
_SHARED = {"backend", "final_norm", "init", "norm_eps", "relation_channels"}  # with the rest of a link predictor


@dataclass(frozen=True, kw_only=True)
class LinkPredictorOptions(MAGNAOptions):
    """Every option of :class:`magna.LinkPredictor`: embeddings, decoder, and those of its encoder."""

    num_layers: int = option(2, "Number of blocks; 0: no encoder, the decoder takes the embeddings.", low=0, high=4096)
    decoder: str = option("distmult", "Score of head, relation and tail.", names=decoder_names)
    entity_channels: int = option(100, "Width of an entity's embedding.", low=1, high=HUGE)
    relation_source: RelationSource = option(
        "relations",
        "relations: a separate table; entities: the first rows of the entities' table, as in the authors' code.",
    )
    embedding_std: float = option(0.1, "Standard deviation of the embeddings at the start.", above=0)
    decoder_dropout: float = option(0.0, "Dropout on head and relation, before the decoder.", low=0, below=1)
    entity_bias: bool = option(False, "Add a learnt number for each entity to its scores; decoder 'conve' always does.")
    loop_bias: bool = option(False, "Add a learnt number for each relation to the score of the head itself.")
    classifier_dropout: float = option(0.0, "None: a link predictor has no output head.", in_recipes=False)
    skip_channels: int = option(
        0, "Width of second embeddings that are scored without the encoder; 0: none.", low=0, high=HUGE
    )

    def unmet(self, name: str) -> str | None:
        if self.num_layers == 0 and name in _ENCODER and name not in _SHARED:
            return "num_layers above 0"
        return super().unmet(name)


_SAMPLED = Needs("negatives above 0", lambda o: o.negatives > 0)


@dataclass(frozen=True, kw_only=True)
class NegativeSampling(Options):
    """The loss of a link model: over all entities (1-N), or over drawn ones (Sun et al. 2019)."""

    negatives: int = option(0, "Entities drawn as wrong answers to each query; 0: all entities.", low=0, high=1 << 20)
    margin: float = option(9.0, "Margin that scores of true triples are to reach; scales the starting values.", above=0)
    adversarial: float = option(
        0.0, "Weight drawn entities by the softmax of their scores times this; 0: equally.", low=0, needs=_SAMPLED
    )
