"""What all of them ask the server by."""

from __future__ import annotations

import os
from typing import Any

from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m")
client = OpenAI()


def ask(prompt: str, max_tokens: int, system: str = "", **more: Any) -> str:
    """What the model answers."""
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    done = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_completion_tokens=max_tokens,
        temperature=0,
        **more,
    )
    return str(done.choices[0].message.content)
