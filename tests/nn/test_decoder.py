"""Each decoder computes its formula, and its scores start with a standard deviation of about 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import magna
from magna.config import registry
from magna.config.registry import decoder, decoder_names, find_decoder
from magna.nn.decoder import ComplEx, ConvE, Decoder, TuckER
from tests.support.measuring import peak_bytes

CHANNELS, RELATION_CHANNELS, ENTITIES, BATCH = 12, 5, 7, 4
# Those of baselines have tests with their models.
NAMES = [name for name in decoder_names() if find_decoder(name).__module__ == "magna.nn.decoder"]


def _decoder(name: str, relation_channels: int = RELATION_CHANNELS, **options: Any) -> Decoder:
    torch.manual_seed(0)
    module: Decoder = find_decoder(name)(CHANNELS, relation_channels, ENTITIES, **options)
    module.reset_parameters()
    return module


def _inputs(relation_channels: int = RELATION_CHANNELS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (BATCH, CHANNELS), (BATCH, relation_channels), (ENTITIES, CHANNELS)
    head, relation, states = (torch.randn(shape, generator=generator) for shape in shapes)
    return head, relation, states


def _scores(decoder: Decoder, head: Tensor, relation: Tensor, states: Tensor) -> Tensor:
    scores = decoder.query(head, decoder.relation(relation)) @ states.T
    return scores if decoder.entity_bias is None else scores + decoder.entity_bias


def _normed(x: Tensor, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
    """Channels normalised by the running mean and variance of a batch norm."""
    vectors = norm.running_mean, norm.running_var, norm.weight, norm.bias
    mean, var, weight, bias = (values.view(-1, *[1] * (x.dim() - 2)) for values in vectors if values is not None)
    return (x - mean) / (var + norm.eps).sqrt() * weight + bias


def _formula(decoder: Decoder, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    """The score of one triple by the equation of the paper."""
    if isinstance(decoder, TuckER):
        return torch.einsum("kij,k,i,j->", decoder.core, relation, head, tail)
    relation = relation if decoder.project is None else decoder.project.weight @ relation
    if isinstance(decoder, ConvE):
        image = _normed(torch.stack([head.view(3, 4), relation.view(3, 4)]).view(1, 1, 6, 4), decoder.image_norm)
        maps = F.relu(_normed(F.conv2d(image, decoder.filters.weight, decoder.filters.bias), decoder.map_norm))
        hidden = decoder.out.weight @ maps.flatten() + decoder.out.bias
        return F.relu(_normed(hidden[None], decoder.out_norm))[0] @ tail
    if isinstance(decoder, ComplEx):
        h, r, t = (torch.complex(*part.chunk(2)) for part in (head, relation, tail))
        return (h * r * t.conj()).sum().real
    return (head * relation * tail).sum()


@pytest.mark.slow
def test_a_decoder_of_the_users_trains_and_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_DECODERS", dict(registry._DECODERS))

    @decoder("shifted")
    class Shifted(Decoder):
        """DistMult of a shifted head."""

        def __init__(self, channels: int, *sizes: int, **options: Any) -> None:
            super().__init__(channels, *sizes, **options)
            self.shift = nn.Parameter(torch.zeros(channels))

        def join(self, head: Tensor, relation: Tensor) -> Tensor:
            return (head + self.shift) * relation

    settings = {"model.decoder": "shifted", "train.epochs": 2}
    result = magna.train("families", settings=settings, run_dir=tmp_path, device="cpu")
    assert magna.evaluate(tmp_path, device="cpu")["metrics"] == result["runs"][0]["test"]
    model = magna.LinkPredictor.from_pretrained(tmp_path / "model")
    assert isinstance(model.deep.decoder, Shifted) and model.deep.decoder.shift.any()
    with pytest.raises(ValueError, match=r"decoder is 'shifte'; did you mean 'shifted'\? allowed: 'distmult'"):
        magna.load_recipe("families").with_values(["model.decoder=shifte"])
    with pytest.raises(ValueError, match="name is 'shifted'; allowed: a name that is free"):
        decoder("shifted")(TuckER)


@pytest.mark.parametrize("relation_channels", [RELATION_CHANNELS, CHANNELS])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_formula(name: str, relation_channels: int) -> None:
    decoder = _decoder(name, relation_channels)
    head, relation, states = _inputs(relation_channels)
    for _ in range(3):
        _scores(decoder, head, relation, states)  # updates the running statistics of batch norms
    decoder.eval()
    scores = _scores(decoder, head, relation, states)
    expected = [_formula(decoder, h, r, t) for h, r in zip(head, relation, strict=True) for t in states]
    torch.testing.assert_close(scores, torch.stack(expected).view(BATCH, ENTITIES))
    if decoder.GUESSES:
        scores = decoder.relation_scores(head, states[:BATCH], decoder.relation(relation))
        expected = [_formula(decoder, h, r, t) for h, t in zip(head, states[:BATCH], strict=True) for r in relation]
        torch.testing.assert_close(scores, torch.stack(expected).view(BATCH, BATCH))


@pytest.mark.parametrize("block", [1, 2 * BATCH * CHANNELS, 2**24])
def test_tucker_guesses_relations_in_blocks_with_the_gradients_of_the_whole(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magna.nn.decoder._BLOCK", block)
    decoder = _decoder("tucker").double()
    assert isinstance(decoder, TuckER)
    head, _, states = _inputs()
    inputs = [head.double().requires_grad_(), states[:BATCH].double().requires_grad_(), decoder.core]
    products, expected = decoder.pair(*inputs[:2]), torch.einsum("bi,bj,kij->bk", *inputs)
    torch.testing.assert_close(products, expected)
    upstream = torch.randn_like(products)
    for one, other in zip(*(torch.autograd.grad(out, inputs, upstream) for out in (products, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_tucker_guesses_relations_without_a_matrix_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, width = 64, 32
    monkeypatch.setattr("magna.nn.decoder._BLOCK", batch * width)
    decoder = TuckER(width, width, ENTITIES)
    decoder.reset_parameters()
    head, tail = (torch.randn(batch, width, requires_grad=True) for _ in range(2))
    peak = peak_bytes(lambda: decoder.pair(head, tail).sum().backward(), torch.device("cpu"))
    assert peak - 2 * decoder.core.nbytes < batch * width * width * 4 // 2  # its gradient, whole and in parts


@pytest.mark.parametrize(("relation_channels", "std"), [(30, 0.1), (30, 2.0), (200, 0.1)])
@pytest.mark.parametrize("name", NAMES)
def test_scores_start_with_a_deviation_of_one(name: str, relation_channels: int, std: float) -> None:
    decoder = find_decoder(name)(64, relation_channels, 500, relation_std=std)
    decoder.reset_parameters()
    inputs = torch.randn(200, 64), std * torch.randn(200, relation_channels), torch.randn(500, 64)
    for training in (False, True):
        assert 0.7 < _scores(decoder.train(training), *inputs).std().item() < 1.3


@pytest.mark.parametrize("name", NAMES)
def test_dropout_falls_on_head_and_relation_in_training(name: str) -> None:
    decoder = _decoder(name, dropout=0.5)
    head, relation, _ = _inputs()
    relation = decoder.relation(relation)
    assert not torch.equal(decoder.query(head, relation), decoder.query(head, relation))
    decoder.eval()
    assert torch.equal(decoder.query(head, relation), decoder.query(head, relation))


def test_the_magnitude_of_complex_numbers_is_their_modulus() -> None:
    factor = torch.tensor([[3.0, 0.0, 4.0, 2.0]])
    torch.testing.assert_close(find_decoder("complex").magnitude(factor), torch.tensor([[5.0, 2.0]]))
    torch.testing.assert_close(find_decoder("distmult").magnitude(-factor), factor)


@pytest.mark.parametrize(("name", "channels", "text"), [("complex", 5, "an even number"), ("conve", 7, "images of at")])
def test_widths_that_do_not_fit_are_refused(name: str, channels: int, text: str) -> None:
    with pytest.raises(ValueError, match=f"channels is {channels}.*{text}"):
        find_decoder(name)(channels, 4, 9)


def test_conve_drops_whole_maps_of_its_filters() -> None:
    decoder = _decoder("conve", dropout=0.5)
    assert isinstance(decoder, ConvE)
    zeros = list[Tensor]()
    decoder.map_dropout.register_forward_hook(lambda _, inputs, out: zeros.append((out == 0).flatten(1)))
    decoder.map_norm.bias.data.fill_(100.0)  # no entry is 0 by ReLU
    decoder.query(*_inputs(CHANNELS)[:2])
    assert torch.equal(zeros[0].any(1), zeros[0].all(1)) and 0 < zeros[0].all(1).sum() < len(zeros[0])
