"""The programs to run, and the packages that they need."""

from dataclasses import dataclass

GLOO, RINGTREE = "gloo", "ringtree"
BACKENDS = (GLOO, RINGTREE)


@dataclass(frozen=True)
class Program:
    """A program, and how it gets the backend.

    *name* gives it the name "gloo" or "ringtree". *group* makes it create the process group before
    the framework does. *stand-in* runs it with the name "gloo" in both cases, once with
    `python -m ringtree.gloo`. If `case` is not empty, the program runs only the cases whose names
    contain it. Cases run alone if they can end the program.
    """

    file: str
    package: str = "torch"
    way: str = "name"
    case: str = ""
    options: tuple = ()
    seconds: int = 180

    @property
    def key(self):
        parts = [self.file, *([] if self.way == "name" else [self.way]), self.case]
        return ":".join(filter(None, parts))

    def variables(self, backend):
        name = GLOO if self.way == "stand-in" else backend
        found = {"PROGRAM_BACKEND": name, "PROGRAM_LIBRARY": backend, "PROGRAM_CASE": self.case}
        return {**found, "PROGRAM_GROUP": "1"} if self.way == "group" else found

    def arguments(self, backend, folder):
        is_stand_in = self.way == "stand-in" and backend == RINGTREE
        module = ["-m", "ringtree.gloo"] if is_stand_in else []
        return [*self.options, *module, str(folder / f"{self.file}.py")]


TORCH_ONLY = ("ddp", "fsdp2", "tensor_parallel", "pipeline", "checkpoint")
PROGRAMS = (
    *(Program(file) for file in ("ddp", "ddp_models", "hooks")),
    # Gloo often hangs here until the time limit.
    *(Program("powersgd", case=case, seconds=40) for case in ("f32", "bf16", "quantization")),
    Program("zero"),
    *(Program(file) for file in ("fsdp2", "fsdp1", "tensor_parallel", "dtensor", "pipeline")),
    *(Program(file) for file in ("checkpoint", "calls", "objects", "messages", "devices")),
    *(Program("detail", case=case) for case in ("DDP", "shapes")),
    Program("compiled", seconds=400),
    Program("restart", options=("--max-restarts", "1"), seconds=90),
    Program("spawn"),
    Program("with_accelerate", "accelerate", "group"),
    Program("with_accelerate", "accelerate", "stand-in"),
    Program("with_trainer", "transformers", "group", seconds=400),
    Program("with_trainer", "transformers", "stand-in", seconds=400),
    Program("with_fabric", "lightning"),
    Program("with_lightning", "lightning"),
    Program("with_ignite", "pytorch-ignite", "stand-in"),
    Program("with_deepspeed", "deepspeed", seconds=300),
    Program("with_torchft", "torchft-nightly"),
    Program("torchft_death", "torchft-nightly"),
    Program("with_ray", "ray"),
)
# Cases that fail with ringtree only, each with a part of the error, and the reason.
KNOWN = {
    "messages, tags": (
        "different tags",
        "receives messages in a different order from the one in which they were sent. ringtree "
        "delivers the messages between two ranks in order, so it raises an error if the tags "
        "differ",
    ),
}
# Cases that compute or add in bf16.
BF16 = (
    *("DDP, autocast to bf16", "DDP, bf16 hook", "FSDP2, mixed precision", "Trainer, bf16"),
    *(f"DeepSpeed, ZeRO stage {stage}" for stage in (1, 2, 3)),
)
PACKAGES = tuple(dict.fromkeys([*(each.package for each in PROGRAMS), "peft", "torchmetrics"]))
