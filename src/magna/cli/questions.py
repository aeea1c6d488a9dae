"""The question of one call of `magna predict`, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magna.errors import ArgumentError
from magna.use import files, links, load, nodes
from magna.use.triples import read_triples


@dataclass(frozen=True)
class Question:
    """The options of `magna predict` that say what is asked."""

    node: list[str]
    nodes: Path | None
    unlabelled: bool
    head: str | None
    tail: str | None
    relation: str | None
    queries: Path | None
    score: Path | None
    pair: tuple[str, str] | None
    missing: str | None
    top: int | None
    new_triples: Path | None
    embeddings: Path | None
    precision: float | None

    @property
    def of_links(self) -> bool:
        asked = (self.head, self.tail, self.relation, self.queries, self.score, self.pair, self.missing)
        return any(option is not None for option in (*asked, self.new_triples))

    @property
    def of_ends(self) -> bool:
        return any(option is not None for option in (self.head, self.tail, self.relation, self.queries))

    def check(self) -> bool:
        """Refuse options that do not go together; True for a question on links."""
        if self.of_links and (self.node or self.nodes or self.unlabelled):
            raise ValueError("nodes and links are asked for at once; allowed: --node and --nodes, or the others")
        kinds = {
            "--head, --tail and --queries": self.of_ends,
            "--score": self.score is not None,
            "--pair": self.pair is not None,
            "--missing": self.missing is not None,
        }
        if len(asked := [name for name, is_asked in kinds.items() if is_asked]) > 1:
            raise ValueError(f"{' and '.join(asked)} are asked for at once; allowed: one of {', or '.join(kinds)}")
        if self.unlabelled and (self.node or self.nodes):
            raise ValueError("--unlabelled is asked for with ids; allowed: --unlabelled, or --node and --nodes")
        if self.top is not None and not (self.of_ends or self.missing):
            raise ArgumentError("--top", self.top, "with --head, --tail or --queries, or with --missing")
        if self.new_triples is not None and not self.of_ends:
            raise ArgumentError("--new-triples", str(self.new_triples), "with --head, --tail or --queries")
        if self.precision is not None and (self.of_links or self.embeddings is not None):
            raise ArgumentError("--precision", self.precision, "with labels of nodes alone")
        if self.embeddings is not None and self.of_links:
            raise ArgumentError("--embeddings", str(self.embeddings), "alone, or with --node, --nodes or --unlabelled")
        if self.of_ends and self.relation is None and (self.head or self.tail or self.queries is None):
            raise ValueError("--relation is missing; allowed: --head or --tail with --relation, or --queries FILE")
        return self.of_links


def answer(run: Path, question: Question, data: Path | None, data_dir: Path | None, device: str) -> Any:
    """The answers of a run to a question: an object with `to_dict` and `write`."""
    if question.of_ends:
        asked = [] if question.relation is None else [links.Query(question.head, question.relation, question.tail)]
        asked += links.read_queries(question.queries) if question.queries is not None else []
        options: dict[str, Any] = {"new_triples": question.new_triples, "data_dir": data_dir, "device": device}
        return links.predict_links(run, asked, data, top=question.top or 10, **options)
    loaded = load.load(run, data_dir=data_dir, device=device)
    if isinstance(loaded, load.LoadedLinks):
        return _of_triples(loaded, question, data)
    if question.of_links:
        raise ArgumentError("run", str(run), "a run of link prediction", "--node or --nodes, for labels of nodes")
    ids = [*question.node, *(files.read_ids(question.nodes) if question.nodes is not None else [])]
    chosen: Any = ids if question.node or question.nodes else None
    if question.unlabelled:
        chosen = loaded.unlabelled(data)
    if question.embeddings is not None:
        return loaded.embed(chosen, data)
    return loaded.predict(chosen, data, precision=question.precision)


def _of_triples(loaded: load.LoadedLinks, question: Question, data: Path | None) -> Any:
    if question.score is not None:
        return loaded.score(read_triples(question.score), data)
    if question.pair is not None:
        return loaded.relations(*question.pair, data)
    if question.missing is not None:
        return loaded.missing(question.missing, question.top or 100, data)
    if question.embeddings is not None:
        return loaded.embed(question.node or None, data)
    return nodes.predict_nodes(loaded.run, None, data)  # refuses, with an example of a query
