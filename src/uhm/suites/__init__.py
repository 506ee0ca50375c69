"""Many populations: which ones, what is done, what is left and how long it takes; and running them, here or on Ray.

A population is one environment x one agent x all tasks x all seeds, and for an ablation an axis of values. It is one
run directory, so whatever runs it, and however often that is killed, the result is the same.

    plan.py       the populations that a suite, some agents and an ablation stand for
    ablations.py  the paper's four
    status.py     what the run directories say: done, running, interrupted, left
    speed.py      hours, from measured speed only
    data.py       which data are missing, and the commands that bring them
    worker.py     one population, start to end, in a process of its own; lease.py lets one process at a time do it
    runner.py     all of them, with one table; local.py: one process per GPU; cluster.py: one Ray task each

Importing this loads no JAX, so that a worker can choose its device first.
"""
