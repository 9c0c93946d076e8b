"""Unattended handling of a hang: an inquiry, a bundle, and notifications."""
