"""Keeps what a release says to other processes and to the database, and holds later code against it.

A release and the one after it work side by side while one takes the other's place. So between them messages
and tables may only gain: what the one before knows stays as it was, and it can do without what is new.

Usage: python tools/freeze_release.py           writes released/<release>, once, when it is made
       python tools/freeze_release.py --again   writes it anew: nobody has it yet
       python tools/freeze_release.py --check   tells what does not fit the newest release there is
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, ForeignKeyConstraint, MetaData, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql

ROOT: Final = Path(__file__).resolve().parent.parent
RELEASED: Final = ROOT / "released"
PROTOS: Final = "protos.binpb"
SCHEMA: Final = "schema.json"
UNUSED: Final = "unused"
"""`info={"unused": True}` of a column or table: this code does not touch it, so the next may drop it."""

Schema = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Writes, or with `--check` compares; 1 when that can't be, or something does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 when something does not fit"
    )
    parser.add_argument("--again", action="store_true", help="write anew what is there")
    arguments = parser.parse_args(argv)
    if arguments.check:
        found = misfits(newest_release())
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    folder = RELEASED / release()
    if folder.exists() and not arguments.again:
        print(
            f"{folder.relative_to(ROOT)} is there: a release that somebody has never changes", file=sys.stderr
        )
        return 1
    freeze(folder)
    return 0


def release() -> str:
    """The release this code is: the first two numbers of its version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return ".".join(version.split(".")[:2])


def newest_release() -> Path:
    """The folder of the newest release there is."""
    return max(RELEASED.iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])


def freeze(folder: Path) -> None:
    """Writes what this code says."""
    folder.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    out = f"--descriptor_set_out={folder / PROTOS}"
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=proto", "--include_imports", out]
    subprocess.run([*command, *protos], check=True, cwd=ROOT)
    (folder / SCHEMA).write_text(json.dumps(schema_now(), indent=1, sort_keys=True) + "\n")


def misfits(folder: Path) -> list[str]:
    """What of this code a release could not work beside."""
    known: Schema = json.loads((folder / SCHEMA).read_text())
    found = [*proto_misfits(folder), *schema_misfits(known, schema_now()), *step_misfits(known, steps_now())]
    return [f"beside {folder.name}: {text}" for text in found]


def proto_misfits(folder: Path) -> list[str]:
    """What of the protos is not an addition."""
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run(
        [buf, "breaking", "--against", folder / PROTOS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).splitlines()
    return lines or ["buf found something"] if done.returncode else []


def schema_misfits(known: Schema, now: Schema) -> list[str]:
    """What of the schema code that knows the other can't work with."""
    found: list[str] = []
    for name, table in known["tables"].items():
        if name not in now["tables"]:
            if not table.get(UNUSED):
                found.append(f"table {name} is gone, and the release does not say that it is {UNUSED}")
        else:
            found += [f"table {name}: {text}" for text in _table_misfits(table, now["tables"][name])]
    return found


def _table_misfits(known: Schema, now: Schema) -> list[str]:
    found: list[str] = []
    for name, column in known["columns"].items():
        if name not in now["columns"]:
            if not column.get(UNUSED):
                found.append(f"column {name} is gone, and the release does not say that it is {UNUSED}")
        elif now["columns"][name]["type"] != column["type"]:
            found.append(f"column {name} was {column['type']}, is {now['columns'][name]['type']}")
        elif now["columns"][name]["nullable"] != column["nullable"]:
            found.append(f"column {name} may be null in one of the two alone")
    for name in now["columns"].keys() - known["columns"].keys():
        column = now["columns"][name]
        if not column["nullable"] and not column["default"]:
            found.append(f"column {name} is new, and who does not know it can't add a row: give it a default")
    found += [
        f"column {name} has its default no more, and who leaves it out can't add a row"
        for name in sorted(known["columns"].keys() & now["columns"].keys())
        if known["columns"][name]["default"] and not now["columns"][name]["default"]
    ]
    # An insert that is done once because of a key or a constraint would be done twice.
    found += [f"{rule} is gone" for rule in sorted(set(known["rules"]) - set(now["rules"]))]
    found += [f"{rule} is new" for rule in sorted(set(now["rules"]) - set(known["rules"]))]
    return found


def step_misfits(known: Schema, steps: dict[str, str]) -> list[str]:
    """Which steps after the release say that its code does not work with them."""
    newest = known["newest_step"]
    return [
        f"step {step} works with no code before {works_with}; the release knows none after {newest}"
        for step, works_with in steps.items()
        if step > newest and works_with > newest
    ]


def schema_now() -> Schema:
    """The tables of this code, as far as others depend on them."""
    from parrot_manager.store.schema import head_revision
    from parrot_manager.store.tables import Base

    return {"newest_step": head_revision(), "tables": tables_of(Base.metadata)}


def tables_of(metadata: MetaData) -> Schema:
    """Tables as `schema.json` has them."""
    return {name: _table(table) for name, table in metadata.tables.items()}


def _table(table: Table) -> Schema:
    columns: Schema = {
        column.name: {
            "type": column.type.compile(postgresql.dialect()),  # type: ignore[no-untyped-call]
            "nullable": bool(column.nullable),
            "default": column.server_default is not None or column.autoincrement is True,
        }
        for column in table.columns
    }
    for column in table.columns:
        if column.info.get(UNUSED):
            columns[column.name][UNUSED] = True
    made = {"columns": columns, "rules": sorted(_rules(table))}
    return made | ({UNUSED: True} if table.info.get(UNUSED) else {})


def _rules(table: Table) -> list[str]:
    """What rows must hold to."""
    found = [f"primary key ({', '.join(column.name for column in table.primary_key)})"]
    for rule in table.constraints:
        names = ", ".join(column.name for column in getattr(rule, "columns", ()))
        if isinstance(rule, ForeignKeyConstraint):
            found.append(
                f"foreign key ({names}) to {', '.join(key.target_fullname for key in rule.elements)}"
            )
        elif isinstance(rule, UniqueConstraint):
            found.append(f"unique ({names})")
        elif isinstance(rule, CheckConstraint):
            found.append(f"check ({rule.sqltext})")
    found += [f"unique index {index.name}" for index in table.indexes if index.unique]
    return found


def steps_now() -> dict[str, str]:
    """The steps that say which code works with them."""
    from parrot_manager.store.schema import STEPS

    folder = ROOT / "services/manager" / Path(*re.split("[.:/]", STEPS[0]))
    scripts = ScriptDirectory(str(folder.parent), version_locations=[str(folder)])
    return {
        script.revision: str(getattr(script.module, "works_with", script.revision))
        for script in scripts.walk_revisions()
    }


if __name__ == "__main__":
    sys.exit(main())
