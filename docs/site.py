"""What MkDocs does not do by itself: files of the repository outside docs/, formulas, doctests, whole options.

Pages link to files outside docs/ by relative paths, which work where the repository is browsed. Here each such file
becomes part of the site, Markdown as a page, and links are turned to it. TeX between dollar signs becomes MathML,
doctests in docstrings become blocks of code, and options of commands are kept on one line.
"""

import posixpath
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# Pages of the site that are files elsewhere in the repository.
PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
}

_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"(?P<before>!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<after>[^)]*\))"
)
_MATH = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*(?:\\\(|\\\[)(?P<tex>.*?)(?:\\\)|\\\])\s*</(?P=tag)>', re.DOTALL
)
_INLINE_CODE = re.compile(r"<code>[^<]*</code>")  # blocks of code have spans in them
_OPTION = re.compile(r"(?<![\w-])--[\w.-]*\w")
_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$)(?P=indent).*)*", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and those that these link to in turn."""
    for uri, path in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        for target in targets(waiting.pop()):
            found = site_uri(target)
            if found is None or files.get_file_from_path(found) is not None or not target.is_file():
                continue
            files.append(added := File.generated(config, found, abs_src_path=str(target)))
            if found.endswith(".md"):
                waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the repository's files to where these are on the site."""
    del config, files
    folder = original(page.file).parent

    def turned(found: re.Match[str]) -> str:
        uri = None if is_elsewhere(found["target"]) else site_uri((folder / found["target"]).resolve())
        if uri is None:
            return found[0]
        path = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found['before']}{path}{found['anchor'] or ''}{found['after']}"

    return outside_of_code(markdown, turned)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """TeX, which Arithmatex has found, as MathML; options in running text whole, as browsers break after hyphens."""
    del page, config, files

    def drawn(found: re.Match[str]) -> str:
        return str(convert(unescape(found["tex"]), display="block" if found["tag"] == "div" else "inline"))

    def whole(found: re.Match[str]) -> str:
        return _OPTION.sub(r'<span class="option">\g<0></span>', found[0])

    return _INLINE_CODE.sub(whole, _MATH.sub(drawn, html))


class DoctestsAsCode(Extension):
    """Doctests of docstrings as blocks of code, where Markdown would take `>>>` for a quotation."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Fence the doctests of one docstring."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(
                lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", obj.docstring.value
            )


def targets(file: File) -> list[Path]:
    """The files that a page links to by relative paths."""
    text, folder = _CODE.sub("", file.content_string), original(file).parent
    return [(folder / found["target"]).resolve() for found in _LINK.finditer(text) if not is_elsewhere(found["target"])]


def original(file: File) -> Path:
    """The file of the repository that a page is made of."""
    assert file.abs_src_path is not None
    return Path(file.abs_src_path)


def site_uri(path: Path) -> str | None:
    """Where a file of the repository is on the site; None for what is not in the repository."""
    if not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return next((uri for uri, source in PAGES.items() if source == name), name)


def is_elsewhere(target: str) -> bool:
    """Whether a link leads out of the repository, or within its own page."""
    return ":" in target or target.startswith(("#", "/"))


def outside_of_code(markdown: str, replace: Callable[[re.Match[str]], str]) -> str:
    """Replace links, but not what looks like one in code."""
    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])
