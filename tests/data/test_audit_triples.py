"""The audit of a knowledge graph, on numbers that can be counted by hand and on those that are known."""

from __future__ import annotations

import json

import pytest
from tests.support.data import knowledge_graph as graph
from tests.support.data import needs
from tests.support.data import printed_audit as printed

from magna.data import load_knowledge_graph
from magna.data.audit_triples import audit_triples, reverse_rule
from magna.data.triples import Row

CAMPUSES = "/education/educational_institution/campuses"
PARENTS = [(f"p{number}", "parent_of", f"c{number}") for number in range(10)]
CHILDREN = [(tail, "child_of", head) for head, _, tail in PARENTS]


def test_numbers_that_can_be_counted_by_hand() -> None:
    parents = [("a", "parent", "b"), ("a", "parent", "c"), ("d", "parent", "e"), ("d", "parent", "f")]
    train = [*parents, *((tail, "child", head) for head, _, tail in parents)]
    train += [("a", "next", "d"), ("d", "next", "a"), ("a", "self", "a"), ("a", "next", "d")]
    valid, test = [("a", "parent", "b"), ("g", "next", "a")], [("h", "new", "a"), ("g", "next", "a")]
    report = audit_triples(graph(train, valid, test))
    assert report["size"] == {"entities": 8, "relations": 5, "triples": 15, "queries": 18}
    assert report["splits"] == {"train": 11, "valid": 2, "test": 2}
    assert report["duplicates"] == {"train": 1, "valid": 0, "test": 0}
    assert report["leakage"]["shared_triples"] == {"train_valid": 1, "train_test": 0, "valid_test": 1}
    assert report["leakage"]["inverse_in_train"]["valid"] == {"triples": 1, "share": 0.5}
    assert report["symmetric"] == [{"relation": "self", "share": 1.0}]  # of "next" two of three
    assert report["inverse_pairs"] == [{"relation": "child", "inverse": "parent", "share": 1.0}]
    assert report["unseen"]["valid"] == {"entities": 1, "triples": 1, "relations": 0, "triples_of_new_relations": 0}
    assert report["unseen"]["test"] == {"entities": 2, "triples": 2, "relations": 1, "triples_of_new_relations": 1}
    assert report["degree"] == {"mean": 22 / 8, "median": 2, "largest": 8, "isolated": 2, "self_loops": 1}
    assert report["hubs"][:2] == [{"entity": "a", "triples": 8}, {"entity": "d", "triples": 6}]
    rows = {row.pop("relation"): row for row in report["relations"]}
    kinds = {"child": "N-1", "parent": "1-N", "next": "1-1", "self": "1-1", "new": None}
    assert {name: row["kind"] for name, row in rows.items()} == kinds
    counts = {"train": 4, "valid": 1, "test": 0, "kind": "1-N", "tails_per_head": 2.0, "heads_per_tail": 1.0}
    assert rows["parent"] == counts
    for words in (
        "both train and valid: 1",
        "each other's inverse: 1, child and parent among them",
        "valid triples with an entity that training never sees: 1",
        "test triples of a relation that training never sees: 1",
        "single training triple: 1",
    ):
        assert any(words in line for line in report["warnings"]), words
    assert json.loads(json.dumps(report)) == report


def test_the_reverse_rule_by_hand() -> None:
    # Six entities. Training says b, c → a and d → c; asked are a → b, and e → f, which nobody turned round.
    train = [("b", "r", "a"), ("c", "r", "a"), ("d", "r", "c")]
    score = reverse_rule(graph(train, test=[("a", "r", "b"), ("e", "r", "f")]), "test")
    # a → ?: b and c are named, so b has place 1.5. ? → b: a is named alone, place 1.
    # e → ? and ? → f: nobody is named, six entities tie, place 3.5.
    assert score["answered"] == 0.5
    assert score["mrr"] == pytest.approx((1 / 1.5 + 1 + 2 / 3.5) / 4)
    # A wrong name pushes back; a true one, known from elsewhere, is left out.
    train = [("b", "r", "a"), ("c", "r", "a"), ("a", "r", "c")]
    score = reverse_rule(graph(train, test=[("a", "r", "d")]), "test")
    # a → d: b is wrongly named, c is true, a itself ties with d: place 2.5. ? → d: nobody is named, four tie: 2.5.
    assert score == {"mrr": pytest.approx(1 / 2.5), "answered": 0}


def test_inverse_relations_are_detected_whatever_is_held_out() -> None:
    # Training alone has one of ten pairs whole. Of valid both are in train the other way, of test all but the pair of
    # c9 and p9, which are both there, and p0 and p1, who are no parent and child.
    train = [*PARENTS[:7], CHILDREN[0], *CHILDREN[7:9]]
    test = [*CHILDREN[3:7], PARENTS[9], CHILDREN[9], PARENTS[7], PARENTS[8], ("p0", "next_to", "p1")]
    report = audit_triples(graph(train, CHILDREN[1:3], test))
    assert report["inverse_pairs"] == [{"relation": "child_of", "inverse": "parent_of", "share": 1.0}]
    assert report["leakage"]["inverse_in_train"] == {
        "valid": {"triples": 2, "share": 1.0},
        "test": {"triples": 6, "share": pytest.approx(6 / 9)},
    }
    words = "test triples that are in train turned round, under an inverse relation: 6 (66.7 %)"
    assert words in report["warnings"]
    assert "2 valid triples (100.0 %), 6 test triples (66.7 %) are in train under" in " ".join(printed(report).split())


