"""Probabilities that mean something: their fit on validation, their reliability, and thresholds for a precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from magna.data.node_data import Target

_LARGEST = 1000.0  # temperature; the smallest is its inverse
_FOLDS = 5
_BINS = 15
_NEWTON_STEPS = 100
# Pull of Platt scaling to slope 1 and bias 0, in entries: a label whose entries are separable has no finite fit.
_PULL = 1.0
_POOR = 0.05


def fit_temperature(derivatives: Callable[[float], tuple[float, float]], tolerance: float = 1e-6) -> float:
    """The temperature T whose scale β = 1 / T minimises a convex loss; NaN where the loss is not finite.

    Newton's method inside a bracket that every step narrows. `derivatives` gives the first and second derivative of
    the loss by β. A loss without a minimum between 0.001 and 1000 gives the nearer end.

    >>> round(fit_temperature(lambda scale: (scale - 0.5, 1.0)), 6)
    2.0
    """
    low, high, scale = 1 / _LARGEST, _LARGEST, 1.0
    for _ in range(_NEWTON_STEPS):
        slope, curvature = derivatives(scale)
        if not math.isfinite(slope):
            return math.nan
        if slope == 0:
            break
        low, high = (low, scale) if slope > 0 else (scale, high)
        step = scale - slope / curvature if curvature > 0 else -1.0
        step = step if low < step < high else math.sqrt(low * high)
        scale, last = step, scale
        if abs(scale - last) <= tolerance * last:
            break
    return 1 / scale


def class_temperature(scores: Tensor, target: Tensor) -> float:
    """The temperature that minimises the cross-entropy of classes.

    One answer of n + 1 counts as drawn at random, so that labels that are all right do not give certainty.

    Shapes: scores [n, C], target [n].
    """
    scores = scores.double()
    random = 1 / (len(scores) + 1)
    wanted = (1 - random) * scores.gather(1, target[:, None])[:, 0] + random * scores.mean(1)

    def derivatives(scale: float) -> tuple[float, float]:
        shares = (scale * scores).softmax(1)
        mean = (shares * scores).sum(1)
        variance = (shares * (scores - mean[:, None]).square()).sum(1)
        return float((mean - wanted).mean()), float(variance.mean())

    return fit_temperature(derivatives)


def label_temperature(scores: Tensor, target: Tensor) -> float:
    """The temperature that minimises the binary cross-entropy of the known entries, as two classes each."""
    known = ~target.isnan()
    pairs = torch.stack([torch.zeros_like(scores[known]), scores[known]], dim=1)
    return class_temperature(pairs, target[known].long())


def platt(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and bias of each label that minimise its binary cross-entropy (Platt 1999), by Newton's method.

    A label without both answers among its known entries keeps slope 1 and bias 0.

    Shapes: scores, target [n, L] → [L], [L].
    """
    slopes, biases = torch.ones(scores.size(1)).double(), torch.zeros(scores.size(1)).double()
    for label, (column, truth) in enumerate(zip(scores.double().T, target.T, strict=True)):
        known = ~truth.isnan()
        if len(truth[known].unique()) < 2:
            continue
        inputs = torch.stack([column[known], torch.ones(int(known.sum())).double()], dim=1)
        start = torch.tensor([1.0, 0.0]).double()
        weights = start.clone()
        for _ in range(_NEWTON_STEPS):
            shares = (inputs @ weights).sigmoid()
            slope = inputs.T @ (shares - truth[known]) + _PULL * (weights - start)
            curvature = (inputs * (shares * (1 - shares))[:, None]).T @ inputs + _PULL * torch.eye(2).double()
            step = torch.linalg.solve(curvature, slope)
            weights = weights - step * min(1.0, 2.0 / float(step.norm().clamp(min=1e-12)))
            if float(step.norm()) < 1e-9:
                break
        slopes[label], biases[label] = weights
    return slopes, biases


