"""Modules with parameters: attention, layer, block, model. No losses."""

from magna.nn.attention import EdgeAttention
from magna.nn.block import MAGNABlock
from magna.nn.conv import MAGNAConv
from magna.nn.decoder import Decoder
from magna.nn.dropout import Dropout
from magna.nn.edges import add_self_loops
from magna.nn.encoder import MAGNA
from magna.nn.link_predictor import LinkPredictor
from magna.nn.norm import BatchNorm, UnbiasedLayerNorm
from magna.nn.sparse import SparseRows

__all__ = [
    "MAGNA",
    "BatchNorm",
    "Decoder",
    "Dropout",
    "EdgeAttention",
    "LinkPredictor",
    "MAGNABlock",
    "MAGNAConv",
    "SparseRows",
    "UnbiasedLayerNorm",
    "add_self_loops",
]
