"""The task in a real market, in this process: `python -m pytest`."""

from my_task import MyTask


def test_everybody_is_paid(fedpeer_market):
    market = fedpeer_market(MyTask, participants=3, rounds=2)
    assert all(report.paid_micro > 0 for report in market.run().values())
    market.verify()
