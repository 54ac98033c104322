"""Tests that pass with gloo but fail with ringtree, each with the line in torch that causes it."""

CUSTOM = (
    "expects the backend's name in DDP's log, but torch reports every backend that is not part of "
    'torch as "custom" (torch/include/torch/csrc/distributed/c10d/ProcessGroup.hpp:121)'
)

KNOWN = {
    "test_ddp_logging_data_cpu": CUSTOM,
}
