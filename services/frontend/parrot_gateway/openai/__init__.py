"""OpenAI's API over the graph: a request is a call, of a session of its own or of one that it joins."""
