"""What MkDocs does not do by itself for this site: navigation, files outside of docs/, and the options of our fences.

Pages are written for a reader on a code host. The links of docs/index.md and docs/design/index.md are the navigation of
the site, so that no page is listed twice. Links to files outside of docs/ lead to copies of them.
"""

import logging
import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
ENTRY = re.compile(
    r"^(?:(?P<tab>## .*)|(?P<group>\*\*.*\*\*)|\* \[(?P<title>[^]]*)\]\((?P<page>[^)#]*\.md)\).*)$", flags=re.M
)
FENCE = re.compile(r"^```(\w+)((?: [\w=.,/-]+)+)$", flags=re.M)
COPIES = "files"
"""Folder of the site for files outside of docs/."""
PLACES = {"examples": f"{COPIES}/examples.md", "README.md": "index.md"}
"""Where the site has what is not a copied file."""


def on_startup(**_: Any) -> None:
    """Warnings are errors, but a name of torch in an annotation of no public name is not worth one."""
    logging.getLogger("mkdocs.plugins.griffe").addFilter(lambda entry: "AliasResolutionError" not in entry.getMessage())


def on_config(config: Any) -> Any:
    config.nav = [{"Home": "index.md"}, *sections("index.md")]
    return config


def sections(front: str) -> list[Any]:
    """The tabs of a front page, their groups and their pages."""
    tabs: list[Any] = []
    pages: list[Any] = []
    for match in ENTRY.finditer((ROOT / "docs" / front).read_text()):
        if match["tab"]:
            pages = tab = []
            tabs.append({match["tab"][3:]: tab})
        elif match["group"]:
            pages = []
            tab.append({match["group"].strip("*"): pages})
        elif tabs and not match["page"].startswith("../"):
            page = posixpath.normpath(posixpath.join(posixpath.dirname(front), match["page"]))
            within = sections(page) if page == "design/index.md" else []
            pages.append({match["title"]: [page, *within] if within else page})
    return [tab for tab in tabs if next(iter(tab.values()))]


def on_files(files: Any, config: Any) -> Any:
    """Copies of the files outside of docs/ to which pages link. The folder of examples becomes one page."""
    for page in list(files.documentation_pages()):
        for target, _ in LINK.findall((ROOT / "docs" / page.src_uri).read_text()):
            path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.src_uri), target))
            outside = ":" not in target and not path.startswith("docs/") and path not in PLACES
            if outside and place_of(path) not in files.src_uris:
                files.append(File.generated(config, place_of(path), content=outside_text(path)))
    files.append(File.generated(config, PLACES["examples"], content=examples_page()))
    return files


def outside_text(path: str) -> str:
    text = (ROOT / path).read_text()
    return (
        LINK.sub(lambda link: f"]({outside_link(path, link[1])}{link[2] or ''})", text)
        if path.endswith(".md")
        else text
    )


def outside_link(path: str, target: str) -> str:
    """A link of a file outside of docs/, as seen from its copy."""
    if ":" in target:
        return target
    other = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return posixpath.relpath(place_of(other), posixpath.join(COPIES, posixpath.dirname(path)))


def place_of(path: str) -> str:
    """Where the site has a file of this repository."""
    return path[5:] if path.startswith("docs/") else PLACES.get(path, f"{COPIES}/{path}")


def examples_page() -> str:
    parts = ["# Examples\n\nEach program runs unchanged, alone or in a job, and ends with its expected output.\n"]
    for path in sorted((ROOT / "examples").glob("[0-9]*.py")):
        parts.append(f"## {path.name}\n\n```python\n{path.read_text()}```\n")
    return "\n".join(parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to the copies, and fences as Markdown knows them: a file name becomes the title of its block."""
    if page.file.src_uri.startswith(COPIES):
        return markdown
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        if ":" in match[1] or path.startswith("docs/") or path == "docs":
            return match[0]
        return f"]({posixpath.relpath(place_of(path), folder or '.')}{match[2] or ''})"

    def fence(match: re.Match[str]) -> str:
        name = re.search(r"file=(\S+)", match[2])
        return f"```{match[1]}" + (f' title="{name[1]}"' if name else "")

    return LINK.sub(link, FENCE.sub(fence, markdown))
