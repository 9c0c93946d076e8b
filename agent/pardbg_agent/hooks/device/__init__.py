"""Device times: when ops, actions and phases ran on the accelerator, on the host's clock."""
