"""Tests that pass with gloo but fail with ringtree, each with the line in torch that causes it."""

HOLDER = "torch/include/torch/csrc/distributed/c10d/py/PyProcessGroup.hpp:66"

SOURCE = (
    "requires the source of a message received from any rank. "
    f"{HOLDER}, PyWorkHolder, with which torch wraps every work of a Python backend, "
    "does not forward `sourceRank`"
)
CUSTOM = (
    "checks the backend's name in DDP's log. "
    "torch/include/torch/csrc/distributed/c10d/ProcessGroup.hpp:121 names every backend that is "
    'not part of torch "custom"'
)

KNOWN = {
    "test_ddp_logging_data_cpu": CUSTOM,
    "test_send_recv_any_source": SOURCE,
    "test_send_recv_any_source_autograd_profiler": SOURCE,
    "test_send_recv_any_source_torch_profiler": SOURCE,
}
