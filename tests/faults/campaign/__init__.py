"""A campaign of faults: a relay, runners and people as real processes, hurt for a while by chance.

`make faults SECONDS=120 SEED=7` runs one. What happens is drawn from the seed; how the machine
answers is not, so a seed leads to the same faults but not to the same interleaving.

* `people.py` is what each person runs: it writes down what it tried and what was acknowledged.
* `processes.py` starts and kills; `surroundings.py` cuts networks, fills disks, turns clocks.
* `director.py` draws and heals the faults; `checks.py` proves what must hold afterwards.

Everything is bounded: time, items, jobs, sizes. As root all of it lives in network and mount
namespaces of its own and ends with them; else only processes are hurt.
"""
