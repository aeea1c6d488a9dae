"""`MAGNA`: input projection, blocks, output head; saved and loaded as config.json and model.safetensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magna.graph import Graph
from magna.nn.attention import check_size, graph_at_door
from magna.nn.block import MAGNABlock
from magna.nn.conv import MAGNAConv
from magna.nn.dropout import Dropout, draw_seed
from magna.nn.hub import Saved
from magna.nn.init import fill_linear, fill_matrix
from magna.nn.linear import Linear
from magna.nn.norm import NormLayer, add, add_norm, make_norm
from magna.nn.options import complete, defaults
from magna.nn.plain import is_plain
from magna.nn.sparse import SparseRows, as_dense
from magna.typing import Norm, one_of


class MAGNA(Saved):
    r"""Multi-hop attention graph neural network: L blocks between an input projection and an output head.

    .. math:: H^{(0)} = X W_{in}, \quad H^{(l+1)} = \mathrm{Block}_l(H^{(l)}), \quad \mathrm{out} = H^{(L)} W_{out}

    The attention of block i: a forward hook on `model.blocks[i].conv.attention` gets the scores [E, H] of the edges;
    `edge_softmax` of them with the graph is the attention.

    `save_pretrained(folder)` writes config.json and model.safetensors, `from_pretrained(folder)` reads them. `config`
    is every setting as config.json holds it: `MAGNA(**model.config)` is a model of the same form.

    Args:
        in_channels: width of the node features (or of the embeddings that are passed as features).
        hidden_channels: width of the blocks.
        num_layers: number of blocks.
        out_channels: width of the output head, the number of classes; None: no head, the hidden states come out.
        heads: attention heads of each block.
        input_projection: True: a linear layer to `hidden_channels` first; a number: to that width; False: none, the
            first block takes the features as they are and projects its residual.
        final_norm: norm on the last hidden states, "none", "layer", "unbiased" or "batch".
        node_dropout: of whole rows of the features, before anything else.
        embed_dropout: on the features, before the input projection.
        classifier_dropout: on the last hidden states, before the output head.
        edge_dropout_shared: all blocks leave out the same edges; False: each block draws its own.
        relation_channels: width of a relation's embedding; None: `hidden_channels`, in a link predictor
            `entity_channels`.
        relation_embedding: own one table of relation embeddings for all blocks. False: it comes with each call.
        options: every keyword option of :class:`MAGNABlock` and :class:`MAGNAConv`, such as `K`, `alpha`, `norm`.

    Shapes: x [N, in_channels], edge_index [2, E], edge_type [E] → [N, out_channels or hidden_channels].

    >>> model = MAGNA(16, 32, num_layers=2, out_channels=3, heads=4, K=3, alpha=0.2, feed_forward=False)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    # What may differ between models that are trained side by side (`magna.training.trials`).
    BATCHED = frozenset(
        {"K", "alpha", "negative_slope", "score_scale", "dropout", "feature_dropout", "edge_dropout"}
        | {"node_dropout", "embed_dropout", "input_dropout", "output_dropout", "residual_dropout", "classifier_dropout"}
        | {"ffn_dropout", "ffn_output_dropout"}
    )

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        *,
        heads: int = 8,
        input_projection: bool | int = True,
        final_norm: Norm = "none",
        node_dropout: float = 0.0,
        embed_dropout: float = 0.0,
        classifier_dropout: float = 0.0,
        edge_dropout_shared: bool = False,
        relation_embedding: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        settings = complete(options, MAGNABlock, MAGNAConv)
        # Written into config.json, so that it is complete whatever the defaults of a later version are.
        self.config: dict[str, Any] = settings | {
            "in_channels": in_channels,
            "hidden_channels": hidden_channels,
            "num_layers": num_layers,
            "out_channels": out_channels,
            "heads": heads,
            "input_projection": input_projection,
            "final_norm": final_norm,
            "node_dropout": node_dropout,
            "embed_dropout": embed_dropout,
            "classifier_dropout": classifier_dropout,
            "edge_dropout_shared": edge_dropout_shared,
            "relation_embedding": relation_embedding,
        }
        for name, size in (
            ("in_channels", in_channels),
            ("hidden_channels", hidden_channels),
            ("num_layers", num_layers),
        ):
            check_size(name, size)
        one_of("final_norm", final_norm, Norm)
        self.in_channels, self.hidden_channels, self.out_channels = in_channels, hidden_channels, out_channels
        self.num_relations: int | None = settings["num_relations"]
        self.edge_dropout_shared = edge_dropout_shared

        # One table serves all blocks: r_k carries no layer in Eq. 1.
        settings["relation_embedding"] = False
        if settings["relation_channels"] is None:
            settings["relation_channels"] = hidden_channels
        self.relation_table: nn.Parameter | None = None
        if self.num_relations is not None and relation_embedding:
            rows = self.num_relations + settings["add_self_loops"]
            self.relation_table = nn.Parameter(torch.empty(rows, settings["relation_channels"]))

        backend = settings["backend"]
        self.node_dropout = Dropout(node_dropout, rows=True, name="node_dropout", backend=backend)
        self.embed_dropout = Dropout(embed_dropout, name="embed_dropout", backend=backend)
        width = _input_width(input_projection, in_channels, hidden_channels)
        self.input_projection = Linear(in_channels, width, backend=backend) if input_projection is not False else None
        widths = [width] + [hidden_channels] * num_layers
        self.blocks = nn.ModuleList(MAGNABlock(w, hidden_channels, heads, **settings) for w in widths[:-1])
        self.final_norm: NormLayer = make_norm(final_norm, hidden_channels, settings["norm_eps"], backend)
        self.classifier_dropout = Dropout(classifier_dropout, name="classifier_dropout", backend=backend)
        self.classifier: Linear | None = None
        if out_channels is not None:
            check_size("out_channels", out_channels)
            self.classifier = Linear(hidden_channels, out_channels, backend=backend)
        elif classifier_dropout > 0:
            raise ValueError(f"classifier_dropout is {classifier_dropout}; allowed: 0 for a model without output head")
        self.reset_parameters()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every keyword option of the model, its blocks and their layers, with its default."""
        return defaults(MAGNABlock, MAGNAConv, cls)

    def reset_parameters(self) -> None:
        init = self.config["init"]
        if self.relation_table is not None:
            fill_matrix(self.relation_table, init)
        for block in self.blocks:
            assert isinstance(block, MAGNABlock)
            block.reset_parameters()
        if not isinstance(self.final_norm, nn.Identity):
            self.final_norm.reset_parameters()
        for linear in (self.input_projection, self.classifier):
            if linear is not None:
                fill_linear(linear, init)

    def forward(
        self,
        x: Tensor | SparseRows,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
        *,
        edge_mask: Tensor | None = None,
    ) -> Tensor:
        """Class scores, or hidden states where the model has no head; see :meth:`MAGNAConv.forward`."""
        graph = graph_at_door(x, edge_index, edge_type, self.in_channels, self.num_relations)
        if relation is None:
            relation = self.relation_table
        seed = draw_seed(x.device) if self.training and self.edge_dropout_shared else None
        features = self.embed_dropout(self.node_dropout(x))
        h = as_dense(features) if self.input_projection is None else self.input_projection(features)
        beside = None
        for block in self.blocks:
            call = {"relation": relation, "edge_mask": edge_mask, "edge_seed": seed}
            if is_plain(block, MAGNABlock):
                h, beside = block.step(h, beside, graph, **call)
            else:
                h, beside = block(add(h, beside), graph, **call), None
        _, h = add_norm(h, beside, self.final_norm)
        return h if self.classifier is None else self.classifier(self.classifier_dropout(h))


def _input_width(input_projection: bool | int, in_channels: int, hidden_channels: int) -> int:
    if input_projection is True:
        return hidden_channels
    if input_projection is False:
        return in_channels
    check_size("input_projection", input_projection)
    return input_projection
