"""Published results: accuracy in percent, with its deviation if published, and filtered ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

CITATION_GRAPHS = ("cora", "citeseer", "pubmed")
KNOWLEDGE_GRAPHS = {"wn18rr": "WN18RR", "fb15k-237": "FB15k-237"}  # name → spelling in tables
LINK_METRICS = {"mr": "MR", "mrr": "MRR", "hits@1": "H@1", "hits@3": "H@3", "hits@10": "H@10"}


class PublishedRow(NamedTuple):
    """One row of a published table; figures as they were printed."""

    model: str
    source: str
    figures: Mapping[Any, str]  # data set, or (data set, metric) → figure

    def mean(self, place: str) -> float:
        """The figure without its deviation."""
        return float(self.figures[place].partition(" ")[0])

    def deviation(self, place: str) -> float:
        """The deviation, 0 if none was printed."""
        return float(self.figures[place].partition(" ± ")[2] or 0)


def _accuracies(model: str, source: str, *figures: str) -> PublishedRow:
    return PublishedRow(model, source, dict(zip(CITATION_GRAPHS, figures, strict=True)))


def _by_model(rows: Iterable[PublishedRow]) -> dict[str, PublishedRow]:
    return {row.model: row for row in rows}


_TABLE_1 = "MAGNA paper, Table 1"
_RANDOM_SPLITS = "MAGNA paper, appendix, random splits"

MAGNA_PAPER = _accuracies("MAGNA, the paper", _TABLE_1, "85.4 ± 0.6", "73.7 ± 0.5", "81.4 ± 0.2")

# Public split.
PAPER_TABLE_1 = (
    _accuracies("GCN", _TABLE_1, "81.5", "70.3", "79.0"),
    _accuracies("Cheby", _TABLE_1, "81.2", "69.8", "74.4"),
    _accuracies("DualGCN", _TABLE_1, "83.5", "72.6", "80.0"),
    _accuracies("JKNet", _TABLE_1, "81.1", "69.8", "78.1"),
    _accuracies("LGCN", _TABLE_1, "83.3 ± 0.5", "73.0 ± 0.6", "79.5 ± 0.2"),
    _accuracies("Diff-GCN", _TABLE_1, "83.6 ± 0.2", "73.4 ± 0.3", "79.6 ± 0.4"),
    _accuracies("APPNP", _TABLE_1, "84.3 ± 0.2", "71.1 ± 0.4", "79.7 ± 0.3"),
    _accuracies("g-U-Nets", _TABLE_1, "84.4 ± 0.6", "73.2 ± 0.5", "79.6 ± 0.2"),
    _accuracies("GAT", _TABLE_1, "83.0 ± 0.7", "72.5 ± 0.7", "79.0 ± 0.3"),
    _accuracies("DAGNN", "Liu et al. 2020, 100 runs", "84.4 ± 0.5", "73.3 ± 0.6", "80.5 ± 0.5"),
    _accuracies("GCNII", "Chen et al. 2020", "85.5", "73.4", "80.3"),
    _accuracies("GRAND", "Feng et al. 2020, 100 runs", "85.4 ± 0.4", "75.4 ± 0.4", "82.7 ± 0.6"),
    MAGNA_PAPER,
)

QUOTED = "as quoted by MAGNA"

# Figures of the public split for the rows of `magna.paper.rows.NODE_BASELINES`: as the authors of the settings printed
# them or, where these have other splits, as MAGNA quotes them. GraphSAGE and GaAN have none.
PRINTED = _by_model(
    (
        _accuracies("GCN", "Kipf & Welling 2017", "81.5", "70.3", "79.0"),
        _accuracies("Cheby", "Kipf & Welling 2017, Table 3", "81.2", "69.8", "74.4"),
        _accuracies("DualGCN", "Zhuang & Ma 2018", "83.5", "72.6", "80.0"),
        _accuracies("JKNet", QUOTED, "81.1", "69.8", "78.1"),
        _accuracies("LGCN", "Gao et al. 2018", "83.3 ± 0.5", "73.0 ± 0.6", "79.5 ± 0.2"),
        _accuracies("Diff-GCN (PPR)", QUOTED, "83.6 ± 0.2", "73.4 ± 0.3", "78.7 ± 0.4"),
        _accuracies("Diff-GCN (heat)", QUOTED, "83.6 ± 0.2", "73.4 ± 0.3", "79.6 ± 0.4"),
        _accuracies("APPNP", QUOTED, "84.3 ± 0.2", "71.1 ± 0.4", "79.7 ± 0.3"),
        _accuracies("g-U-Nets", "Gao & Ji 2019", "84.4 ± 0.6", "73.2 ± 0.5", "79.6 ± 0.2"),
        _accuracies("GAT", "Veličković et al. 2018", "83.0 ± 0.7", "72.5 ± 0.7", "79.0 ± 0.3"),
        _accuracies("DAGNN", "Liu et al. 2020", "84.4 ± 0.5", "73.3 ± 0.6", "80.5 ± 0.5"),
        _accuracies("GRAND", "Feng et al. 2020", "85.4 ± 0.4", "75.4 ± 0.4", "82.7 ± 0.6"),
        _accuracies("GRAND+", "Feng et al. 2022, variant P", "85.8 ± 0.4", "75.6 ± 0.4", "84.5 ± 1.1"),
        _accuracies("GCNII", "Chen et al. 2020", "85.5 ± 0.5", "73.4 ± 0.6", "80.2 ± 0.4"),
    )
)

# ogbn-arxiv.
PAPER_TABLE_2 = {
    "GCN": "71.74 ± 0.29",
    "GraphSAGE": "71.49 ± 0.27",
    "JKNet": "72.19 ± 0.21",
    "DAGNN": "72.09 ± 0.25",
    "GaAN": "71.97 ± 0.24",
    "MAGNA": "72.76 ± 0.14",
}

# Public split, by the rows of Table 6 here.
_TABLE_6 = "MAGNA paper, Table 6"
PAPER_TABLE_6 = _by_model(
    (
        _accuracies("Diff-GCN", _TABLE_6, "83.6 ± 0.2", "73.4 ± 0.3", "78.7 ± 0.4"),
        _accuracies("Diff-GCN + LN + FF", _TABLE_6, "83.4 ± 0.4", "72.3 ± 0.4", "78.1 ± 0.5"),
        _accuracies("GAT, 512 wide", _TABLE_6, "83.1 ± 0.5", "71.3 ± 0.4", "78.3 ± 0.4"),
        _accuracies("MAGNA, tuned", _TABLE_6, *MAGNA_PAPER.figures.values()),
    )
)

PAPER_ABLATIONS = _by_model(
    (
        _accuracies("No LayerNorm", _TABLE_1, "83.8 ± 0.6", "71.1 ± 0.5", "79.8 ± 0.2"),
        _accuracies("No Diffusion", _TABLE_1, "83.0 ± 0.4", "71.6 ± 0.4", "79.3 ± 0.3"),
        _accuracies("No Feed-Forward", _TABLE_1, "84.9 ± 0.4", "72.2 ± 0.3", "80.9 ± 0.3"),
        _accuracies("No (LayerNorm + Feed-Forward)", _TABLE_1, "84.3 ± 0.6", "72.6 ± 0.4", "79.6 ± 0.4"),
    )
)

# Ten random splits; the deviation is over them.
PAPER_SPLITS = _by_model(
    (
        _accuracies("MAGNA", _RANDOM_SPLITS, "83.6 ± 1.2", "72.1 ± 1.2", "80.3 ± 2.4"),
        _accuracies("GAT", _RANDOM_SPLITS, "82.2 ± 1.4", "71.0 ± 1.2", "78.3 ± 3.0"),
        _accuracies("Diff-GCN", _RANDOM_SPLITS, "83.6 ± 1.8", "71.7 ± 1.1", "79.6 ± 2.5"),
        _accuracies("GAT + LN + FF", _RANDOM_SPLITS, "82.5 ± 2.2", "69.5 ± 1.1", "78.2 ± 2.0"),
        _accuracies("Diff-GCN + LN + FF", _RANDOM_SPLITS, "83.3 ± 1.9", "69.7 ± 1.2", "79.7 ± 2.3"),
    )
)


def _links(model: str, source: str, *texts: str) -> PublishedRow:
    """Make a row from one text for each data set: MR, MRR, H@1, H@3 and H@10 with blanks between them."""
    figures = zip(product(KNOWLEDGE_GRAPHS, LINK_METRICS), " ".join(texts).split(), strict=True)
    return PublishedRow(model, source, {place: figure for place, figure in figures if figure != "-"})


_TABLE_3 = "MAGNA paper, Table 3"

DISTMULT_PAPER = _links("DistMult", _TABLE_3, "5110 .43 .39 .44 .49", "254 .241 .155 .263 .419")
MAGNA_LINKS_PAPER = _links(
    "MAGNA + DistMult, the paper", _TABLE_3, "2545 .502 .459 .519 .589", "138 .369 .275 .409 .563"
)

PAPER_TABLE_3 = (
    _links("TransE", _TABLE_3, "3384 .226 - - .501", "357 .294 - - .465"),
    _links("RotatE", _TABLE_3, "3340 .476 .428 .492 .571", "177 .338 .241 .375 .533"),
    _links("OTE", _TABLE_3, "- .491 .442 .511 .583", "- .361 .267 .396 .550"),
    _links("ROTH", _TABLE_3, "- .496 .449 .514 .586", "- .344 .246 .380 .535"),
    _links("ComplEx", _TABLE_3, "5261 .44 .41 .46 .51", "339 .247 .158 .275 .428"),
    _links("QuatE", _TABLE_3, "2314 .488 .438 .508 .582", "- .366 .271 .401 .556"),
    _links("CoKE", _TABLE_3, "- .475 .437 .490 .552", "- .361 .269 .398 .547"),
    _links("ConvE", _TABLE_3, "4187 .43 .40 .44 .52", "244 .325 .237 .356 .501"),
    DISTMULT_PAPER,
    _links("TuckER", _TABLE_3, "- .470 .443 .482 .526", "- .358 .266 .392 .544"),
    _links("AutoSF", _TABLE_3, "- .490 .451 - .567", "- .360 .267 - .552"),
    _links("R-GCN", _TABLE_3, "- - - - -", "- .249 .151 .264 .417"),
    _links("SACN", _TABLE_3, "- .47 .43 .48 .54", "- .35 .26 .39 .54"),
    _links("A2N", _TABLE_3, "- .45 .42 .46 .51", "- .317 .232 .348 .486"),
    MAGNA_LINKS_PAPER,
)

# The baselines of the paper's Table 3.
PAPER_LINK_BASELINES = tuple(row.model for row in PAPER_TABLE_3 if row is not MAGNA_LINKS_PAPER)

# Not in the paper's table.
LINKS_ELSEWHERE = (
    _links("DistMult, tuned", "LibKGE, Ruffinelli et al. 2020", "- .452 .413 .466 .530", "- .343 .250 .378 .531"),
    _links("ComplEx-N3", "Lacroix et al. 2018", "- .48 - - -", "- .37 .27 - .56"),
    _links("ComplEx-N3 + relation prediction", "Chen et al. 2021", "- .488 .443 - .578", "- .388 .298 - .568"),
    _links("RESCAL-DURA", "Zhang et al. 2020", "- .498 .455 - .577", "- .368 .276 - .550"),
    _links("ComplEx-DURA", "Zhang et al. 2020", "- .491 .449 - .571", "- .371 .276 - .560"),
    _links("CompGCN", "Vashishth et al. 2020", "- .479 .443 - .546", "- .355 .264 - .535"),
    _links("NBFNet", "Zhu et al. 2021", "636 .551 .497 .573 .666", "114 .415 .321 .454 .599"),
)

# Tables 4 and 5: sizes of the data sets.
_GRAPH, _TRIPLES = "nodes edges classes features train valid test", "nodes relations train valid test"


def _sizes(columns: str, figures: str, **other: str) -> dict[str, str]:
    return dict(zip(columns.split(), figures.split(), strict=True)) | other


PAPER_SIZES = {
    "cora": _sizes(_GRAPH, "2,708 5,429 7 1,433 140 500 1,000"),
    "citeseer": _sizes(_GRAPH, "3,327 4,732 6 3,703 120 500 1,000"),
    "pubmed": _sizes(_GRAPH, "19,717 88,651 3 500 60 500 1,000"),
    "ogbn-arxiv": _sizes(_GRAPH, "169,343 1,166,243 40 128 90,941 29,799 48,603"),
    "wn18rr": _sizes(_TRIPLES, "40,943 11 86,835 3,034 3,134", **{"average degree": "2.19"}),
    "fb15k-237": _sizes(_TRIPLES, "14,541 237 272,115 17,535 20,466", **{"average degree": "18.17"}),
}


class PublishedSpace(NamedTuple):
    """One published search space, Tables 8 to 10.

    `fixed` and `searched` have the settings of this package under the words of the paper. A pair of numbers is a range,
    a list is a choice.
    """

    table: str
    recipes: tuple[str, ...]
    fixed: Mapping[str, tuple[str, int]]
    searched: Mapping[str, tuple[tuple[str, ...], tuple[float, float] | list[int]]]


_DROPOUTS = ("model.dropout", "model.input_dropout")
_ALPHA, _DROPOUT = (("model.alpha",), (0.05, 0.6)), (_DROPOUTS, (0.1, 0.6))
_SIZE, _HEADS, _LAYERS = "Hidden Dimension", "Head Number", "Layer Number"
_RATE, _HOPS, _TELEPORT = "Learning rate", "Hop Number", "Teleport probability"
_DROPPED, _DECAY = "Dropout (attention, feature)", "Weight Decay"

# The optimiser, Adam in all of them, is no setting here.
PAPER_SPACES = (
    PublishedSpace(
        "Table 8",
        tuple(f"{dataset}-paper" for dataset in CITATION_GRAPHS),
        {_SIZE: ("model.hidden_channels", 512), _HEADS: ("model.heads", 8), _LAYERS: ("model.num_layers", 6)},
        {
            _RATE: (("train.lr",), (5e-5, 1e-3)),
            _HOPS: (("model.K",), [2, 3, 4, 5, 6, 7, 8, 9, 10]),
            _TELEPORT: _ALPHA,
            _DROPPED: _DROPOUT,
            _DECAY: (("train.weight_decay",), (1e-6, 1e-5)),
        },
    ),
    PublishedSpace(
        "Table 9",
        ("arxiv-paper",),
        {_SIZE: ("model.hidden_channels", 128), _HEADS: ("model.heads", 8), _LAYERS: ("model.num_layers", 2)},
        {
            _RATE: (("train.lr",), (1e-3, 1e-2)),
            _HOPS: (("model.K",), [3, 4, 5, 6]),
            _TELEPORT: _ALPHA,
            _DROPPED: _DROPOUT,
            _DECAY: (("train.weight_decay",), (1e-5, 1e-4)),
        },
    ),
    PublishedSpace(
        "Table 10",
        tuple(f"{dataset}-paper" for dataset in KNOWLEDGE_GRAPHS),
        {"Initial Entity/Relation Dimension": ("model.entity_channels", 100)},
        {
            "Number of layers": (("model.num_layers",), [2, 3]),
            _RATE: (("train.lr",), (1e-4, 5e-3)),
            _SIZE: (("model.hidden_channels",), [256, 512, 768]),
            "Batch size": (("task.batch_size",), [1024, 2048, 3072]),
            _HEADS: (("model.heads",), [4, 8]),
            _HOPS: (("model.K",), [2, 3, 4, 5, 6]),
            _TELEPORT: _ALPHA,
            _DROPPED: _DROPOUT,
            _DECAY: (("train.weight_decay",), (1e-10, 1e-8)),
        },
    ),
)
