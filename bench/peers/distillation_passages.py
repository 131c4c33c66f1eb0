"""Raw texts made into the lines of a distillation text: paragraphs, passages of whole sentences, cleaning, shuffling and cutting."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z])")


def lines(passages: Iterable[str], *, shortest: int, letters: float) -> list[str]:
    """The passages worth keeping, one a line: `shortest` to 1500 characters, at least the share `letters` of them letters or blanks,
    95 % of them Latin letters or usual punctuation, and none twice (whatever its case)."""
    kept: dict[str, str] = {}
    for line in map(squeeze, passages):
        if not shortest <= len(line) <= 1500:
            continue
        if sum(c.isalpha() or c == " " for c in line) / len(line) < letters:
            continue
        if sum(c < "\u0250" or "\u2000" <= c < "\u2070" for c in line) / len(line) < 0.95:
            continue
        kept.setdefault(line.lower(), line)
    return list(kept.values())


def squeeze(text: str) -> str:
    """The text with every run of white space made one blank."""
    return " ".join(text.split())


def decoded(data: bytes) -> str:
    """Bytes as UTF-8 with newlines of one kind; a broken byte becomes U+FFFD."""
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def split_long(text: str, longest: int = 1400) -> Iterator[str]:
    """The text in pieces of whole sentences of at most `longest` characters; a longer sentence is dropped."""
    if len(text) <= longest:
        yield text
        return
    piece = ""
    for sentence in SENTENCE_END.split(text):
        if piece and len(piece) + len(sentence) + 1 > longest:
            yield piece
            piece = ""
        if len(sentence) <= longest:
            piece = f"{piece} {sentence}".strip()
    if piece:
        yield piece


def grouped(paragraphs: Iterable[str], enough: int, most: int = 900) -> Iterator[str]:
    """Neighbouring paragraphs joined until a passage has `enough` characters, without going over `most` where it can be helped."""
    passage = ""
    for paragraph in paragraphs:
        if passage and (len(passage) >= enough or len(passage) + len(paragraph) > most):
            yield from split_long(passage)
            passage = ""
        passage = f"{passage} {paragraph}".strip()
    if passage:
        yield from split_long(passage)


def paragraphs_of(text: str) -> list[str]:
    """Paragraphs between blank lines, each on one line."""
    return [squeeze(part) for part in re.split(r"\n\s*\n", text)]


def html_paragraphs(page: str, tags: str) -> Iterator[str]:
    """The texts of the elements `tags` ("p|dd") of a page that are longer than 40 characters and end like a sentence."""
    for match in re.finditer(rf"<({tags})\b[^>]*>(.*?)(?=</\1>|<p\b)", page, re.DOTALL | re.IGNORECASE):
        text = squeeze(html.unescape(re.sub(r"<[^>]+>", "", match[2])))
        if len(text) > 40 and text[-1] in ".?!:\"')":
            yield text


def shuffled(lines: list[bytes]) -> list[bytes]:
    """The lines in the order of GNU `shuf --random-source=<(yes 1)`, whose source is the bytes "1\\n1\\n...": exchange line i with
    line i + r, r uniform below the number of lines left (gl/lib/randperm.c, randint.c of coreutils 9)."""
    below = uniform_below(cycle(b"1\n"))
    lines = list(lines)
    for i in range(len(lines)):
        j = i + below(len(lines) - i)
        lines[i], lines[j] = lines[j], lines[i]
    return lines


def uniform_below(source: Iterator[int]) -> Callable[[int], int]:
    """Uniform integers below a bound from bytes; what a draw leaves over (`number`, uniform in 0..`largest`) serves the next one."""
    number = largest = 0

    def below(choices: int) -> int:
        nonlocal number, largest
        while True:
            while largest < choices - 1:
                number, largest = number * 256 + next(source), largest * 256 + 255
            if largest == choices - 1:
                drawn, number, largest = number, 0, 0
                return drawn
            unusable = (largest - choices + 1) % choices
            rest, drawn = divmod(number, choices)
            if number <= largest - unusable:
                number, largest = rest, (largest - choices + 1) // choices
                return drawn
            number, largest = drawn, unusable - 1

    return below


def cut(text: bytes, most: int | None) -> bytes:
    """The first `most` bytes of the text (all where it is None) without their last, possibly broken, line."""
    first = text[:most].removesuffix(b"\n")
    return first[: first.rfind(b"\n") + 1]
