"""One page of the app each; pages of several parts are packages."""
