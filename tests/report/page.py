"""A report as its reader finds it: parsed, and checked to need nothing outside itself."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

from gossamer.report import write_report

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Ids, links, headings, and for each card its text and the drawings in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.stack: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.cards: dict[str, dict] = {}
        self.card: str | None = None
        self.text = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags[tag] += 1
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "srcset", "data"):
                self.links.append(value)
            assert not name.startswith("on")
        if tag == "article":
            self.card = attributes["id"]
            self.cards[self.card] = {"text": "", "figures": 0, "class": attributes["class"]}
        if self.card and attributes.get("class") == "plot":
            self.cards[self.card]["figures"] += 1
            assert attributes["aria-label"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag
        if tag == "article":
            self.card = None

    def handle_data(self, data):
        if "style" in self.stack:
            return
        self.text += data
        if self.stack and self.stack[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        if self.card:
            self.cards[self.card]["text"] += data


def page_of(paths, out) -> Page:
    return Page(write_report(paths, out).read_text(encoding="utf-8"))


def check_self_contained(page: Page) -> None:
    assert "http" not in page.source
    assert "@import" not in page.source
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    outside = [link for link in page.links if not link.startswith(("#", "data:image/png;base64,"))]
    assert outside == []
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    targets = {link[1:] for link in page.links if link.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert targets
    assert targets <= set(page.ids)
