"""The examples as they are written for OpenAI's client, to count what changes: see `integration.py`."""
