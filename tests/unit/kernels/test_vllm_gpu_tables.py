"""vLLM's own block tables, and what the host knows of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from parrot_kernels.vllm_backend.gpu_tables import HostTables, observe

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

BLOCK = 64
REQUESTS = 6
WIDTH = 16
CPU = torch.device("cpu")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Makes the model runner's tables, two KV cache groups, as if there were no pinned memory."""
    from vllm.v1.worker.gpu import buffer_utils
    from vllm.v1.worker.gpu.block_table import BlockTables

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    observe()
    return lambda: BlockTables([BLOCK, BLOCK], REQUESTS, 128, [WIDTH, WIDTH], CPU)


def on_device(made: Any, group: int, requests: np.ndarray) -> torch.Tensor:
    """The table a metadata builder gets, written as vLLM's kernels write it."""
    staged = made.block_tables[group]
    writes = zip(
        staged._staged_write_indices,
        staged._staged_write_starts,
        [0, *staged._staged_write_cu_lens],
        staged._staged_write_cu_lens,
        strict=False,
    )
    for request, start, begin, end in writes:
        staged.gpu[request, start : start + end - begin] = torch.tensor(
            staged._staged_write_contents[begin:end]
        )
    staged.clear_staged_writes()
    found: torch.Tensor = made.input_block_tables[group]
    found[: len(requests)] = staged.gpu[requests]
    return found[: len(requests)]


@pytest.mark.parametrize("seed", range(20))
def test_the_host_knows_what_the_device_has_after_any_writes(seed: int, tables: Callable[[], Any]) -> None:
    source = random.Random(seed)
    made = tables()
    hosts = [HostTables(BLOCK), HostTables(BLOCK)]
    for _ in range(6):
        for request in source.sample(range(REQUESTS), 3):
            # A request that goes on, or one that takes the place of another.
            anew = source.random() < 0.4
            room = WIDTH - (0 if anew else int(made.num_blocks.np[0, request]))
            count = source.randint(0, min(4, room))
            ids = tuple([source.randrange(1, 99) for _ in range(count)] for _ in range(2))
            made.append_block_ids(request, ids, overwrite=anew)
        order = np.array(source.sample(range(REQUESTS), source.randint(1, REQUESTS)))
        counts = made.num_blocks.np[0, order]
        lengths = np.array([source.randint(0, count * BLOCK) for count in counts.tolist()], np.int32)
        for group, host in enumerate(hosts):
            device = on_device(made, group, order)
            rows = host.rows(device, lengths, order)
            assert rows is not None
            assert rows.strides[0] // rows.itemsize == device.stride(0)
            for row, length in enumerate(lengths.tolist()):
                blocks = -(-length // BLOCK)
                assert rows[row, :blocks].tolist() == device[row, :blocks].tolist()


def test_rows_longer_than_what_was_written_are_not_known(tables: Callable[[], Any]) -> None:
    made = tables()
    made.append_block_ids(0, ([5, 6], [7, 8]), overwrite=True)
    rows = np.array([0])
    device = on_device(made, 0, rows)
    host = HostTables(BLOCK)
    assert host.rows(device, np.array([2 * BLOCK], np.int32), rows) is not None
    # The runner's trial batches have lengths without blocks.
    assert host.rows(device, np.array([2 * BLOCK + 1], np.int32), rows) is None


@pytest.mark.parametrize("requests", [None, np.array([0]), np.array([0, -1])])
def test_rows_of_no_known_request_are_not_known(requests: Any, tables: Callable[[], Any]) -> None:
    made = tables()
    made.append_block_ids(0, ([5], [7]), overwrite=True)
    device = on_device(made, 0, np.array([0, 1]))
    assert HostTables(BLOCK).rows(device, np.array([1, 1], np.int32), requests) is None


def test_while_writes_are_turned_to_the_null_block_the_host_has_it_too(tables: Callable[[], Any]) -> None:
    made = tables()
    made.redirect_writes_to_null_block = True
    made.append_block_ids(2, ([5, 6], [7, 8]), overwrite=True)
    rows = HostTables(BLOCK).rows(on_device(made, 1, np.array([2])), np.array([100], np.int32), np.array([2]))
    assert rows is not None
    assert rows[0, :2].tolist() == [0, 0]


def test_a_table_that_is_nobodys_is_not_known(tables: Callable[[], Any]) -> None:
    tables().append_block_ids(0, ([5], [7]), overwrite=True)
    stranger = torch.zeros(REQUESTS, WIDTH, dtype=torch.int32)
    assert HostTables(BLOCK).rows(stranger, np.array([1], np.int32), np.array([0])) is None


def test_one_finder_follows_from_one_table_to_another(tables: Callable[[], Any]) -> None:
    first, second = tables(), tables()
    first.append_block_ids(0, ([5], [7]), overwrite=True)
    second.append_block_ids(0, ([9], [7]), overwrite=True)
    host, rows, lengths = HostTables(BLOCK), np.array([0]), np.array([3], np.int32)
    for made, block in ((first, 5), (second, 9), (first, 5)):
        found = host.rows(on_device(made, 0, rows), lengths, rows)
        assert found is not None
        assert found[0, 0] == block


def test_the_older_runners_tables_are_found_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.block_table import BlockTable

    observe()
    made = BlockTable(BLOCK, REQUESTS, WIDTH, 128, False, CPU, 1)
    made.add_row([3, 4], 0)
    made.add_row([3, 8, 9], 1)
    made.commit_block_table(2)
    device = made.get_device_tensor(3)
    host = HostTables(BLOCK)
    rows = host.rows(device, np.array([BLOCK + 1, 3 * BLOCK], np.int32), None)
    assert rows is not None
    assert rows.strides[0] // rows.itemsize == device.stride(0)
    assert [rows[0, :2].tolist(), rows[1, :3].tolist()] == [[3, 4], [3, 8, 9]]
    assert host.rows(device, np.array([2 * BLOCK + 1], np.int32), None) is None


def test_rows_that_are_apart_have_no_first_block_in_common() -> None:
    host = HostTables(BLOCK)
    for rows, width in ((5, 7), (3, 7), (8, 2)):
        made = host.apart(rows, width)
        assert made.shape == (rows, width)
        assert len(set(made[:, 0].tolist())) == rows


def test_installing_twice_observes_once(tables: Callable[[], Any]) -> None:
    observe()
    observe()
    made = tables()
    made.append_block_ids(1, ([5], [7]), overwrite=True)
    made.append_block_ids(1, ([6], [8]), overwrite=False)
    found = HostTables(BLOCK).rows(
        on_device(made, 0, np.array([1])), np.array([BLOCK + 1], np.int32), np.array([1])
    )
    assert found is not None
    assert found[0, :2].tolist() == [5, 6]
