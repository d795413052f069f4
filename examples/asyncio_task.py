"""Several tasks at once on one event loop. Arguments: state folder, market address, task ids."""

import asyncio
import sys

import numpy as np
from sklearn.datasets import load_digits

from participant import AsyncParticipant
from participant.adapters.numpy import SoftmaxRegression

images, labels = load_digits(return_X_y=True)


async def main(state: str, market: str, *task_ids: str) -> None:
    def tell(activity):
        print(activity.task_id, activity.text)

    async with AsyncParticipant(state, market) as me:
        tasks = [
            SoftmaxRegression(np.array(images) / 16, labels, classes=10, seed=s) for s in range(len(task_ids))
        ]
        reports = await asyncio.gather(
            *(
                me.run(task, task_id, effort=0.0, on_progress=tell)
                for task, task_id in zip(tasks, task_ids, strict=True)
            )
        )
    for report in reports:
        print(report.task_id, report.state, report.paid_micro)


try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("stopped; run it again to go on", file=sys.stderr)
    sys.exit(130)
