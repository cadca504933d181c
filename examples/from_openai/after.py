"""The same as a graph: the server has all four calls at once, and hands each text on by itself.

A text that a later call reads has a name, and stands in that call's prompt as a hole. Only the last
request waits; the others are answered as soon as they are accepted.

Usage: python examples/from_openai/after.py [TOPIC]
"""

import os
import re
import sys
from uuid import uuid4

from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m")

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    default_headers={"X-Session-ID": uuid4().hex},
)


def ask(prompt: str, output: str, *, wait: bool = False) -> str:
    """What the model says to a prompt."""
    answer = client.responses.create(
        model=MODEL,
        input=prompt,
        max_output_tokens=48,
        background=not wait,
        extra_headers={"X-Dynamo-Session-Final": str(wait)},
        extra_body={"parrot": {"inputs": {x: x for x in re.findall(r"{{(\w+)}}", prompt)}, "output": output}},
    )
    return answer.output_text


def main(topic: str) -> None:
    """Writes the article."""
    ask(f"Write a short paragraph about {topic}.", "draft")
    ask("You are a historian. Name one flaw of this text: {{draft}}", "history")
    ask("You are a poet. Name one flaw of this text: {{draft}}", "style")
    article = ask(
        "Write this text anew, without its flaws: {{draft}}\nFlaws: {{history}}\n{{style}}",
        "article",
        wait=True,
    )
    print(article)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "the sea")
