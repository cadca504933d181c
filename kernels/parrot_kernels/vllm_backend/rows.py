"""A step's rows, split: those that decode, and the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def decode_rows(query_starts: npt.NDArray[np.int32]) -> int:
    """How many rows at the front of the batch have one query token each.

    Args:
        query_starts: of each row, where its queries begin; and where the last one's end.
    """
    longer = np.flatnonzero(np.diff(query_starts) != 1)
    return int(longer[0]) if len(longer) else len(query_starts) - 1


def without_rows(common: Any, rows: int) -> Any:
    """vLLM's `CommonAttentionMetadata` of the batch without its first `rows` rows, of one token each."""

    def rest(tensor: Any) -> Any:
        return None if tensor is None else tensor[rows:]

    return common.replace(
        query_start_loc=common.query_start_loc[rows:] - rows,
        query_start_loc_cpu=common.query_start_loc_cpu[rows:] - rows,
        seq_lens=common.seq_lens[rows:],
        num_reqs=common.num_reqs - rows,
        num_actual_tokens=common.num_actual_tokens - rows,
        block_table_tensor=common.block_table_tensor[rows:],
        slot_mapping=common.slot_mapping[rows:],
        positions=rest(common.positions),
        is_prefilling=rest(common.is_prefilling),
        seq_lens_cpu_upper_bound=rest(common.seq_lens_cpu_upper_bound),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )
