"""The kernels in vLLM: an attention backend by the name PARROT.

`register` is a plugin of vLLM's (entry point group `vllm.general_plugins`). It only offers the backend:
whoever wants it says so (`--attention-backend PARROT`), and nothing changes for anybody else. Who can't do
without it calls `offer`, which raises where `register` warns.
"""

from parrot_kernels.vllm_backend.register import NAME as NAME
from parrot_kernels.vllm_backend.register import offer as offer
from parrot_kernels.vllm_backend.register import register as register
