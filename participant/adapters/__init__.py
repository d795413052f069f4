"""Tasks for frameworks, one module each; importing one imports its framework.

participant.adapters.workload  the very workload that the task's terms name, on your own arrays, table or images
participant.adapters.counting  counts over strata of any kind
participant.adapters.torch     any nn.Module with a Dataset; and the data sets and CNNs of `learning`
participant.adapters.sklearn   linear models with partial_fit
participant.adapters.numpy     a function over arrays
participant.adapters.flower    an existing Flower client as a task; scoring for a Flower run
"""
