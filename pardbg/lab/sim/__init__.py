"""A simulated accelerator: device "sim" and c10d backend "sim", whose times are known exactly.

Memory is the host's and kernels compute at once, on the CPU; time is virtual. Costs of kernels and
of communication are stated, not measured; hosts run ahead, streams and events behave as a GPU's.
``pardbg.lab.sim.device`` builds and registers it.
"""
