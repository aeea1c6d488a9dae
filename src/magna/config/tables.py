"""Tables of a recipe besides [model]: data, task, training, and the source of its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from magna.config.columns import listed_names, new_names
from magna.config.options import HUGE, Needs, Options, option
from magna.config.registry import LINK_TASK, NODE_TASK
from magna.errors import ArgumentError
from magna.typing import Control, NodeMetric, RelationGuess

_CONSISTENCY = Needs("consistency above 0", lambda o: o.consistency > 0)
_PCA = Needs("feature_transform 'pca'", lambda o: o.feature_transform == "pca")
_SKIP = Needs("model.skip_channels above 0", lambda model: getattr(model, "skip_channels", 0) > 0)
_GUESS = Needs(
    "relation_prediction or skip_relation_prediction above 0",
    lambda o: o.relation_prediction > 0 or o.skip_relation_prediction > 0,
)
_ENCODER = Needs("model.num_layers above 0", lambda model: getattr(model, "num_layers", 1) > 0)


@dataclass(frozen=True, kw_only=True)
class NodeDataOptions(Options):
    """A graph with features and labels, and how it is read."""

    name: str = option("digits", "Name of a public data set, or the path of your own: a folder, or a .pt file.")
    split: Literal["public", "random"] = option("public", "The split of the data set, or one drawn in its sizes.")
    split_seed: int = option(0, "Seed of a split that is drawn.", low=0, high=2**32 - 1, per_trial=True)
    valid_share: float | None = option(
        None,
        "Share of the labelled nodes for validation, and as many for the test, where data has no split; none: a fifth, "
        "or 30 of each class where labels are few.",
        above=0,
        below=0.5,
    )
    columns: str = option("", "Meaning of columns of your tables, such as id=worker,label=team.")
    ignore: str = option("", "Columns of your tables that are left out, such as note,date.")
    target: Literal["auto", "classes", "number"] = option(
        "auto", "Kind of the labels; auto: more than 20 different numbers are a number, all others classes."
    )
    features: Literal["published", "stand-in"] = option(
        "published", "Features of ogbn-arxiv: OGB's, or stand-ins made without OGB's files."
    )
    undirected: bool = option(True, "Both directions of every edge; false: edges as the files have them.")
    standardise_features: bool = option(False, "Scale each column to mean 0 and deviation 1.")
    normalise_features: bool = option(False, "Divide each row by its sum.")
    feature_transform: Literal["none", "tfidf", "pca"] = option(
        "none", "tfidf: weigh counts of words by TF-IDF; pca: the first principal components."
    )
    components: int = option(64, "Number of principal components at most.", low=1, high=HUGE, needs=_PCA)
    structural_features: bool = option(False, "Degrees and positions in the graph, where the data has no features.")
    self_loops: bool = option(True, "One loop for each node, in place of those in the data.")
    edge_types: bool = option(
        True, "Types and features of the edges, where the data has them; false: edges without both."
    )

    def check(self) -> None:
        if self.standardise_features and self.normalise_features:
            raise ArgumentError("normalise_features", True, "false with standardise_features")
        new_names(self.columns)
        listed_names("ignore", self.ignore)
        if self.feature_transform != "none" and (self.standardise_features or self.normalise_features):
            allowed = "none with standardise_features or normalise_features"
            raise ArgumentError("feature_transform", self.feature_transform, allowed)


@dataclass(frozen=True, kw_only=True)
class LinkDataOptions(Options):
    """A knowledge graph."""

    name: str = option("families", "Name of a public data set, or the path of your own folder of triples.")
    control: Control = option(
        "none", "none; random-graph: shuffle the tails of the edges; no-types: drop the types of the edges."
    )
    valid_share: float | None = option(
        None,
        "Share of the triples for validation, and as many for the test, of one file without splits; none: 0.05.",
        above=0,
        below=0.5,
    )
    split_seed: int = option(0, "Seed of a split that is drawn.", low=0, high=2**32 - 1)


class TaskOptions(Options):
    """Base of the settings in `[task]`, with what commands ask of a task before its data is read."""

    name: ClassVar[str]
    DATA: ClassVar[type[Options]]
    METRIC: ClassVar[str]  # that models are judged by
    SHARES_BATCH: ClassVar[bool]  # trials can train in one batch

    @classmethod
    def title(cls) -> str:
        return cls.name.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class NodeTask(TaskOptions):
    """Targets of nodes: the metric that decides, weights of classes, and the consistency loss (GRAND)."""

    name, DATA, METRIC, SHARES_BATCH = NODE_TASK, NodeDataOptions, "accuracy", True

    metric: NodeMetric = option(
        "auto",
        "Metric on validation that chooses the epoch; auto: accuracy of classes, roc_auc of several labels, r2 of "
        "numbers.",
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "Weights of the classes in the loss; balanced: all classes together weigh alike."
    )
    consistency: float = option(
        0.0, "Weight of the distance between stochastic passes (GRAND); 0: one pass.", low=0, per_trial=True
    )
    passes: int = option(2, "Stochastic passes a step.", low=2, high=1024, needs=_CONSISTENCY)
    temperature: float = option(
        0.5,
        "Temperature that sharpens the mean of the passes; 1: no sharpening.",
        above=0,
        high=1,
        per_trial=True,
        needs=_CONSISTENCY,
    )
    confidence: float = option(
        0.0,
        "Compare only nodes whose mean gives a class at least this probability (GRAND+).",
        low=0,
        below=1,
        per_trial=True,
        needs=_CONSISTENCY,
    )
    consistency_nodes: int = option(
        0, "Nodes drawn at each step whose passes are compared; 0: all nodes.", low=0, high=HUGE, needs=_CONSISTENCY
    )
    ramp: int = option(
        50,
        "Epochs until the consistency has its full weight.",
        low=1,
        high=HUGE,
        per_trial=True,
        needs=_CONSISTENCY,
    )


@dataclass(frozen=True, kw_only=True)
class LinkTask(TaskOptions):
    """Link prediction: batches of queries (head, relation) and their loss."""

    name, DATA, METRIC, SHARES_BATCH = LINK_TASK, LinkDataOptions, "mrr", False

    batch_size: int = option(
        1024, "Queries a step; with mask_answers at most a tenth of all queries.", low=1, high=HUGE
    )
    query_weight: Literal["answers", "uniform"] = option(
        "answers", "Weight of a query in the loss: answers: its number of answers; uniform: 1."
    )
    mask_answers: bool = option(True, "Mask edges that reveal an answer of the batch.", model_needs=_ENCODER)
    label_smoothing: float = option(0.1, "Share of the target that is spread over all entities.", low=0, below=1)
    relation_prediction: float = option(0.0, "Weight of predicting the relation from head and tail.", low=0)
    relation_guess: RelationGuess = option(
        "states",
        "states: predict the relation by the decoder's scores of the states; embeddings: by e_h ∘ e_t.",
        needs=_GUESS,
    )
    n3: float = option(0.0, "Weight of the nuclear 3-norm of a score's factors.", low=0)
    skip_relation_prediction: float = option(
        0.0, "relation_prediction of the shallow embeddings.", low=0, model_needs=_SKIP
    )
    skip_n3: float = option(0.0, "n3 of the shallow embeddings.", low=0, model_needs=_SKIP)


TASKS: dict[str, type[TaskOptions]] = {kind.name: kind for kind in (NodeTask, LinkTask)}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Optimiser, schedule and choice of the best epoch."""

    epochs: int = option(200, "Largest number of epochs.", low=1, high=HUGE)
    lr: float = option(0.005, "Learning rate of Adam at the start of the cosine schedule.", low=0, per_trial=True)
    skip_lr: float | None = option(None, "Learning rate of the shallow embeddings; none: lr.", low=0, model_needs=_SKIP)
    weight_decay: float = option(0.0005, "L2 penalty, added to the gradient as in Adam.", low=0, per_trial=True)
    beta1: float = option(0.9, "Decay of Adam's mean of the gradients.", low=0, below=1)
    beta2: float = option(0.999, "Decay of Adam's mean of the squared gradients.", low=0, below=1)
    min_lr: float = option(1e-8, "Learning rate at the end of the cosine schedule.", low=0, per_trial=True)
    clip: float = option(1.0, "Largest norm of the gradient; 0: no clipping.", low=0, per_trial=True)
    patience: int = option(
        200, "Epochs without a better validation score before training stops.", low=1, high=HUGE, per_trial=True
    )
    eval_every: int = option(1, "Epochs between two validations; at most patience.", low=1, high=HUGE)
    precision: Literal["float32", "tf32", "bfloat16"] = option(
        "float32", "Precision of matrix products: float32, or on a GPU tf32, or bfloat16 in training."
    )
    seed: int = option(
        0, "Seed of starting values, dropout and batches; several seeds count on from it.", low=0, high=2**32 - 1,
        per_trial=True,
    )  # fmt: skip

    def check(self) -> None:
        if self.eval_every > self.patience:
            raise ArgumentError("eval_every", self.eval_every, f"at most patience, {self.patience}")