def fit_calibration(scores: Tensor, target: Tensor, kind: Target, with_bias: bool = True) -> dict[str, Any]:
    """The calibration of some scores: a temperature, for labels Platt scaling where it predicts held-out folds better.

    A temperature never changes which class is the likeliest. Numbers have no probabilities and no calibration.

    Args:
        scores: scores of validation nodes.
        target: their labels.
        kind: the target.
        with_bias: for labels, also try Platt scaling; a bias would undo the weights of balanced labels.
    """
    if kind == "number":
        return {}
    if kind == "classes":
        return {"temperature": class_temperature(scores, target)}
    values: dict[str, Any] = {"temperature": label_temperature(scores, target)}
    if not with_bias or len(scores) < _FOLDS or not scores.isfinite().all():
        return values
    fold = torch.arange(len(scores), device=scores.device) % _FOLDS
    losses = torch.zeros(2).double()
    for number in range(_FOLDS):
        fitted, held_out = (scores[fold != number], target[fold != number]), fold == number
        slope, bias = platt(*fitted)
        for method, scaled in enumerate(
            (scores[held_out] / label_temperature(*fitted), scores[held_out] * slope + bias)
        ):
            truth, known = target[held_out].nan_to_num().double(), ~target[held_out].isnan()
            parts = F.binary_cross_entropy_with_logits(scaled.double(), truth, reduction="none")
            losses[method] += parts[known].sum()
    if losses[1] < losses[0]:
        slope, bias = platt(scores, target)
        values |= {"slope": slope.tolist(), "bias": bias.tolist()}
    return values


def calibrated(scores: Tensor, calibration: Mapping[str, Any] | None) -> Tensor:
    """Scores whose probabilities are calibrated; a calibration without values changes nothing."""
    calibration = calibration or {}
    if "slope" in calibration:
        slope, bias = (torch.tensor(calibration[name], device=scores.device).double() for name in ("slope", "bias"))
        return scores.double() * slope + bias
    temperature: float = calibration.get("temperature", 1.0)
    return scores.double() / temperature


def reliability(confidence: Tensor, right: Tensor) -> dict[str, Any]:
    """Expected calibration error, and for each bin of confidence its answers, mean confidence and share of right ones.

    The error is the mean distance of confidence and share over the answers, in 15 bins of equal width.

    >>> reliability(torch.tensor([0.75, 0.75]), torch.tensor([True, False]))["expected_calibration_error"]
    0.25
    """
    confidence, right = confidence.double().cpu(), right.double().cpu()
    place = (confidence * _BINS).long().clamp(max=_BINS - 1)
    count, mean, share = (
        torch.zeros(_BINS).double().index_add_(0, place, values)
        for values in (torch.ones_like(confidence), confidence, right)
    )
    bins = [
        {"from": at / _BINS, "to": (at + 1) / _BINS, "n": int(n), "confidence": float(c / n), "right": float(r / n)}
        for at, (n, c, r) in enumerate(zip(count, mean, share, strict=True))
        if n > 0
    ]
    error = float((mean - share).abs().sum() / max(len(confidence), 1))
    return {"expected_calibration_error": error, "n": len(confidence), "bins": bins}


def note_on_reliability(values: Mapping[str, Any]) -> str | None:
    """A note where the expected calibration error is poor: above .05 and the chance of so few answers."""
    error, n = values["expected_calibration_error"], values["n"]
    if n == 0 or error <= _POOR + 1 / math.sqrt(n):
        return None
    return f"probabilities are poor: off by {100 * error:.0f} points on average (n = {n:,})"


class Threshold(NamedTuple):
    """The least confidence above which answers had a wanted precision."""

    confidence: float
    precision: float
    answers: int  # with at least that confidence, on validation
    of: int

    @property
    def text(self) -> str:
        """A sentence for the user."""
        share = f"{self.precision:.2f} of {self.answers:,} validation answers were right"
        return f"from probability {self.confidence:.2f} on, {share} (of {self.of:,} in all)"


def threshold_for(precision: float, confidence: Tensor, right: Tensor) -> Threshold | None:
    """The threshold that keeps most answers at this precision, or None where no share of them has it.

    >>> threshold_for(0.5, torch.tensor([0.75, 0.5, 0.25]), torch.tensor([True, False, False]))
    Threshold(confidence=0.5, precision=0.5, answers=2, of=3)
    """
    ordered, order = confidence.double().cpu().sort(descending=True)
    shares = right.cpu()[order].double().cumsum(0) / torch.arange(1, len(ordered) + 1)
    # Answers of equal confidence are taken together.
    ends = torch.cat([ordered[1:] != ordered[:-1], torch.ones(min(1, len(ordered)), dtype=torch.bool)])
    good = ((shares >= precision) & ends).nonzero()
    if len(good) == 0:
        return None
    last = int(good[-1])
    return Threshold(float(ordered[last]), float(shares[last]), last + 1, len(ordered))
