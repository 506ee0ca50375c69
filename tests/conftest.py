"""Compile fast, run slowly: most of the suite's time would go into optimising programs that run a few times each."""

import importlib.metadata
import os

# Read when JAX starts. Unoptimised and without the new fusion emitters, an agent compiles in 2 s instead of 13.
flags = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends the process over a flag it does not know
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
