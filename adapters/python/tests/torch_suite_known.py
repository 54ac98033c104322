"""Tests that pass with gloo but fail with ringtree, each with the line in torch that causes it."""

CUSTOM = (
    "checks the backend's name in DDP's log. "
    "torch/include/torch/csrc/distributed/c10d/ProcessGroup.hpp:121 names every backend that is "
    'not part of torch "custom"'
)

KNOWN = {
    "test_ddp_logging_data_cpu": CUSTOM,
}
