"""What a job's log says: which rank is missing, which disagrees, which failed first.

Text in, facts out: ``scan`` finds the lines that matter, ``origins`` takes launchers' prefixes off,
``patterns`` turns lines into events, ``verdict`` draws conclusions from events, ``words`` makes
sentences of conclusions, ``joined`` makes those exact that dumps know more of.
"""
