"""How every text of the distillation is read out of the members of its packages: one function per kind of source.

A reader takes {member name: bytes}, in the order of distillation_texts.json, and yields raw passages. Standard library only; nothing
here touches the disk or the network.
"""

import ast
import bz2
import gzip
import html
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

from distillation_passages import decoded, grouped, html_paragraphs, paragraphs_of, split_long, squeeze

Members = dict[str, bytes]
Reader = Callable[[Members], Iterable[str]]

DICTD_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
ARTICLE_TAIL = re.compile(r"==\s*(See also|References|Further reading|External links|Bibliography|Notes)\s*==")
END_OF_TOPIC_FIELD = "<(?:narr|/top|/desc|/question|/narr|con|/description|/query|smry|head|subtopic|fac|def|dom|title)\\b|$"
TOPIC_FIELD = re.compile(
    rf"<(desc|narr|description|narrative|question|query)\b[^>]*>(.*?)(?={END_OF_TOPIC_FIELD})", re.DOTALL
)
R_STRING = re.compile(rb"\x00[\x00\x04\x08\x0a]\x00\x09")


def pages(enough: int, tags: str = "p|dd") -> Reader:
    """A reader of pages of HTML or Mallard (GNOME help), for passages of about `enough` to 700 characters."""

    def read(members: Members) -> Iterator[str]:
        for data in members.values():
            yield from grouped(html_paragraphs(decoded(data), tags), enough, 700)

    return read


def only(members: Members) -> bytes:
    """The one member of a source that is a single file."""
    [data] = members.values()
    return data


def wordnet(members: Members) -> Iterator[tuple[str, str]]:
    """("word, word", gloss) of every synset of WordNet's data files (format: wndb(5WN))."""
    for data in members.values():
        for line in data.decode("latin1").split("\n"):
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            fields = head.split()
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            yield ", ".join(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words), gloss.strip()


def wordnet_glosses(members: Members) -> Iterator[str]:
    for words, gloss in wordnet(members):
        yield f"{words}: " + gloss.replace('; "', ' - "')


def wordnet_examples(members: Members) -> Iterator[str]:
    for _, gloss in wordnet(members):
        for example in re.findall(r'"([^"]{20,})"', gloss):
            yield example[0].upper() + example[1:]


def dictd(members: Members) -> Iterator[str]:
    """The entries of a dictd database (.index: word, offset and size in base 64; .dict.dz: gzip), each once."""
    text = gzip.decompress(next(data for name, data in members.items() if name.endswith(".dict.dz")))
    index = decoded(next(data for name, data in members.items() if name.endswith(".index")))
    seen = set()
    for line in index.split("\n"):
        fields = line.split("\t")
        if len(fields) < 3 or fields[0].startswith("00"):
            continue
        offset, size = (dictd_number(field) for field in fields[1:3])
        if (offset, size) not in seen:
            seen.add((offset, size))
            yield text[offset : offset + size].decode("utf-8", "replace")


def dictd_number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 64 + DICTD_DIGITS.index(digit)
    return number


def webster(members: Members) -> Iterator[str]:
    """"word: definition" of the GCIDE, without marks of source, numbering and usage labels."""
    source = r"\[(1913 Webster|PJC|WordNet[^\]]*|Webster[^\]]*|[A-Z]{2,}[^\]]*)\]"
    label = r"\s*\[(Obs|R|Colloq|Archaic|Poetic|Prov\. Eng|Scot)\.?[^\]]*\]"
    for entry in dictd(members):
        head, _, body = re.sub(source, "", entry).partition("\n")
        word = re.split(r"[\\,(\[]", head)[0].strip()
        if not word:
            continue
        for text in paragraphs_of(body):
            text = squeeze(text.replace("{", "").replace("}", ""))
            text = re.sub(r"^(\d+\.|\([a-z]\))\s*", "", text)
            text = re.sub(r"^(\([A-Z][\w. &]*\))\s*", "", text)
            text = re.sub(r"\s*--\s*[A-Z][\w .]*$", "", text) if len(text) < 60 else text
            text = re.sub(label, "", text)
            if len(text) >= 40 and not (len(text) < 60 and text.startswith(("Syn:", "[", "See ", "Note: "))):
                yield from split_long(f"{word}: {text}")


def dictionary(members: Members) -> Iterator[str]:
    """"head: passage" of a dictd dictionary with longer articles, without cross reference marks, dates and addresses."""
    for entry in dictd(members):
        head, _, body = entry.partition("\n")
        head = squeeze(head)
        for pattern in (
            r"[{}]",
            r"(?m)^\s*<.*?>\s*$",
            r"\([12]\d{3}-\d\d-\d\d\)",
            r"\(?https?://\S+\)?|ftp://\S+",
        ):
            body = re.sub(pattern, "", body)
        paragraphs = (re.sub(r"^(<[^>]*>\s*)+", "", text) for text in paragraphs_of(body))
        for passage in grouped((text for text in paragraphs if len(text) > 40), 150):
            yield f"{head}: {passage}" if len(head) < 60 else passage


