"""The participant's SDK: decide an effort, improve the data, train, submit, be paid."""
