"""A team that writes a program: an architect, and for each file a coder, a reviewer and a reviser."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAIError

from benchmarks.gateway.plain.chat import ask

FILES = 4
NOTES, CODE = 96, 160


def architect(task: str) -> str:
    prompt = f"""You are a software architect. The task: write {task} in Python.
    List its files, one a line and four at the most, each with what it holds."""
    return ask(prompt, NOTES)


def coder(task: str, plan: str, file: str) -> str:
    prompt = f"""The task: write {task} in Python. The plan: {plan}
    Write this file, and nothing but code: {file}"""
    return ask(prompt, CODE)


def reviewer(task: str, plan: str, file: str, program: str) -> str:
    prompt = f"""The task: write {task} in Python. The plan: {plan}
    Of the file {file} a colleague wrote this: {program}
    Say in three sentences what is wrong with it."""
    return ask(prompt, NOTES)


def reviser(task: str, plan: str, file: str, program: str, review: str) -> str:
    prompt = f"""The task: write {task} in Python. The plan: {plan}
    Of the file {file} you wrote this: {program}
    A colleague says: {review}
    Write the file anew, and nothing but code."""
    return ask(prompt, CODE)


def team(task: str) -> tuple[str, str]:
    """The plan, and all files it names as they are after their review."""
    plan = architect(task)

    def develop(file: str) -> str:
        program = coder(task, plan, file)
        return reviser(task, plan, file, program, reviewer(task, plan, file, program))

    names = [line.strip() for line in plan.splitlines() if line.strip()][:FILES]
    with ThreadPoolExecutor(FILES) as pool:
        files = "\n\n# ----\n\n".join(pool.map(develop, names))
    return plan, files


def main() -> int:
    """The application; 1 when it can't be finished."""
    asked = " ".join(sys.argv[1:]) or "a game of snake"
    try:
        plan, files = team(asked)
        print(f"{plan}\n\n{files}")
    except OpenAIError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
