"""How long `import parrot` takes in a fresh interpreter, beyond the interpreter's own start.

Each sample is a pair: a bare interpreter, and one that imports the SDK.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.harness import Report, parser, print_table, spread

STATEMENTS = {"interpreter": "pass", "import_parrot": "import parrot", "import_httpx": "import httpx"}


def measure(statement: str) -> float:
    """Wall time of a fresh interpreter that runs `statement`, in ms."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    rounds = 10 if arguments.quick else 50
    report = Report("imports", {"rounds": rounds})
    for statement in STATEMENTS.values():
        measure(statement)
    for _ in range(rounds):
        report.samples.append({name: measure(statement) for name, statement in STATEMENTS.items()})
    rows = []
    for name in STATEMENTS:
        of = spread([sample[name] for sample in report.samples])
        rows.append((name, *(f"{of[key]:.1f}" for key in ("min", "p50", "max"))))
    print_table(["fresh interpreter, ms", "min", "p50", "max"], rows)
    extra = spread([sample["import_parrot"] - sample["interpreter"] for sample in report.samples])
    report.summary = {"import_parrot_ms_p50": extra["p50"], "import_parrot_ms_max": extra["max"]}
    report.show(arguments.json)


if __name__ == "__main__":
    main()
