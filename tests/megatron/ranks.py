"""One rank of a group that ends its steps together: `ranks.py RANK RANKS STORE [FLAG]...`."""

import sys

import torch

import tidepool_offload
from tidepool_offload import FineGrainedActivationOffloadingInterface as off_interface

rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                                     world_size=ranks)
group = torch.distributed.new_group(list(range(ranks)))
tidepool_offload.configure("--no-margin", "--host-step=1MiB", *sys.argv[4:], device="virtual")
for _ in range(4):
    off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
    x = torch.randn(1 << 18, requires_grad=True)
    y = x
    for name in ("core_attn", *(["moe_act", "moe_act"] if rank == 1 else [])):
        scope = off_interface(True, y, name)
        with scope as y:
            z = y.exp()
        y = scope.group_offload(z)
    y.sum().backward()
    off_interface.reset(process_group=group)
torch.distributed.destroy_process_group()
