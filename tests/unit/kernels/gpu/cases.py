"""A batch over a paged KV memory, for whatever runs the kernels here: a GPU, or Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from tests.support.forests import Forest

from parrot_kernels.gpu import Geometry
from parrot_kernels.gpu.attention import GpuAttention
from parrot_kernels.gpu.lists import DeviceLists
from parrot_kernels.plan import Costs, Planner
from parrot_kernels.reference import attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
TYPES = ("float16", "bfloat16") if ON_GPU else ("float16", "float32")
"""What can be run: the interpreter multiplies bfloat16's bits, and nobody decodes in float32."""
EXACT = TYPES[-1] if not ON_GPU else "float16"
LAYOUTS = ("plain", "interleaved", "odd")
"""Interleaved, as vLLM may have it: keys and values in one tensor, heads before tokens. Odd: tokens begin
where no box may."""
FREE = Costs(row=0.0, item=0.0, partial=0.0)
NEVER = Costs(row=0.0, item=1e9, partial=0.0)
"""Sharing never pays."""
BOUNDS = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}
"""Outputs are sums of values within about -4 to 4, rounded to the type: half a unit in the last place of the
largest, and as much again for the rounding of the weights."""


def geometry(*, group: int = 2, kv_heads: int = 2, head_size: int = 64, block_tokens: int = 16,
             kind: str = EXACT, kv: str | None = None) -> Geometry:  # fmt: skip
    return Geometry(group * kv_heads, kv_heads, head_size, block_tokens, kind, kv or kind)


@dataclass(frozen=True)
class Memory:
    """Keys and values, blocks x tokens x heads x dims, and what else is in the memory."""

    key: torch.Tensor
    value: torch.Tensor
    poisoned: tuple[torch.Tensor, torch.Tensor]


def memory(
    made: Geometry, used: torch.Tensor, generator: torch.Generator, *, layout: str = "plain"
) -> Memory:
    """Random numbers where `used` (blocks x tokens) says so; elsewhere what is no number.

    Args:
        layout: of `LAYOUTS`.
    """
    shape = (*used.shape, made.kv_heads, made.head_size)
    kind = getattr(torch, made.kv_type)
    plain = [torch.randn(shape, generator=generator).to(kind) for _ in range(2)]
    nothing = ~used[:, :, None, None]
    poisoned = [each.float().masked_fill(nothing, float("nan")).to(kind).to(DEVICE) for each in plain]
    if layout == "odd":
        poisoned = [torch.cat([each, each[..., :4]], 3)[..., :-4] for each in poisoned]
    if layout == "interleaved":
        both = torch.stack(poisoned, 1).transpose(2, 3).contiguous().transpose(2, 3)
        poisoned = [both[:, 0], both[:, 1]]
    return Memory(plain[0], plain[1], (poisoned[0], poisoned[1]))


def packed(forest: Forest) -> Forest:
    """The same forest in as many blocks as it has, in the same order of numbers."""
    numbers, tables = np.unique(forest.tables, return_inverse=True)
    places = np.asarray(tables, np.int32).reshape(forest.tables.shape)
    return Forest(places, forest.lengths, forest.block_tokens, len(numbers))


class Case:
    """Rows of a forest, their queries, and a memory of which all that is nobody's is no number."""

    def __init__(self, forest: Forest, made: Geometry, *, layout: str = "plain", seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.forest, self.made, self.rows = packed(forest), made, len(forest.lengths)
        forest = self.forest
        kind = getattr(torch, made.query_type)
        shape = (self.rows, made.query_heads, made.head_size)
        self.query = torch.randn(shape, generator=generator).to(kind)
        used = torch.zeros(forest.blocks, made.block_tokens, dtype=torch.bool)
        for table, length in zip(forest.tables.tolist(), forest.lengths.tolist(), strict=True):
            for at in range(length):
                used[table[at // made.block_tokens], at % made.block_tokens] = True
        self.memory = memory(made, used, generator, layout=layout)
        self.scale = made.head_size**-0.5
        self.partials = 0
        self.scales = (0.7, 1.3) if "float8" in made.kv_type else (1.0, 1.0)

    def run(self, costs: Costs | None = None, lists: DeviceLists | None = None, *, padding: int = 0,
            **shape: int) -> torch.Tensor:  # fmt: skip
        """What comes out, on the CPU; rows without tokens, and padding, are left as they were."""
        kernel = GpuAttention(self.made, DEVICE)
        capacity = self.made.capacity(self.rows)
        planner = Planner(
            replace(self.made.shape(kernel.programs), **shape), capacity, costs or self.made.costs()
        )
        lists = lists or DeviceLists(self.made, capacity, DEVICE)
        plan = planner.plan(self.forest.tables, self.forest.lengths)
        self.partials = plan.partials
        lists.load(plan)
        query = torch.cat([self.query, self.query.new_full((padding, *self.query.shape[1:]), float("nan"))])
        out = torch.full_like(query, float("nan"), device=DEVICE)
        lists.partial_out.fill_(float("nan"))
        lists.partial_lse.fill_(float("nan"))
        tables = torch.from_numpy(self.forest.tables).to(DEVICE)
        kernel.run(lists, query.to(DEVICE), *self.memory.poisoned, tables, out, scale=self.scale,
                   k_scale=self.scales[0], v_scale=self.scales[1])  # fmt: skip
        return out.cpu()

    def expected(self) -> torch.Tensor:
        """In float64."""
        k_scale, v_scale = self.scales
        key, value = self.memory.key.float() * k_scale, self.memory.value.float() * v_scale
        tables, lengths = self.forest.tables.tolist(), self.forest.lengths.tolist()
        found = attention(
            self.query.float().numpy(), (key.numpy(), value.numpy()), tables, lengths, self.scale
        )
        return torch.from_numpy(found)

    @property
    def busy(self) -> list[int]:
        """Rows with tokens."""
        return [row for row, length in enumerate(self.forest.lengths.tolist()) if length]


def check(case: Case, out: torch.Tensor, bound: float | None = None) -> None:
    """Rows with tokens are what float64 makes of them; the rest is untouched."""
    rows = case.busy
    assert torch.isfinite(out[rows].float()).all()
    error = (out[rows].double() - case.expected()[rows]).abs().max() if rows else 0.0
    assert error < (bound or BOUNDS[case.made.query_type])
    rest = [row for row in range(len(out)) if row not in rows]
    assert torch.isnan(out[rest].float()).all()
