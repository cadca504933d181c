"""An article by a writer, two critics and an editor: a program for OpenAI's API, as one writes it.

Each text travels to the client and back before the next request can be made with it.

Usage: python examples/from_openai/before.py [TOPIC]
"""

import os
import sys

from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m")

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


def ask(prompt: str) -> str:
    """What the model says to a prompt."""
    answer = client.responses.create(
        model=MODEL,
        input=prompt,
        max_output_tokens=48,
    )
    return answer.output_text


def main(topic: str) -> None:
    """Writes the article."""
    draft = ask(f"Write a short paragraph about {topic}.")
    history = ask(f"You are a historian. Name one flaw of this text: {draft}")
    style = ask(f"You are a poet. Name one flaw of this text: {draft}")
    article = ask(f"Write this text anew, without its flaws: {draft}\nFlaws: {history}\n{style}")
    print(article)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "the sea")
