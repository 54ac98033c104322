"""The vLLM platform, which differs from vLLM's CPU platform only in its communicator."""

from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname


class RingtreePlatform(resolve_obj_by_qualname(cpu_platform_plugin())):
    """The CPU platform that vLLM would choose without the plug-in, with RingtreeCommunicator."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the name of the communicator's class."""
        return "ringtree.vllm._communicator.RingtreeCommunicator"
