"""What stands around and beside a page: chrome, time bar, help, comparison."""
