"""`MAGNA`: input projection, blocks, output head; saved and loaded as config.json and model.safetensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from magna.config.layers import BlockOptions, EncoderOptions, MAGNAOptions
from magna.config.registry import node_model
from magna.errors import ArgumentError
from magna.graph import Graph
from magna.nn import fused
from magna.nn.attention import check_size, graph_at_door
from magna.nn.block import MAGNABlock
from magna.nn.dropout import Dropout, draw_seed
from magna.nn.hub import Saved
from magna.nn.linear import Linear, fill_linear, fill_matrix
from magna.nn.norm import make_norm, reset_norm
from magna.nn.sparse import Dense, SparseRows


@node_model("magna", MAGNAOptions)
class MAGNA(Saved):
    r"""Multi-hop attention graph neural network: L blocks between an input projection and an output head.

    .. math:: H^{(0)} = X W_{in}, \quad H^{(l+1)} = \mathrm{Block}_l(H^{(l)}), \quad \mathrm{out} = H^{(L)} W_{out}

    A forward hook on `model.blocks[i].conv.attention` gets the scores [E, H] of the edges in block i; `edge_softmax`
    turns them into attention. `save_pretrained(folder)` writes config.json and model.safetensors, and
    `from_pretrained(folder)` reads them. `MAGNA(**model.config)` is a fresh model of the same form.

    Args:
        in_channels: width of the node features.
        hidden_channels: width of the blocks.
        num_layers: number of blocks.
        out_channels: number of classes; None: no output head, the model returns hidden states.
        heads: attention heads of each block.
        num_relations: number of edge types; None for a graph without types. All blocks share one table of relation
            embeddings, `hidden_channels` wide unless `relation_channels` is set.
        edge_dim: width of the features of an edge, which each block projects; None: edges have none.
        options: all other options, see :class:`magna.config.layers.EncoderOptions`.
        flat: single options as keywords, such as `K=3` or `norm="none"`.

    Shapes: x [N, in_channels], edge_index [2, E], edge_type [E] → [N, out_channels or hidden_channels].

    >>> model = MAGNA(16, 32, num_layers=2, out_channels=3, heads=4, K=3, alpha=0.2, feed_forward=False)
    >>> model(torch.randn(3, 16), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        *,
        heads: int = MAGNAOptions.heads,
        num_relations: int | None = None,
        edge_dim: int | None = None,
        options: EncoderOptions | None = None,
        **flat: Any,
    ) -> None:
        super().__init__()
        self.options = options = EncoderOptions.of(options, flat)
        sizes: dict[str, Any] = {"in_channels": in_channels, "hidden_channels": hidden_channels}
        for name, size in sizes.items():
            check_size(name, size)
        check_size("num_layers", num_layers, 4096)
        if out_channels is None and options.classifier_dropout > 0:
            raise ArgumentError("classifier_dropout", options.classifier_dropout, "0 without out_channels")
        sizes |= {"num_layers": num_layers, "out_channels": out_channels, "heads": heads}
        # All values, so that config.json does not depend on the defaults of a later version.
        edges: dict[str, Any] = {"num_relations": num_relations, "edge_dim": edge_dim}
        self.config: dict[str, Any] = sizes | edges | options.applied()
        self.in_channels, self.hidden_channels, self.out_channels = in_channels, hidden_channels, out_channels
        self.num_relations = num_relations

        # Drawn in the order of these parts, then in that of `reset_parameters` (docs/explanation/determinism.md).
        shared, backend = self._share_relations(), options.backend
        self.node_dropout = Dropout(options.node_dropout, rows=True, backend=backend)
        self.embed_dropout = Dropout(options.embed_dropout, backend=backend)
        projected = options.input_projection  # to a width; True: that of the blocks
        width = hidden_channels if projected is True else projected or in_channels
        self.input_projection: nn.Module = Linear(in_channels, width, backend=backend) if projected else Dense()
        widths = [width] + [hidden_channels] * (num_layers - 1)
        self.blocks = nn.ModuleList(
            MAGNABlock(width, hidden_channels, heads, options=shared, **edges) for width in widths
        )
        self.final_norm = make_norm(options.final_norm, hidden_channels, options.norm_eps, backend)
        self.classifier_dropout = Dropout(options.classifier_dropout, backend=backend)
        self.classifier: nn.Module = nn.Identity()
        if out_channels is not None:
            check_size("out_channels", out_channels)
            self.classifier = Linear(hidden_channels, out_channels, backend=backend)
        self.reset_parameters()

    def _share_relations(self) -> BlockOptions:
        """Make the table of relations, shared as r_k in Eq. 1 has no layer, and return the options of the blocks."""
        options, channels = self.options, self.options.relation_channels
        self.relation_table: nn.Parameter | None = None
        if self.num_relations is not None:
            channels = channels or self.hidden_channels
            if options.relation_embedding:
                self.relation_table = nn.Parameter(torch.empty(self.num_relations + options.add_self_loops, channels))
        return options.part(BlockOptions, relation_embedding=False, relation_channels=channels)

    def reset_parameters(self) -> None:
        init = self.options.init
        if self.relation_table is not None:
            fill_matrix(self.relation_table, init)
        for block in self.blocks:
            assert isinstance(block, MAGNABlock)
            block.reset_parameters()
        reset_norm(self.final_norm)
        for linear in (self.input_projection, self.classifier):
            if isinstance(linear, Linear):
                fill_linear(linear, init)

    def forward(
        self,
        x: Tensor | SparseRows,
        edge_index: Tensor | Graph,
        edge_type: Tensor | None = None,
        relation: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_mask: Tensor | None = None,
    ) -> Tensor:
        """Class scores, or hidden states of a model without a head; see :meth:`MAGNAConv.forward`."""
        graph = graph_at_door(x, edge_index, edge_type, self.in_channels, self.num_relations)
        relation = self.relation_table if relation is None else relation
        seed = draw_seed(x.device) if self.training and self.options.edge_dropout_shared else None
        edges = {"relation": relation, "edge_weight": edge_weight, "edge_attr": edge_attr}
        edges |= {"edge_mask": edge_mask, "edge_seed": seed}
        h = self.input_projection(self.embed_dropout(self.node_dropout(x)))
        if fused.covers(self, h):
            h = fused.walk(self, h, graph, **edges)
        else:
            for block in self.blocks:
                h = block(h, graph, **edges)
            h = self.final_norm(h)
        out: Tensor = self.classifier(self.classifier_dropout(h))
        return out
