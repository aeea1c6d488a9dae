"""Calibration: the fit is the minimum, argmax stays, reliability and thresholds count what they say."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

from magna.tasks.calibration import (
    calibrated,
    class_temperature,
    fit_calibration,
    fit_temperature,
    label_temperature,
    note_on_reliability,
    platt,
    reliability,
    threshold_for,
)


def _drawn(scores: Tensor, temperature: float) -> Tensor:
    """Classes drawn from the softmax of scores at a temperature."""
    return torch.multinomial((scores / temperature).softmax(1), 1).squeeze(1)


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_temperature_is_found_and_is_the_minimum(true: float) -> None:
    torch.manual_seed(0)
    scores = 3 * torch.randn(4000, 5)
    y = _drawn(scores, true)
    fitted = class_temperature(scores, y)
    assert fitted == pytest.approx(true, rel=0.1)
    best = minimize_scalar(lambda log: float(F.cross_entropy(scores.double() / math.exp(log), y)), (-2, 2))
    assert fitted == pytest.approx(math.exp(best.x), rel=0.03)
    assert torch.equal(calibrated(scores, fit_calibration(scores, y, "classes")).argmax(1), scores.argmax(1))


def test_scores_that_are_all_right_do_not_give_certainty() -> None:
    scores = torch.eye(3).repeat(4, 1)
    y = scores.argmax(1)
    share = calibrated(scores, {"temperature": class_temperature(scores, y)}).softmax(1).amax(1)
    assert torch.allclose(share, torch.tensor(1 - 2 / 3 / 13).double())
    assert class_temperature(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])) == 1.0
    assert math.isnan(class_temperature(torch.full((2, 2), math.nan), torch.tensor([0, 1])))
    assert fit_temperature(lambda scale: (1.0, 0.0)) == pytest.approx(1000, rel=0.01)


def test_platt_is_a_logistic_regression_and_is_taken_where_it_predicts_better() -> None:
    torch.manual_seed(1)
    scores = 2 * torch.randn(2000, 2)
    y = (torch.rand(2000, 2) < (0.5 * scores - 2).sigmoid()).float()
    y[::3, 0] = math.nan
    slope, bias = platt(scores, y)
    for label in range(2):
        known = ~y[:, label].isnan()
        peer = LogisticRegression(C=1e6).fit(scores[known, label : label + 1], y[known, label])
        assert float(slope[label]) == pytest.approx(peer.coef_[0, 0], rel=0.02)
        assert float(bias[label]) == pytest.approx(peer.intercept_[0], rel=0.02)
    shifted = fit_calibration(scores, y, "labels")
    torch.testing.assert_close(calibrated(scores, shifted), scores.double() * slope + bias)
    assert set(fit_calibration(scores, y, "labels", with_bias=False)) == {"temperature"}
    plain = (torch.rand(300, 2) < (0.5 * scores[:300]).sigmoid()).float()
    assert set(fit_calibration(scores[:300], plain, "labels")) == {"temperature"}
    assert label_temperature(scores[:300], plain) == pytest.approx(2, rel=0.25)
    assert fit_calibration(scores, y, "number") == {}


def test_a_label_without_both_answers_keeps_its_scores() -> None:
    slope, bias = platt(torch.randn(9, 2), torch.tensor([[0.0, math.nan]]).repeat(9, 1))
    assert slope.tolist() == [1, 1] and bias.tolist() == [0, 0]
    separable = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]])
    assert platt(separable, (separable > 0).float())[0].isfinite().all()


def test_reliability_of_honest_and_of_boastful_answers() -> None:
    torch.manual_seed(2)
    confidence = torch.rand(20000)
    honest = reliability(confidence, torch.rand(20000) < confidence)
    assert honest["expected_calibration_error"] < 0.02 and note_on_reliability(honest) is None
    assert sum(each["n"] for each in honest["bins"]) == honest["n"] == 20000
    boastful = reliability(torch.full((200,), 1.0), torch.arange(200) < 100)
    assert boastful["expected_calibration_error"] == 0.5
    assert boastful["bins"] == [{"from": 14 / 15, "to": 1.0, "n": 200, "confidence": 1.0, "right": 0.5}]
    assert note_on_reliability(boastful) is not None and "50 points" in str(note_on_reliability(boastful))
    nothing = reliability(torch.zeros(0), torch.zeros(0))
    assert nothing["expected_calibration_error"] == 0 and note_on_reliability(nothing) is None


def test_a_threshold_keeps_most_answers_at_the_wanted_precision() -> None:
    confidence = torch.tensor([0.99, 0.9, 0.9, 0.7, 0.6, 0.5]).double()
    right = torch.tensor([True, True, False, True, True, False])
    chosen = threshold_for(0.79, confidence, right)
    assert chosen is not None and (chosen.answers, chosen.of) == (5, 6) and chosen.confidence == pytest.approx(0.6)
    first = threshold_for(0.95, confidence, right)
    assert first is not None and (first.answers, first.precision) == (1, 1.0)
    assert threshold_for(0.9, confidence[1:3], right[1:3]) is None, "equal confidences are taken together"
    assert threshold_for(0.9, confidence[:0], right[:0]) is None
