"""A chat with a long system prompt that all conversations share: it is computed once, not once a message.

    parrot up                                   # in another terminal
    python examples/shared_prompt_chat.py
    python examples/shared_prompt_chat.py --say "Good morning" --say "When do you close?"

What was said is on the server already: each message sends its own words only, and names the rest as
variables. Its line tells how much of its prompt was there already: of the first message the system prompt,
if anybody has chatted before; of every other one the conversation so far.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import parrot as P

RULES = (
    "greet only once",
    "answer in one or two sentences",
    "know that the harbour's museum opens at nine and closes at five, on Sundays at three",
    "know that a ticket costs eight euros, and four for children and students",
    "know that the lighthouse may be climbed in groups of ten, every full hour",
    "know that dogs wait outside, and that bicycles stand behind the boathouse",
    "send whoever is lost to the blue door beside the crane",
    "never speak of politics, of prices elsewhere, or of the weather",
    "say that you do not know where you do not know",
)
SYSTEM = "You are the guide of a small museum in a harbour. These are your rules:\n" + "\n".join(
    f"{number}. Always {rule}." for number, rule in enumerate(RULES, start=1)
)
brief = P.SamplingConfig(temperature=0, max_gen_length=48)


@dataclass
class Chat:
    """One conversation. What was said is kept as variables of the session."""

    session: P.Session
    said: list[P.SemanticVariable] = field(default_factory=list)
    replies: list[P.SemanticVariable] = field(default_factory=list)

    def say(self, words: str) -> Iterator[str]:
        """The assistant's reply, as it is generated."""
        turn = len(self.said)
        self.said.append(P.variable(f"said_{turn}", words))
        history = {f"said_{place}": variable for place, variable in enumerate(self.said)}
        history |= {f"reply_{place}": variable for place, variable in enumerate(self.replies)}
        self.replies.append(reply_of(turn)(session=self.session, **history))
        return self.replies[-1].stream()

    def shared(self) -> str:
        """How much of the last prompt was computed before."""
        call = self.session.info().calls[-1]
        return f"{call.cached_tokens} of {call.prompt_tokens} prompt tokens were there already"


def reply_of(turn: int) -> P.Function:
    """The function whose prompt is a conversation of so many turns, and the next message."""
    messages = [P.system(SYSTEM)]
    for place in range(turn):
        messages += [P.user(f"{{{{said_{place}}}}}"), P.assistant(f"{{{{reply_{place}}}}}")]
    messages += [P.user(f"{{{{said_{turn}}}}}"), P.assistant("{{output:reply}}")]
    return P.define("reply", messages=messages, sampling=brief)


def asked() -> Iterator[str]:
    """What is typed, line by line."""
    while True:
        try:
            yield input("you: ")
        except EOFError:
            print()
            return


def main() -> int:
    """The application; 1 when it can't be finished."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--say", action="append", metavar="WORDS", help="instead of typing; may be repeated")
    options = parser.parse_args()
    words: Iterable[str] = options.say or asked()
    try:
        with P.Session(label="museum chat") as session:
            chat = Chat(session)
            for line in words:
                print("guide: ", end="")
                for piece in chat.say(line):
                    print(piece, end="", flush=True)
                print(f"\n       ({chat.shared()})")
    except P.ParrotError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
