"""`FeatureScaling`: the scaling of features that a saved model carries."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from magna.data.scaling import (
    column_moments,
    columns_scaled,
    inverse_frequency,
    principal_axes,
    rows_normalised,
)
from magna.errors import ArgumentError

ScalingKind = Literal["none", "rows", "columns", "tfidf", "pca"]
KINDS: tuple[ScalingKind, ...] = ("none", "rows", "columns", "tfidf", "pca")


class FeatureScaling(nn.Module):
    r"""Features as a model takes them, from the raw ones; what is fitted are buffers in float64.

    ========= ==================================================================================
    none      x
    rows      each row divided by its sum
    columns   (x - mean) / deviation, of each column
    tfidf     x_c · (ln((1 + N) / (1 + N_c)) + 1), each row then divided by its length
    pca       the first principal components of x - mean
    ========= ==================================================================================

    Args:
        kind: one of the kinds above.
        in_channels: number of raw features.
        components: number of principal components, at most `in_channels`.

    Shapes: x [N, in_channels] → [N, out_channels], float32.

    >>> FeatureScaling("columns", 1).fit(torch.tensor([[1.0], [3.0]]))(torch.tensor([[5.0]])).tolist()
    [[3.0]]
    """

    first: Tensor  # mean of the columns, or the weights of TF-IDF
    second: Tensor  # inverse deviations of the columns, or principal axes

    def __init__(self, kind: ScalingKind, in_channels: int, components: int | None = None) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ArgumentError("kind", kind, KINDS)
        self.kind, self.in_channels = kind, in_channels
        self.out_channels = in_channels if components is None or kind != "pca" else min(components, in_channels)
        self.config: dict[str, Any] = {"kind": kind, "in_channels": in_channels}
        if kind == "pca":
            self.config["components"] = self.out_channels
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "columns": {"first": (in_channels,), "second": (in_channels,)},
            "tfidf": {"first": (in_channels,)},
            "pca": {"first": (in_channels,), "second": (in_channels, self.out_channels)},
        }
        for name, shape in shapes.get(kind, {}).items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def fit(self, x: Tensor) -> Self:
        """Fit the buffers to the raw features of some rows."""
        self._check(x)
        if self.kind == "columns":
            self.set(*column_moments(x))
        elif self.kind == "tfidf":
            self.set(inverse_frequency(x))
        elif self.kind == "pca":
            if self.out_channels > len(x):
                raise ArgumentError("components", self.out_channels, f"at most the {len(x)} rows")
            self.set(*principal_axes(x, self.out_channels))
        return self

    def set(self, *values: Any) -> Self:
        """Set the buffers in their order."""
        for buffer, value in zip(self.buffers(), values, strict=True):
            buffer.copy_(torch.as_tensor(value, dtype=torch.float64))
        return self

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        if self.kind == "rows":
            return rows_normalised(x)
        if self.kind == "columns":
            return columns_scaled(x, self.first, self.second)
        if self.kind == "tfidf":
            return nn.functional.normalize(x.double() * self.first).float()
        if self.kind == "pca":
            return ((x.double() - self.first) @ self.second.double()).float()
        return x

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.in_channels}" + (f" → {self.out_channels}" if self.kind == "pca" else "")

    def _check(self, x: Tensor) -> None:
        if x.size(1) != self.in_channels:
            allowed = f"[N, {self.in_channels}], the raw features of training"
            raise ArgumentError("x", x, allowed)
