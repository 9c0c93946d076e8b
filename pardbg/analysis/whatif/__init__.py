"""What-if: measured costs, other plans, and what a step would take under them."""
