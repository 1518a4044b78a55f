"""The places on the site of the repository's files outside docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DAGS_PAGE = "dags.md"
#: Pages outside docs/, and their names on the site.
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "tests/README.md": "tests.md",
    "CHANGELOG.md": "changelog.md",
    **{
        f"benchmarks/results/{file.name}": f"measured/{file.name}"
        for file in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    },
}


def repository_path(page: str) -> Path:
    """The file, relative to the repository, that a page of the site shows, or begins with."""
    if page == DAGS_PAGE:
        return Path("dags/README.md")
    for source, name in PAGES.items():
        if name == page:
            return Path(source)
    return Path("docs") / page


def site_page(path: Path) -> str | None:
    """The page of the site that shows a file or folder of the repository; None if no page does."""
    if str(path) in PAGES:
        return PAGES[str(path)]
    if path.parts[:1] == ("docs",):
        return path.relative_to("docs").as_posix()
    if path.parts[:1] == ("dags",):
        return DAGS_PAGE if path.suffix != ".py" else f"{DAGS_PAGE}#{path.name.replace('.', '')}"
    return None
