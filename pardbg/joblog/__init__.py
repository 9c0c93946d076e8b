"""Analysis of a job's log: which rank is missing, which disagrees, which failed first.

Text in, facts out: ``scan`` finds the relevant lines, ``origins`` removes launchers' prefixes,
``patterns`` turns lines into events, ``verdict`` draws conclusions from events, ``words`` makes
sentences of conclusions, ``joined`` makes conclusions exact with facts from dumps.
"""
