"""A served model on a GPU, with batches in several of its queues."""

from __future__ import annotations

import threading

import pytest
import torch

import holdfast as hf
from holdfast.storage import MemoryStore
from tests.checkpoint.follow.test_follower import Clicks, Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def test_a_batch_in_any_queue_of_a_gpu_never_sees_half_an_update() -> None:
    store = MemoryStore()
    training = Training(store)
    training.save()
    served = Clicks().cuda()
    follower = hf.Follower(store, served)
    follower.update()
    stop, results = threading.Event(), list[torch.Tensor]()

    def serve() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            noise = torch.rand(2000, 2000, device="cuda")
            while not stop.is_set():
                with follower.serving(), torch.inference_mode():
                    early = served.values().clone()
                    for _ in range(5):  # the queue is still busy when the block ends
                        noise = (noise @ noise).clamp(0, 1)
                    late = served.values().clone()
                results.append(torch.stack([early.min(), early.max(), late.min(), late.max()]))

    threads = [threading.Thread(target=serve) for _ in range(3)]
    with follower:
        follower.start(every_s=0.001)
        for thread in threads:
            thread.start()
        last = [training.save() for _ in range(25)][-1]
        while follower.step != last:
            assert follower.error is None
    stop.set()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    seen = torch.stack(results).cpu()
    assert (seen == seen[:, :1]).all()
    assert len(seen.unique()) > 3
    assert torch.equal(served.values().cpu(), training.model.values())
