"""The real backend: vLLM 0.32, on CPU or GPU.

`backend` runs in the service's process and keeps the contexts' tokens; `scheduler` runs in vLLM's
engine process and holds their KV; what they tell each other is in `wire`. Importing this imports no
vLLM: that takes seconds and gigabytes, and happens when the backend starts.
"""

from parrot_engine.backends.vllm.backend import VllmBackend as VllmBackend
from parrot_engine.backends.vllm.options import VllmOptions as VllmOptions
