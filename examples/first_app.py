"""A first application: two calls, the second of which reads what the first one makes."""
# mypy: disable-error-code="no-untyped-def"

import parrot as P

short = P.SamplingConfig(max_gen_length=32)


@P.semantic_function(sampling=short)
def describe(topic: P.Input, text: P.Output):
    """The most important fact about {{topic}} is that {{text}}"""


@P.semantic_function(sampling=short)
def title(text: P.Input, title: P.Output):
    """A good title for the text "{{text}}" is: {{title}}"""


with P.Session():
    text = describe("the sea")  # returns at once, a variable
    headline = title(text)  # reads that variable, on the server
    for piece in text.stream():
        print(piece, end="", flush=True)
    print("\n---", headline.get())
