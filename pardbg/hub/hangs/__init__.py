"""What is done about a hang when nobody looks: a look into it, a bundle, and who is told."""