@dataclass(frozen=True, kw_only=True)
class SearchRun(Options):
    """A search that chose settings of a recipe."""

    command: str = option("", "The command.")
    date: str = option("", "Its day.")
    device: str = option("", "The device.")
    trials: int = option(0, "Number of trials.", low=0)
    result: str = option("", "The chosen trial and its validation score.")


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """Source of the settings of a recipe."""

    settings: str = option("", "Papers, code and choices behind the settings.")
    search: tuple[SearchRun, ...] = field(default=())

    def __post_init__(self) -> None:
        super().__post_init__()
        runs: Any = self.search
        if not isinstance(runs, list | tuple):
            raise ArgumentError("search", runs, "a list of tables")
        runs = tuple(run if isinstance(run, SearchRun) else SearchRun.from_flat(run) for run in runs)
        object.__setattr__(self, "search", runs)


@dataclass(frozen=True, kw_only=True)
class ExpectedOptions(Options):
    """Measured results of a recipe, accuracy or MRR."""

    seeds: int = option(0, "Number of seeds.", low=0)
    valid: float = option(0.0, "Mean on validation.", low=0)
    test: float = option(0.0, "Mean on the test split.", low=0)
    test_std: float = option(0.0, "Standard deviation on the test split.", low=0)
    measured: str = option("", "Command, device and file of the measurement.")
    paper: float = option(0.0, "The paper's mean on the test split; 0: none.", low=0)
