"""Triples as CSV, and one file of them without splits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.data import names_of, write_texts

from magna.config.tables import LinkDataOptions
from magna.data import load_knowledge_graph, load_triples
from magna.data.triples import SPLITS

ROWS = [(f"e{i % 40}", f"r{i % 3}", f"e{(7 * i + 1) % 40}") for i in range(200)] + [
    ("rare", "r0", "e1"),
    ("e2", "odd", "e5"),
]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("header", ["", "head,relation,tail\n", "Subject,Predicate,Object\n", "h,r,t\n"])
def test_csv_says_the_same_as_tsv(tmp_path: Path, separator: str, header: str) -> None:
    texts = {"train": 'a,knows,"b, c"\n', "valid": "a , knows,d\n", "test": "d,knows,a\n"}
    if separator != ",":
        texts = {name: text.replace("b, c", "b|c").replace(",", separator) for name, text in texts.items()}
        texts = {name: text.replace("b|c", "b, c") for name, text in texts.items()}
    texts = {name: header.replace(",", separator) + text for name, text in texts.items()}
    data = load_triples(write_texts(tmp_path, ".csv", **texts))
    assert [names_of(data, split) for split in SPLITS] == [
        [("a", "knows", "b, c")],
        [("a", "knows", "d")],
        [("d", "knows", "a")],
    ]
    assert len(data.notes) == (3 if header else 0)


@pytest.mark.parametrize(("suffix", "separator"), [(".tsv", "\t"), (".csv", ",")])
def test_one_file_is_split_with_every_name_in_training(tmp_path: Path, suffix: str, separator: str) -> None:
    text = "".join(separator.join(row) + "\n" for row in [*ROWS, ROWS[0]])
    folder = write_texts(tmp_path, suffix, triples=text)
    parts = [load_knowledge_graph(LinkDataOptions(name=str(folder), split_seed=seed)).triples for seed in (0, 0, 1)]
    data = parts[0]
    train, valid, test = (names_of(data, split) for split in SPLITS)
    distinct = len(set(ROWS))
    assert len(valid) == len(test) == round(0.05 * distinct) and len(train) == distinct - 2 * len(valid)
    assert {*train, *valid, *test} == set(ROWS)
    for head, relation, tail in valid + test:
        assert any(head in (h, t) for h, _, t in train) and any(tail in (h, t) for h, _, t in train)
        assert any(relation == r for _, r, _ in train)
    assert f"triples{suffix} was split at random, seed 0: " in data.notes[1] and "repeats" in data.notes[0]
    assert data.fingerprints() == parts[1].fingerprints() != parts[2].fingerprints()
    larger = load_triples(folder, valid_share=0.4)
    assert len(larger.valid) == round(0.4 * distinct)
    held_out = {*names_of(larger, "valid"), *names_of(larger, "test")}
    assert not {*ROWS[-2:]} & held_out and len({row[1] for row in names_of(larger, "train")}) == 4


@pytest.mark.parametrize(
    ("texts", "settings", "words"),
    [
        ({"triples": "a,r,b\nb,r,c\n"}, {}, r"triples\.csv: it has 2 triples, too few to draw validation and test"),
        ({"triples": "a,r\n"}, {}, r"triples\.csv, line 1: it has 2 columns; allowed: head, relation, tail"),
        ({"triples": "a,r,b\n", "train": "a,r,b\n"}, {}, "it has no valid file"),
        (dict.fromkeys(SPLITS, "a,r,b\n"), {"valid_share": 0.1}, "data.valid_share is 0.1; allowed: none, because"),
        (dict.fromkeys(SPLITS, "a,r,b\n"), {"split_seed": 1}, "data.split_seed is 1; allowed: 0, because"),
    ],
)
def test_what_cannot_be_split(tmp_path: Path, texts: dict[str, str], settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_triples(write_texts(tmp_path, ".csv", **texts), **settings)  # type: ignore[arg-type]


def test_a_public_graph_has_a_split() -> None:
    with pytest.raises(ValueError, match="the defaults, because families has a split"):
        load_knowledge_graph(LinkDataOptions(split_seed=1))
