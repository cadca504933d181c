from parrot import P

short = P.SamplingConfig(temperature=0.5, max_gen_length=12, ignore_tokenizer_eos=True)


@P.semantic_function(formatter=P.allowing_newline, try_register=False)
def draft(topic: P.Input, letter: P.Output(short), word_limit: int):
    """Write a letter about {{topic}} of {{word_limit}} words.

    Letter: {{letter}}
    """


@P.semantic_function(model_type="text")
def polish(letter: P.Input, tone: str, better: P.Output(short)):
    """Make this letter {{tone}}:
    {{letter}}
    Better: {{better}}"""


@P.semantic_function(conversation_template=P.vicuna_template, try_register=False)
def joke(topic: P.Input, joke: P.Output(short), explanation: P.Output(short)):
    """Tell a joke about {{topic}}. {{joke}}.
    Explain it. {{explanation}}"""


@P.semantic_function(remove_pure_fill=False, try_register=False)
def begin_chat():
    """A chat between a user and an assistant."""


@P.semantic_function(try_register=False)
def chat_round(human: P.Input, ai: P.Output(short)):
    """
     USER: {{human}}
    ASSISTANT: {{ai}}
    """
