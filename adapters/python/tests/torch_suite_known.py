"""The tests that gloo passes and ringtree does not, each with the line in torch that forces it."""

HOLDER = "torch/include/torch/csrc/distributed/c10d/py/PyProcessGroup.hpp:66"

SOURCE = (
    f"asks a receive from any rank who sent. {HOLDER}, PyWorkHolder, which torch puts around every "
    "work of a backend in Python, does not hand on `sourceRank`"
)
CUSTOM = (
    "compares the backend's name in DDP's log. "
    "torch/include/torch/csrc/distributed/c10d/ProcessGroup.hpp:121 calls every backend that is "
    'not torch\'s own "custom"'
)

KNOWN = {
    "test_ddp_logging_data_cpu": CUSTOM,
    "test_send_recv_any_source": SOURCE,
    "test_send_recv_any_source_autograd_profiler": SOURCE,
    "test_send_recv_any_source_torch_profiler": SOURCE,
}
