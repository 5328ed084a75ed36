"""Check the built site: `python docs/check_links.py docs/_build/html`, which `make docs` does after building.

Each link to a page, an anchor or a file of the site must lead somewhere. Links to other sites are written to
`links.txt` beside the pages, one per line, and are not opened: this needs no network. `--open` opens them.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.append(value)


def check(folder: Path) -> tuple[list[str], set[str]]:
    """Return what is wrong with the links inside the site, and the links to other sites."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    wrong, outside = [], set()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme in ("http", "https"):
                    outside.add(link)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                wrong.append(f"{path.relative_to(folder.resolve())}: {link} does not exist")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                wrong.append(f"{path.relative_to(folder.resolve())}: {link} has no such anchor")
    return wrong, outside


def opens(link: str) -> bool:
    """Return whether a link to another site opens."""
    request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})
    try:
        with urllib.request.urlopen(request, timeout=20):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Check a folder of pages; exit with 1 if a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--open", action="store_true", help="open the links to other sites too")
    args = parser.parse_args()
    wrong, outside = check(args.folder)
    (args.folder / "links.txt").write_text("".join(f"{link}\n" for link in sorted(outside)))
    if args.open:
        wrong += [f"{link} does not open" for link in sorted(outside) if not opens(link)]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(outside)} links to other sites: {args.folder / 'links.txt'}" + ("" if args.open else " (not opened)"))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
