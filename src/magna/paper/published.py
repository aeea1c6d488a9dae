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


def _accuracies(model: str, source: str, *figures: str) -> PublishedRow:
    return PublishedRow(model, source, dict(zip(CITATION_GRAPHS, figures, strict=True)))


def _by_model(rows: Iterable[PublishedRow]) -> dict[str, PublishedRow]:
    return {row.model: row for row in rows}


_TABLE_1 = "MAGNA paper, Table 1"
_RANDOM_SPLITS = "MAGNA paper, appendix, random splits"

MAGNA_PAPER = _accuracies("MAGNA, the paper", _TABLE_1, "85.4 ± 0.6", "73.7 ± 0.5", "81.4 ± 0.2")

# The baselines of the paper's Table 1 on the public split.
PAPER_BASELINES = ("GCN", "Cheby", "DualGCN", "JKNet", "LGCN", "Diff-GCN", "APPNP", "g-U-Nets", "GAT")

# Public split.
PAPER_TABLE_1 = (
    _accuracies("GCN", _TABLE_1, "81.5", "70.3", "79.0"),
    _accuracies("GAT", _TABLE_1, "83.0 ± 0.7", "72.5 ± 0.7", "79.0 ± 0.3"),
    _accuracies("APPNP", _TABLE_1, "84.3 ± 0.2", "71.1 ± 0.4", "79.7 ± 0.3"),
    _accuracies("Diff-GCN", _TABLE_1, "83.6 ± 0.2", "73.4 ± 0.3", "79.6 ± 0.4"),
    _accuracies("DAGNN", "Liu et al. 2020, 100 runs", "84.4 ± 0.5", "73.3 ± 0.6", "80.5 ± 0.5"),
    _accuracies("GCNII", "Chen et al. 2020", "85.5", "73.4", "80.3"),
    _accuracies("GRAND", "Feng et al. 2020, 100 runs", "85.4 ± 0.4", "75.4 ± 0.4", "82.7 ± 0.6"),
    MAGNA_PAPER,
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