def speeches(members: Members) -> Iterator[str]:
    for data in members.values():
        text = decoded(data)
        paragraphs = paragraphs_of(text) if "\n\n" in text else map(squeeze, text.split("\n"))
        pieces = (piece for paragraph in paragraphs if len(paragraph) > 30 for piece in split_long(paragraph, 600))
        yield from grouped(pieces, 250, 750)


def novel(members: Members) -> Iterator[str]:
    return grouped(paragraphs_of(decoded(only(members))), 150)


def summaries(members: Members) -> Iterator[str]:
    for article in json.loads(only(members)).values():
        title = article["title"]
        for piece in split_long(squeeze(re.sub(r"\{\\displaystyle[^}]*\}", "", article["extract"])), 900):
            yield piece if piece.startswith(title[:4]) else f"{title}: {piece}"


def articles(members: Members) -> Iterator[str]:
    """"title: paragraph" of a bzip2 dump of MediaWiki pages, without markup, lists, tables and the sections of references."""
    dump = decoded(bz2.decompress(only(members)))
    for match in re.finditer(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", dump, re.DOTALL):
        title, text = html.unescape(match[1]), html.unescape(match[2])
        if ":" in title or text.lower().startswith("#redirect"):
            continue
        for paragraph in ARTICLE_TAIL.split(without_markup(text))[0].split("\n"):
            paragraph = html.unescape(paragraph).replace("()", "").replace("( ", "(").strip()
            if len(paragraph) >= 80 and paragraph[0] not in "=*#|:;{!" and paragraph[-1] in '.?!")':
                for piece in split_long(squeeze(paragraph), 900):
                    yield f"{title}: {piece}"


def without_markup(text: str) -> str:
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    removed = r"<ref[^>/]*/>|<ref.*?</ref>|<(math|gallery|table|timeline|code|source|pre|sup|sub)\b.*?</\1>"
    text = re.sub(removed, "", text, flags=re.DOTALL | re.IGNORECASE)
    before = ""
    while before != text:
        before, text = text, re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", "", text, flags=re.DOTALL)
    text = re.sub(
        r"\[\[(?:File|Image|Category|[a-z-]{2,12}):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]", "", text
    )
    text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?://\S+\s*([^\]]*)\]", r"\1", text)
    return re.sub(r"<[^>]+>", "", re.sub(r"'{2,}", "", text))


def dpr_questions(members: Members) -> Iterator[str]:
    """The questions of the topic files of dense passage retrieval: lines of JSON, or of a question, a tab and its answers."""
    for data in members.values():
        for line in filter(None, map(str.strip, decoded(data).split("\n"))):
            yield json.loads(line)["question"] if line.startswith("{") else line.split("\t")[0]


def columns(separator: str, column: int) -> Reader:
    """A reader of one column of lines with separators; the last column holds the rest of the line."""

    def read(members: Members) -> Iterator[str]:
        for data in members.values():
            for line in decoded(data).split("\n"):
                if line.count(separator) >= column:
                    yield line.split(separator, column)[column]

    return read


def labelled_questions(members: Members) -> Iterator[str]:
    """"LABEL question" lines whose words and punctuation are set apart by blanks."""
    for question in columns(" ", 1)(members):
        question = re.sub(r"\s+([?.,!;:'])", r"\1", question)
        yield question.replace("`` ", '"').replace(" ''", '"')


def topics(members: Members) -> Iterator[str]:
    """Descriptions and narratives of TREC topics."""
    for data in members.values():
        for match in TOPIC_FIELD.finditer(decoded(data)):
            text = squeeze(re.sub(r"<[^>]+>", " ", match[2]))
            yield from split_long(re.sub(r"^(Description|Narrative)\s*:", "", text).strip())


def trivia(members: Members) -> Iterator[str]:
    """Questions of at least four words that are keys of a YAML mapping (.yaml), and the first turns of conversations (.yml) that ask."""
    for name, data in members.items():
        text = decoded(data)
        if name.endswith(".yaml"):
            keys = re.findall(r"^(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^\s#\"'-].*?):(?:\s|$)", text, re.MULTILINE)
            yield from (key for key in map(yaml_scalar, keys) if not key.isupper() and len(key.split()) >= 4)
        else:
            first_turns = re.findall(r"^ *- +- (.*(?:\n(?! *-)(?= ).*)*)", text, re.MULTILINE)
            yield from (turn for turn in map(yaml_scalar, first_turns) if turn.endswith("?"))


def yaml_scalar(source: str) -> str:
    """A plain or quoted YAML scalar; lines are folded."""
    source = squeeze(source)
    if source.startswith('"'):
        return json.loads(source)
    return source[1:-1].replace("''", "'") if source.startswith("'") else source


def recipes(members: Members) -> Iterator[str]:
    for recipe in json.loads(only(members)).values():
        if recipe["steps"]:
            yield from split_long(f"{recipe['title']}: {' '.join(recipe['steps'])}", 900)


def ontology(members: Members) -> Iterator[str]:
    """"name: definition" and "name: comment" of the terms of an OBO file."""
    for term in decoded(only(members)).split("[Term]")[1:]:
        name = re.search(r"^name: (.*)", term, re.MULTILINE)
        definition = re.search(r'^def: "(.*?)(?<!\\)"', term, re.MULTILINE)
        comment = re.search(r"^comment: (.*)", term, re.MULTILINE)
        if name and definition:
            yield f"{name[1]}: " + definition[1].replace("\\n", " ").replace("\\", "")
        if name and comment and len(comment[1]) > 60:
            yield f"{name[1]}: " + comment[1].replace("\\", "")


def bible(members: Members) -> Iterator[str]:
    """The verses in the longest string of a Python module."""
    nodes = ast.walk(ast.parse(only(members)))
    text = max((n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)), key=len)
    verses = (squeeze(re.sub(r"^\s*\d+\.?\s*", "", line)) for line in text.split("\n"))
    return grouped((verse for verse in verses if len(verse) > 25), 150, 600)


