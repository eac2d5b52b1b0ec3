"""What is written on the host arrives on the device in the same places, and nothing of the step before stays."""

import torch

from ssd.runtime.static_inputs import Field, StaticInputs, StaticResults

CPU = torch.device("cpu")


def test_fields_travel_and_are_blank_again():
    inputs = StaticInputs({"a": Field((3,)), "b": Field((2, 5), blank=-1), "t": Field((4,), real=True)}, CPU)
    inputs.upload()
    assert inputs.device["b"].tolist() == [[-1] * 5] * 2
    addresses = {name: tensor.data_ptr() for name, tensor in inputs.device.items()}
    inputs.host["a"][:2] = [1 << 62, -5]
    inputs.host["b"][1, 2:4] = [7, 8]
    inputs.host["t"][3] = 0.7
    assert inputs.device["t"][3] == 0.0
    inputs.upload()
    assert inputs.device["a"].tolist() == [1 << 62, -5, 0]
    assert inputs.device["b"][1].tolist() == [-1, -1, 7, 8, -1]
    assert inputs.device["t"].dtype == torch.float64 and inputs.device["t"].tolist() == [0.0, 0.0, 0.0, 0.7]
    inputs.clear()
    inputs.upload()
    assert inputs.device["a"].tolist() == [0, 0, 0] and inputs.device["b"].tolist() == [[-1] * 5] * 2
    assert addresses == {name: tensor.data_ptr() for name, tensor in inputs.device.items()}


def test_fields_begin_at_multiples_of_128_bytes():
    inputs = StaticInputs({name: Field((5,)) for name in "abc"}, CPU)
    first = inputs.device["a"].data_ptr()
    assert [(tensor.data_ptr() - first) % 128 for tensor in inputs.device.values()] == [0, 0, 0]


def test_results_come_step_by_step():
    results = StaticResults((4, 2, 1), CPU)
    results.device[0] = 3
    results.device[1] = 9
    assert results.fetch(2).tolist() == [[[3], [3]], [[9], [9]]]
