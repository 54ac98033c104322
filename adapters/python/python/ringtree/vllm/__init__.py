"""A platform plug-in that makes vLLM's CPU workers communicate over ringtree.

    VLLM_PLUGINS=ringtree vllm serve MODEL --tensor-parallel-size 2

vLLM then loads only the plug-ins that this variable names, so add any others that you use,
separated by commas without spaces. Without the variable, vLLM works as if ringtree were not
installed. vLLM ignores all platform plug-ins if VLLM_TARGET_DEVICE=cpu is set.
"""

import warnings

from vllm import envs

NAME = "ringtree"


def plugin() -> str | None:
    """Return the name of the platform's class if VLLM_PLUGINS names this plug-in, otherwise None.

    Warn and return None if this build of vLLM is not for CPUs.
    """
    if NAME not in (envs.VLLM_PLUGINS or ()):
        return None
    # vLLM determines its platform with this call, so these modules cannot be imported earlier.
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() is None:
        warnings.warn(
            f"VLLM_PLUGINS names {NAME}, but this build of vLLM is not for CPUs; it ignores {NAME}",
            stacklevel=1,
        )
        return None
    return f"{__name__}._platform.RingtreePlatform"
