"""Rows of the tables: recipes, with `{}` for the data set, and changes of the tuned recipe."""

from __future__ import annotations

from magna.paper.published import KNOWLEDGE_GRAPHS, PAPER_LINK_BASELINES

TUNED = "MAGNA, tuned"

# Row → recipe of a data set, and changes of it.
TABLE_1_RECIPES = {
    TUNED: "{}",
    "MAGNA, ensemble": "{}-ensemble",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "GAT": "{}-gat",
    "Diff-GCN": "{}-diff-gcn",
    "GAT, ensemble": "{}-gat model.members=8",
    "Diff-GCN, ensemble": "{}-diff-gcn model.members=8",
}

# Baseline or anchor → the system in the names of its recipes.
NODE_BASELINES = {
    "GCN": "gcn",
    "Cheby": "cheby",
    "DualGCN": "dualgcn",
    "JKNet": "jknet",
    "LGCN": "lgcn",
    "Diff-GCN (PPR)": "diff-gcn",
    "Diff-GCN (heat)": "diff-gcn-heat",
    "APPNP": "appnp",
    "g-U-Nets": "g-u-nets",
    "GAT": "gat",
    "GraphSAGE": "graphsage",
    "DAGNN": "dagnn",
    "GaAN": "gaan",
    "GRAND": "grand",
    "GRAND+": "grand-plus",
    "GCNII": "gcnii",
}


def authors_row(model: str) -> str:
    """Row of a baseline with its authors' settings.

    >>> authors_row("GCN")
    "GCN, authors' settings"
    """
    return f"{model}, authors' settings"


AUTHORS_RECIPES = {authors_row(model): f"{{}}-{system}-published" for model, system in NODE_BASELINES.items()}

# The models of Table 2, all with OGB's own files.
TABLE_2_RECIPES = {
    "GCN": "{}-gcn",
    "GraphSAGE": "{}-graphsage",
    "JKNet": "{}-jknet",
    "DAGNN": "{}-dagnn",
    "GaAN": "{}-gaan",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
}

# The variants of Table 6; the paper has no figure of the last.
TABLE_6_RECIPES = {
    "Diff-GCN + LN + FF": "{}-diff-gcn-ln-ff",
    "GAT, 512 wide": "{}-gat-512",
    "Diff-GCN, 512 wide": "{}-diff-gcn-512",
}

# The models of Table 7.
SPLIT_RECIPES = {
    "MAGNA": "{}",
    "GAT": "{}-gat",
    "Diff-GCN": "{}-diff-gcn",
    "GAT + LN + FF": "{}-gat-ln-ff",
    "Diff-GCN + LN + FF": "{}-diff-gcn-ln-ff",
}

SWEPT_HOPS = (1, 2, 3, 4, 6, 8, 10)  # Fig. 4c
SWEPT_ALPHAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)  # Fig. 4d
SWEPT_MODELS = ("tuned", "paper's blocks")
NARROW_BLOCKS = ("model.hidden_channels=64",)  # the paper's blocks in the width of the tuned recipes

# The four ablations of the paper's Table 1.
ABLATED_PARTS = {
    "No LayerNorm": ("model.norm=none", "model.final_norm=none"),
    "No Diffusion": ("model.diffusion=false",),
    "No Feed-Forward": ("model.feed_forward=false",),
    "No (LayerNorm + Feed-Forward)": ("model.norm=none", "model.final_norm=none", "model.feed_forward=false"),
}

# One change of the tuned recipe for each difference between the paper and its authors' code, by its point in
# docs/explanation/switches.md, and for each addition of this package. A change that a recipe already has is left out.
# fmt: off
_BY_POINT = {
    "1": ("model.projection=shared", "model.projection=separate", "model.tanh=true", "model.tanh=false"),
    "2": ("model.head_form=full", "model.head_form=split", "model.out_projection=false", "model.bias=true"),
    "3": ("model.top_k=none", "model.top_k=5"),
    "4": ("model.edge_dropout=0.0", "model.edge_dropout=0.2"),
    "5": ("model.dropout=0.0", "model.dropout=0.3"),
    "6": (
        "model.feature_dropout=0.0", "model.feature_dropout=0.3", "model.input_dropout=0.0",
        "model.output_dropout=0.0", "model.output_dropout=0.3", "model.ffn_output_dropout=0.0",
        "model.ffn_output_dropout=0.3",
    ),
    "7": (
        "model.input_projection=false", "model.residual_dropout=0.0", "model.final_norm=none",
        "model.final_norm=layer", "model.classifier_dropout=0.0", "model.classifier_dropout=0.5",
    ),
    "8": ("model.norm=layer", "model.norm=unbiased", "model.norm_eps=1e-12"),
    "9": ("model.feed_forward=true", "model.ffn_dropout=0.0", "model.ffn_dropout=0.1"),
    "10": ("model.init=official", "model.init=glorot"),
    "11": ("data.normalise_features=true", "data.normalise_features=false", "model.embed_dropout=0.0"),
    "12": ("data.self_loops=false", "data.self_loops=true"),
    "13": ("train.clip=0.0", "train.clip=1.0"),
    "15": (
        "model.negative_slope=0.2", "model.negative_slope=0.5", "model.K=1", "model.K=3", "model.K=6", "model.K=10",
        "model.alpha=0.05", "model.alpha=0.1", "model.alpha=0.5",
    ),
    "30": ("model.mode=exact model.dropout=0.0 model.feature_dropout=0.0",),
    "Eq. 3": ("model.hop_weights=alpha", "model.hop_weights=theta"),
    "ours": (
        "task.consistency=0.0", "task.consistency=1.0", "task.passes=4", "model.node_dropout=0.0",
        "model.node_dropout=0.3",
    ),
}
# fmt: on
SWITCHES = tuple((point, text) for point, texts in _BY_POINT.items() for text in texts)

# "DistMult" is the decoder alone. A data set without such a recipe has no such row.
TABLE_3_RECIPES = {
    TUNED: "{}",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "MAGNA, official without its bug": "{}-official model.relation_source=relations",
    "DistMult": "{}-distmult",
}
# The systems of the paper's Table 3 on graphs that two cores can train. A short search chooses the settings of each.
SEARCHED_RECIPES = {
    "MAGNA + DistMult": "{} model.decoder=distmult",
    "MAGNA + ComplEx": "{}",
    **{system: f"{{}}-{system.lower()}" for system in PAPER_LINK_BASELINES},
}
SEARCHED_GRAPHS = ("families", "wn18rr-v1", "fb15k-237-v1")
CONTROLLED_GRAPHS = (*KNOWLEDGE_GRAPHS, "families")

# Changes after which link prediction must lose its gain.
CONTROLS = {
    "No propagation": ("model.K=0",),
    "Random graph": ("data.control=random-graph",),
    "One hop of attention": ("model.diffusion=false",),
    "No relation types": ("data.control=no-types",),
    "Encoder with DistMult": ("model.decoder=distmult", "model.skip_channels=0"),
}


def sweep_row(model: str, key: str, value: float) -> str:
    """Row of one value of a setting.

    >>> sweep_row("tuned", "model.K", 3)
    'tuned, K=3'
    """
    return f"{model}, {key.partition('.')[2]}={value}"
