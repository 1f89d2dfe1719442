"""What the documentation shows runs as it stands, and nothing in the repository knows whose machine it was made on."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.exists()]


def python_blocks(text: str) -> list[tuple[int, str]]:
    """The line at which each ```python block begins, and its code."""
    found = []
    for block in FENCE.finditer(text):
        if block["language"].strip().split(" ")[0] == "python":
            line = text.count("\n", 0, block.start()) + 1
            found.append((line, re.sub(f"^{block['indent']}", "", block["code"], flags=re.MULTILINE)))
    return found


WITH_CODE = [page for page in PAGES if python_blocks(page.read_text(encoding="utf-8"))]


def test_just_blocks_of_python_are_found() -> None:
    text = (
        "a\n```python\nx = 1\n```\n```text\nno\n```\n```\nno\n```\n- b\n  ```python title\n  y = 2\n\n  z = 3\n  ```\n"
    )
    assert python_blocks(text) == [(2, "x = 1\n"), (12, "y = 2\n\nz = 3\n")]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """All blocks of a page in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in python_blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_to_files_that_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


def test_the_pages_that_everybody_looks_for_exist() -> None:
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        assert (ROOT / name).read_text(encoding="utf-8").strip(), name


def test_no_file_knows_a_path_of_the_machine_it_was_written_on() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    machine = re.compile(rb"(?<![\w.])/(work|home/\w+|Users/\w+|root)/")
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    found = [
        str(path.relative_to(ROOT))
        for path in paths
        if path.is_file() and path != Path(__file__) and machine.search(path.read_bytes())
    ]
    assert not found
