"""An OpenAI-Agents program: tools, a hand-off, a typed answer, a session, a stream."""

from __future__ import annotations

import asyncio

from agents import Agent, Runner, SQLiteSession, function_tool
from pydantic import BaseModel


@function_tool
def look(at: str) -> str:
    """Looks something up."""
    return f"{at} is wet"


class Sea(BaseModel):
    """A sea."""

    name: str
    depth_m: int


seer = Agent(name="Seer", instructions="You look things up.", model="scripted", tools=[look])
clerk = Agent(name="Clerk", instructions="You pass questions on.", model="scripted", handoffs=[seer])
typist = Agent(name="Typist", instructions="You fill in forms.", model="scripted", output_type=Sea)


async def main() -> None:
    print("tool:", (await Runner.run(seer, "script:agent How is the sea?")).final_output)

    handed = await Runner.run(clerk, "script:handoff How is the sea?")
    print("handoff:", handed.last_agent.name, handed.final_output)

    print("typed:", (await Runner.run(typist, "script:sea")).final_output)

    session = SQLiteSession("thread")
    await Runner.run(seer, "script:hello One?", session=session)
    print("session:", (await Runner.run(seer, "script:hello Two?", session=session)).final_output)

    first = await Runner.run(seer, "script:hello One?")
    second = await Runner.run(seer, "script:hello Two?", previous_response_id=first.last_response_id)
    print("previous:", second.final_output)

    streamed = Runner.run_streamed(seer, "script:many")
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    print("stream:", text)


asyncio.run(main())
