"""The features of a graph as its settings scale them, with the scaling that a saved model carries."""

from __future__ import annotations

from dataclasses import replace

from magna.config.tables import NodeDataOptions
from magna.data import NodeData
from magna.nn.scaling import FeatureScaling


def with_scaling(
    data: NodeData, options: NodeDataOptions, fitted: FeatureScaling | None = None
) -> tuple[NodeData, FeatureScaling | None]:
    """Prepared data with transformed features, and the scaling that leads to them from the raw ones.

    Args:
        data: prepared as the settings say; its schema has the numbers of standardised features.
        options: its settings.
        fitted: the transform of a training, in place of one that is fitted to all rows of this data.
    """
    if data.x is None:
        return data, None
    rows, width = data.x.shape
    if data.schema.feature_shift is not None:
        numbers = data.schema.feature_shift, data.schema.feature_scale
        return data, FeatureScaling("columns", width).set(*numbers)
    if options.normalise_features:
        return data, FeatureScaling("rows", width)
    if options.feature_transform == "none":
        return data, None
    if fitted is None:
        fitted = FeatureScaling(options.feature_transform, width, min(options.components, rows)).fit(data.x)
    return replace(data, x=fitted(data.x)), fitted
