"""What-if: measured costs, other plans, and predicted step times under these."""
