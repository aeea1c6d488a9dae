"""Every file of the public data sets: its SHA-256 and its public home. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublicFile:
    """One file under the data folder.

    Where the folder holds a gzip of the published file, `text_sha256` is the sum of what was published: that is what
    a download leaves, under the same name without `.gz`. `member` is the file's name inside a published archive.
    """

    sha256: str
    url: str
    text_sha256: str | None = None
    member: str | None = None


_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/HEAD/data"
_CONVE = "https://raw.githubusercontent.com/TimDettmers/ConvE/HEAD"
_NETBENCHMARK = (
    "https://raw.githubusercontent.com/DEEP-PolyU/NetBenchmark/06c884a9448433feadb6131e9e81f8b284685992/data/ogbn-arxiv"
)
_GNNGUARD = (
    "https://raw.githubusercontent.com/mims-harvard/GNNGuard/3b04a988dc57983f72572fadd5d7d786147c663c"
    "/Datasets/ogbn_arxiv"
)
_TAPE = "https://raw.githubusercontent.com/XiaoxinHe/TAPE/HEAD/gpt_preds"

_PLANETOID_SHA256 = {
    "cora/ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "cora/ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "cora/ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "cora/ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "cora/ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "cora/ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "cora/ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "cora/ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "citeseer/ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "citeseer/ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "citeseer/ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "citeseer/ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "citeseer/ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "citeseer/ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "citeseer/ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "citeseer/ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "pubmed/ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "pubmed/ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "pubmed/ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "pubmed/ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "pubmed/ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "pubmed/ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "pubmed/ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "pubmed/ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}

_ARCHIVES = {  # sums of the gzip in the data folder and of the text in the published archive
    ("wn18rr/train.txt.gz", "WN18RR.tar.gz", "train.txt"): (
        "71a13a12d4962865c308421ce5d11047b9dd4f40ba3df86228da8175b5f2c763",
        "038612e783c215ee5f3ca9fbfca27b8d0739be1028fe4ee7c174aecf0b83d5df",
    ),
    ("wn18rr/valid.txt.gz", "WN18RR.tar.gz", "valid.txt"): (
        "9b296f2fdf573abbe2a733b369090c227ba0ba491d2572e4bb0c25860906a937",
        "453ce7202afa58094a04d2b1560ee2b02660f1c260b32ce6651c8ccedd1028ab",
    ),
    ("wn18rr/test.txt.gz", "WN18RR.tar.gz", "test.txt"): (
        "c7d73dcbb2dbbe81aa4f9745ed4ee50a15115eb54fabb25b1a3d383122da724b",
        "0383bceaaa1096cf3c03ec021ed0048068e2355dbfc0239b292cefdac821cec5",
    ),
    ("fb15k-237/train.txt.gz", "FB15k-237.tar.gz", "train.txt"): (
        "ed91d9e513e54397b5466d762324f1dfcfdb445a2280751d7a350e4db2e03152",
        "6e4c2782169af21e9743f3b1d200886f5d595bf6bc504ec1351720949c5cdfae",
    ),
    ("fb15k-237/valid.txt.gz", "FB15k-237.tar.gz", "valid.txt"): (
        "e329dd2cabf99e33b468c029a73e5e94e0fa335ae7f50ba736e8aa67201b4f1e",
        "cf6309010852f6a8d47a45df830a426415d1ee6f7a3970a8376ff1fb81db4a5c",
    ),
    ("fb15k-237/test.txt.gz", "FB15k-237.tar.gz", "test.txt"): (
        "d53c041f24482fdd15c0a48f807151a0bef894a2407ef7404c8765661db2dcd2",
        "5711cf41623ceb4eacc50eb6108a3ca6565c7492e3caaf82a3e355cc660d1574",
    ),
}

FILES: dict[str, PublicFile] = {
    **{path: PublicFile(sha, f"{_PLANETOID}/{path.split('/')[1]}") for path, sha in _PLANETOID_SHA256.items()},
    **{
        path: PublicFile(sha, f"{_CONVE}/{archive}", text_sha256=text_sha, member=member)
        for (path, archive, member), (sha, text_sha) in _ARCHIVES.items()
    },
    "ogbn-arxiv/adj_full.npz": PublicFile(
        "920dae5bad3f63b07f5b8883493b298f026778d7358c14b955985bacbbd13771",
        f"{_NETBENCHMARK}/adj_full.npz",
    ),
    "ogbn-arxiv/role.json.gz": PublicFile(
        "b1324be2486ed87efa47065f08f9dec00229a58fd4791cc850654f8e864ac588",
        f"{_NETBENCHMARK}/role.json",
        text_sha256="ef30aec176315e5dd6b5f4bdc2a40741542723c55348b9141a70aeed2c00babb",
    ),
    "ogbn-arxiv/node-label.csv.gz": PublicFile(
        "b06e7cf75d909de66ce49bc4188a6dc525224f85dd6dcb36137de3d9321830d1",
        f"{_GNNGUARD}/raw/node-label.csv.gz",
    ),
    "ogbn-arxiv/labelidx2arxivcategeory.csv.gz": PublicFile(
        "a516ecd32007acca5817296bdd82f5b5db7e21b0917b94311ef4571e29305577",
        f"{_GNNGUARD}/mapping/labelidx2arxivcategeory.csv.gz",
    ),
    "ogbn-arxiv/gpt_preds.csv.gz": PublicFile(
        "92b6ab29a974a67a67f07e2e34b1e9024121de29a7ab8cb41b998d0fd4c4fc2d",
        f"{_TAPE}/ogbn-arxiv.csv",
        text_sha256="bbf78fbae7803e35b7cf8deae816e745fb2ca2f6275a9b09c65c482ca4c2a2d3",
    ),
}
