"""A LangChain program: a chain, a tool call and its result, a typed answer, a stream."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def look(at: str) -> str:
    """Looks something up."""
    return f"{at} is wet"


class Sea(BaseModel):
    """A sea."""

    name: str
    depth_m: int


def main(api: str) -> None:
    """On one of the two APIs."""
    model = ChatOpenAI(model="scripted", temperature=0, use_responses_api=api == "responses")

    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), ("human", "script:{script}, {topic}?")]
    )
    chain = prompt | model | StrOutputParser()
    print("chain:", chain.invoke({"script": "hello", "topic": "the sea"}))
    print("batch:", chain.batch([{"script": "hello", "topic": "a"}, {"script": "hello", "topic": "b"}]))
    print("stream:", "".join(chain.stream({"script": "many", "topic": "the sea"})))

    messages = [HumanMessage("script:look")]
    asked = model.bind_tools([look]).invoke(messages)
    assert isinstance(asked, AIMessage)
    print("calls:", [(call["name"], call["args"]) for call in asked.tool_calls])
    results = [ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"]) for call in asked.tool_calls]
    told = model.bind_tools([look]).invoke([*messages, asked, *results, HumanMessage("script:told")])
    print("told:", told.text)

    print("typed:", model.with_structured_output(Sea, method="json_schema").invoke("script:sea"))
    usage = model.invoke("script:hello").usage_metadata
    print("usage:", usage is not None and usage["total_tokens"] > 0)


def joined() -> None:
    """The same calls as parts of one graph: what the first says goes to the second on the server."""
    model = ChatOpenAI(model="scripted", default_headers={"X-Session-ID": "langchain"})
    first = model.bind(extra_body={"parrot": {"output": "fact"}})
    second = model.bind(extra_body={"parrot": {"inputs": {"fact": "fact"}, "output": "title"}})
    first.invoke("script:told")
    print("joined:", second.invoke("script:hello A title for {{fact}}").text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name)
        main(name)
    joined()
