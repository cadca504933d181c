"""What it costs to move a program to the graph: lines that differ from the same program for OpenAI's client.

Counted are lines of code: those that are in our example alone, and those in the plain program alone.
Imports, comments, docstrings that are no prompts, and blank lines are not counted.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from benchmarks.harness import Report, parser, print_table

ROOT = Path(__file__).resolve().parents[2]
OURS, PLAIN = ROOT / "examples", Path(__file__).with_name("plain")
NAMES = ("chain_summary", "coding_team", "search_copilot", "shared_prompt_chat", "verifier_loop")


def main() -> None:
    """Counts and reports."""
    arguments = parser(__doc__).parse_args()
    report = Report("integration", {})
    pairs = {name: (PLAIN / f"{name}.py", OURS / f"{name}.py") for name in NAMES}
    pairs["from_openai"] = (OURS / "from_openai" / "before.py", OURS / "from_openai" / "after.py")
    for name, (plain, ours) in pairs.items():
        before, after = code_of(plain), code_of(ours)
        added, removed = changes(before, after)
        report.samples.append(
            {"name": name, "plain": len(before), "ours": len(after), "added": added, "removed": removed}
        )
        report.summary[f"lines_changed_{name}"] = added
    rows = [tuple(sample.values()) for sample in report.samples]
    print_table(["example", "lines, plain", "lines, ours", "added", "removed"], rows)
    report.show(arguments.json)


def changes(before: list[str], after: list[str]) -> tuple[int, int]:
    """How many lines the one has that the other hasn't: added, removed."""
    diff = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return sum(line[0] == "+" for line in diff), sum(line[0] == "-" for line in diff)


def code_of(path: Path) -> list[str]:
    """A program's lines of code, without what is said about it and what it imports."""
    text = path.read_text()
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = node.body if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) else []
        for part in body:
            if _is_said(part, node):
                said |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return [line for number, line in lines if number not in said and line.split("#")[0].strip()]


def _is_said(part: ast.stmt, within: ast.AST) -> bool:
    """Whether it is an import, or a docstring; a semantic function's docstring is its prompt, and counts."""
    if isinstance(part, ast.Import | ast.ImportFrom):
        return True
    is_text = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    return is_text and not (isinstance(within, ast.FunctionDef) and within.decorator_list)


if __name__ == "__main__":
    main()
