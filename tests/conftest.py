"""Compile fast, run slowly: most of the suite's time would go into optimising programs that run a few times each."""

import os

# Read when JAX starts. Unoptimised and without the new fusion emitters, an agent compiles in 2 s instead of 13.
FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{FAST} {os.environ.get('XLA_FLAGS', '')}"
