"""The frame of a page: chrome, time bar, help, comparison."""