def austen(members: Members) -> Iterator[str]:
    """The paragraphs in an R lazy-load database: records of four bytes of length and a zlib stream, in which every line is a CHARSXP
    (R internals, serialization format)."""
    paragraphs: list[str] = []
    data = only(members)
    while len(data) > 8:
        inflate = zlib.decompressobj()
        record, data = inflate.decompress(data[4:]), inflate.unused_data
        strings: list[str] = []
        at = 0
        while match := R_STRING.search(record, at):
            start = match.end() + 4
            size = int.from_bytes(record[match.end() : start], "big", signed=True)
            at = match.end()
            if 0 <= size < 400:
                at = start + size
                strings.append(record[start:at].decode("utf-8", "replace"))
        paragraphs += "\n".join(strings).split("\n\n")
    cleaned = (squeeze(text).replace("_", "") for text in paragraphs)
    return grouped((text for text in cleaned if len(text) > 40 and not text.isupper()), 150, 700)


def freeciv(members: Members) -> Iterator[str]:
    """"nation: legend" of the nations, and the help texts of a game."""
    for name, data in members.items():
        text = decoded(data)
        if "/nation/" in name:
            nation = re.search(r'^name\s*=\s*_\("(?:\?\w+:)?(.*?)"\)', text, re.MULTILINE)
            legend = re.search(r'^legend\s*=\s*_\("(.*?)"\)', text, re.MULTILINE | re.DOTALL)
            if nation and legend:
                yield f"{nation[1]}: " + squeeze(legend[1].replace("\\\n", "").replace("\\n", " "))
            continue
        for match in re.finditer(r'_\("(.*?)"\)', text, re.DOTALL):
            help_text = squeeze(match[1].replace("\\\n", "").replace("\\n", " ").replace("\\", ""))
            if len(help_text) > 60 and not help_text.startswith("?"):
                yield from split_long(help_text, 900)


def fortunes(members: Members) -> Iterator[str]:
    for data in members.values():
        yield from (text for text in re.split(r"^%\s*$", decoded(data), flags=re.MULTILINE) if len(text) < 1200)


READERS: dict[str, Reader] = {
    "anarchist_faq.txt": pages(150),
    "bible_web.txt": bible,
    "claims_fever.txt": columns("\t", 1),
    "devils_dictionary.txt": dictionary,
    "encyc_freeciv_nations_help.txt": freeciv,
    "encyc_stellarium_skycultures.txt": pages(150, "p|li"),
    "foldoc.txt": dictionary,
    "fortunes.txt": fortunes,
    "gcide_webster1913.txt": webster,
    "hpo_medical_definitions.txt": ontology,
    "jargon.txt": dictionary,
    "moby_dick.txt": novel,
    "novels_jane_austen.txt": austen,
    "q_red_trivia_chatterbot.txt": trivia,
    "q_squad.txt": dpr_questions,
    "q_trec_million_query.txt": columns(":", 2),
    "q_trec_question_types.txt": labelled_questions,
    "q_trec_topics_desc_narr.txt": topics,
    "q_triviaqa.txt": dpr_questions,
    "q_webquestions_curatedtrec.txt": dpr_questions,
    "recipes_wikibooks.txt": recipes,
    "sotu.txt": speeches,
    "tech_gimp_help.txt": pages(150),
    "tech_gnome_help.txt": pages(120),
    "tech_libreoffice_help.txt": pages(150),
    "wiki_enwiki_gensim.txt": articles,
    "wiki_vital_summaries.txt": summaries,
    "wordnet_examples.txt": wordnet_examples,
    "wordnet_glosses.txt": wordnet_glosses,
}
