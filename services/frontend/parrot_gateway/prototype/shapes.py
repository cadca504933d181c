"""What the prototype's clients send, and what they get. Fields it doesn't know, it ignores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from parrot_gateway.sampling import LogitBias, Penalty, SamplingSettings, TokenId
from parrot_gateway.sent import TextList
from parrot_runtime import limits

MOST_TOKENS = 1_048_576

CriteriaName = Literal["latency", "throughput", "TTFT", "TPOT"]


class _Sent(BaseModel):
    model_config = ConfigDict(extra="ignore")


def _session(given: object) -> object:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


SessionId = Annotated[
    str,
    BeforeValidator(_session, json_schema_input_type=int | str),
    Field(description="as POST /v1/session gave it; this server's own form of it, a text, does too"),
]


class NewPrototypeSession(_Sent):
    """A session to be made."""

    api_key: str = Field(default="", description="not looked at: keys come as Authorization: Bearer")


class PrototypeSampling(BaseModel):
    """How an output is generated, in the prototype's names."""

    model_config = ConfigDict(extra="forbid")

    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_gen_length: int = Field(default=512, ge=1, le=MOST_TOKENS)
    ignore_tokenizer_eos: bool = False
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    stop_str: TextList | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    n: Literal[1] = Field(default=1, description="a call makes one text of an output")
    best_of: Literal[1] = 1
    logit_bias: LogitBias | None = None
    repetition_penalty: float = Field(default=0.0, ge=0, le=10, description="0: none")
    length_penalty: Literal[0] = Field(default=0, description="there is no beam search")

    def settings(self) -> SamplingSettings:
        """The same in this server's names."""
        return SamplingSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_gen_length,
            ignore_eos=self.ignore_tokenizer_eos,
            stop_token_ids=self.stop_token_ids,
            stop=self.stop_str or [],
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias or {},
            repetition_penalty=self.repetition_penalty or 1.0,
        )


class PrototypeParameter(_Sent):
    """What stands in a hole of the template."""

    name: str
    is_output: bool
    var_id: str | None = Field(default=None, description="the variable to read; of an output, to make")
    value: str | None = Field(default=None, description="an input's text, instead of a variable")
    sampling_config: PrototypeSampling | None = Field(default=None, description="of an output")


class NewPrototypeCall(_Sent):
    """A semantic call."""

    session_id: SessionId
    template: str = Field(
        description="{{name}} is a hole: no blanks in it; everything else is text",
        examples=["Tell me a joke about {{topic}}: {{joke}}"],
    )
    parameters: list[PrototypeParameter] = Field(default_factory=list)
    func_name: str = ""
    models: list[str] = Field(default_factory=list, description="of several, the first that is served")
    model_type: Literal["token_id", "text"] = Field(default="token_id", description="any engine does")
    remove_pure_fill: bool = Field(default=True, description="leaves out what follows the last output")
    cache_prefix: bool = Field(default=True, description="without effect: prompts share what they can")
    output_criteria: CriteriaName | None = Field(
        default=None, description="the outputs are made now; otherwise when what they lead to is read"
    )
    fuse_fill: bool = Field(default=False, description="without effect")


class NewPrototypeVariable(_Sent):
    """A variable to be set later."""

    session_id: SessionId
    var_name: str = Field(max_length=limits.NAME_CHARS)


class PrototypeContent(_Sent):
    """A variable's text."""

    session_id: SessionId
    content: str


class PrototypeSession(BaseModel):
    """A session. `id` is this server's own form of its id."""

    session_id: int
    session_auth: str = Field(default="1", description="nothing to keep: sessions belong to the key's tenant")
    id: str
    state: str


class ParamInfo(BaseModel):
    """A hole, and the variable that stands in it."""

    parameter_name: str
    is_output: bool
    var_name: str
    var_id: str


class AcceptedPrototypeCall(BaseModel):
    """A call that was accepted: an entry for each hole of the template, in its order."""

    request_id: int
    param_info: list[ParamInfo]


class VariableId(BaseModel):
    """A variable that was made."""

    var_id: str


class VariableContent(BaseModel):
    """A variable's text."""

    content: str


class ListedVariable(BaseModel):
    """A variable of a session."""

    var_id: str
    var_name: str
    state: str


class VariableList(BaseModel):
    """A session's variables."""

    vars: list[ListedVariable]


class Nothing(BaseModel):
    """Done."""
