"""Any server with OpenAI's completions API as an engine: text contexts, no KV of ours."""

from parrot_engine.backends.openai.backend import OpenAIBackend as OpenAIBackend
from parrot_engine.backends.openai.client import OpenAIOptions as OpenAIOptions