def test_a_smaller_relation_may_leak_from_a_larger_one() -> None:
    report = audit_triples(graph(PARENTS, test=[*CHILDREN[:4], ("p0", "next_to", "p1")]))
    assert report["inverse_pairs"] == []  # most parents are nobody's known child
    assert report["leakage"]["inverse_in_train"] == {"test": {"triples": 4, "share": 0.8}}
    assert any("turned round, under an inverse relation: 4 (80.0 %)" in line for line in report["warnings"])
    report = audit_triples(graph(PARENTS, test=CHILDREN[:9]))
    assert report["inverse_pairs"] == [{"relation": "child_of", "inverse": "parent_of", "share": 0.9}]
    # The other way a few of many: knowing who is a child tells little of who is a parent.
    report = audit_triples(graph(CHILDREN[:4], test=PARENTS))
    assert report["leakage"]["inverse_in_train"] == {"test": {"triples": 0, "share": 0.0}}


def test_a_triple_in_several_splits_counts_once_for_its_relation() -> None:
    train: list[Row] = [("a", "one", "b"), ("c", "one", "d"), ("b", "other", "a")]
    report = audit_triples(graph(train, test=[("a", "one", "b"), ("b", "other", "a")]))
    assert report["inverse_pairs"] == []  # one of two
    row: list[Row] = [("a", "r", "b")]
    text = " ".join(printed(audit_triples(graph([*row, *row], valid=row, test=row))).split())
    assert "1 in train and valid, 1 in train and test, 1 in valid and test" in text
    assert "note: train repeats 1 triples" in text


def test_ties_in_a_small_graph_are_no_leakage() -> None:
    report = audit_triples(graph([("a", "r", "b")], test=[("a", "r", "c")]))
    rule = report["leakage"]["reverse_rule"]["test"]
    assert rule["mrr"] > 0.1 and rule["answered"] == 0
    assert not any("reverse rule" in warning for warning in report["warnings"])


def test_a_symmetric_relation_is_left_to_the_reverse_rule() -> None:
    report = audit_triples(graph([("a", "r", "b"), ("b", "s", "c")], test=[("b", "r", "a")]))
    assert report["symmetric"] == [{"relation": "r", "share": 1.0}]
    assert report["leakage"]["inverse_in_train"] == {"test": {"triples": 0, "share": 0.0}}
    assert any("reverse rule" in warning for warning in report["warnings"])


def test_empty_splits_are_reported() -> None:
    report = audit_triples(graph([("a", "r", "b")]))
    assert report["leakage"]["reverse_rule"] == report["leakage"]["inverse_in_train"] == {}
    assert "valid has no triple: nothing can be chosen on it" in report["warnings"]
    assert "test has no triple: nothing can be tested on it" in report["warnings"]
    assert "nothing is held out" in printed(report)


@pytest.mark.parametrize(
    ("name", "queries", "rule", "unseen", "largest", "pairs"),
    [
        ("wn18rr", 103_509, 0.346, (210, 210), 482, []),
        pytest.param("fb15k-237", 149_689, 0.0, (9, 28), 7_614, [CAMPUSES], marks=pytest.mark.slow),
    ],
)
def test_public(name: str, queries: int, rule: float, unseen: tuple[int, int], largest: int, pairs: list[str]) -> None:
    needs(name)
    report = audit_triples(load_knowledge_graph(name))
    assert report["size"]["queries"] == queries
    assert round(report["leakage"]["reverse_rule"]["test"]["mrr"], 3) == rule
    assert (report["unseen"]["valid"]["triples"], report["unseen"]["test"]["triples"]) == unseen
    assert report["degree"]["largest"] == largest
    assert set(report["leakage"]["shared_triples"].values()) == set(report["duplicates"].values()) == {0}
    assert [pair["relation"] for pair in report["inverse_pairs"]] == pairs
    assert [part["triples"] for part in report["leakage"]["inverse_in_train"].values()] == [0, 0]
    # Names as long as Freebase's still leave room for their numbers.
    text = printed(report, width=80)
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(("  note:", "  look at:")))
    assert f"{report['relations'][0]['train']:,}" in text


def test_families_give_nothing_away() -> None:
    report = audit_triples(load_knowledge_graph("families"))
    assert report["warnings"] == [] and "nothing suspicious was found" in printed(report)
    assert report["leakage"]["reverse_rule"]["test"]["answered"] == 0
    assert report["leakage"]["inverse_in_train"]["test"] == {"triples": 0, "share": 0.0}
    assert [entry["relation"] for entry in report["symmetric"]] == ["cousin_of", "married_to"]
