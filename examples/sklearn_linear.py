"""A linear model of scikit-learn. Arguments: state folder, market address, task id."""

import sys

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from mechanism.cost import LinearCost
from participant import BestResponse, Participant
from participant.adapters.sklearn import SklearnTask

images, labels = load_digits(return_X_y=True)
mine = (labels < 7) | (labels == 9)
task = SklearnTask(SGDClassifier(loss="log_loss", alpha=1e-4), images[mine] / 16, labels[mine], classes=10)
effort = BestResponse(cost=LinearCost(0.5))

state, market, task_id = sys.argv[1:]
with Participant(state, market) as me:
    print(me.explain(task, task_id, effort))
    report = me.run(task, task_id, effort=effort)
for line in report.rounds:
    print(line.number, line.metrics, line.settlement and line.settlement.paid, "credits", line.missed)
