"""A LangGraph program: an agent whose model and tools are nodes of a graph, with a memory of its thread."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def look(at: str) -> str:
    """Looks something up."""
    return f"{at} is wet"


model = ChatOpenAI(model="scripted", temperature=0).bind_tools([look])


def think(state: MessagesState) -> dict[str, Any]:
    """The model's turn."""
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode([look]))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
agent = graph.compile(checkpointer=InMemorySaver())

thread: Any = {"configurable": {"thread_id": "1"}}
for question in ("script:agent How is the sea?", "script:agent And the hills?"):
    state = agent.invoke({"messages": [HumanMessage(question)]}, thread)
    print(f"{len(state['messages'])} messages:", state["messages"][-1].text)
for mode, piece in agent.stream(
    {"messages": [HumanMessage("script:agent Again?")]}, thread, stream_mode=["updates"]
):
    print(mode, sorted(piece))
