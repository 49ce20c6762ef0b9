"""Trains one model on a CPU and on a GPU. With src on the path: python -m tests.cluster.train.gpu_check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from holdfast.policy import Adagrad
from tests.cluster.train.tiny_worker import Worker, build_dlrm, loader_of, loss_of


def on_gpu() -> nn.Module:
    return build_dlrm().to("cuda")


@contextmanager
def exact_products() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def check_training() -> None:
    """Losses, rows and dense parameters agree; batches arrive on the device; nothing is pulled on demand."""
    how = {"optimizer": Adagrad(0.05), "dense_optimizer": Adagrad(0.05), "servers": 3}
    cpu, gpu = Worker(**how), Worker(on_gpu, **how)
    np.testing.assert_allclose(gpu.train(loader_of(), epochs=3), cpu.train(loader_of(), epochs=3), rtol=1e-3)
    for name, values in cpu.state().items():
        np.testing.assert_allclose(gpu.state()[name], values, atol=1e-3, err_msg=name)


def check_accumulation() -> None:
    """Clipping over several micro-batches, evaluation in between, bfloat16."""
    results = []
    for model, device in ((build_dlrm, "cpu"), (on_gpu, "cuda")):
        worker = Worker(model, ahead=0)
        for number, batch in enumerate(worker.loop.batches(loader_of())):
            loss_of(worker.loop.model, batch).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(worker.loop.model.parameters(), 0.05)
                worker.loop.step()
            with worker.loop.evaluating() as metrics, torch.autocast(device, torch.bfloat16):
                for each in worker.loop.batches(loader_of(40, 7, seed=3)):
                    worker.loop.metrics(worker.loop.model(each.dense, each.ids), each.labels)
            assert metrics.samples == 40
        results.append(worker.state())
    for name, values in results[0].items():
        np.testing.assert_allclose(results[1][name], values, atol=1e-3, err_msg=name)


if __name__ == "__main__":
    with exact_products():
        check_training()
        check_accumulation()
    print("a GPU trains as a CPU does")
